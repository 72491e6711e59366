use super::{Job, Lane, Lanes, Next, Rate, Retry, Turn, Workqueues};
use crate::metrics::Metrics;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

fn two_lanes(rate: Option<Rate>) -> (Lanes<String>, Metrics) {
    let metrics = Metrics::new("cilium_operator");
    let standard = Lane {
        delay: Duration::from_millis(500),
        share: 4,
        reserve: 2.0,
        ..Lane::new("cilium_endpoint_slice_standard")
    };
    let lanes = vec![Lane::new("cilium_endpoint_slice_fast"), standard];
    (Lanes::new(lanes, Retry::default(), rate, &Workqueues::register(&metrics)), metrics)
}

/// Runs the lanes until `until` runs are over; gives each run's key and time.
async fn record(
    lanes: &Lanes<String>,
    until: usize,
    write: bool,
    fail: bool,
) -> Vec<(String, u128)> {
    let (start, stop, runs) = (Instant::now(), CancellationToken::new(), Mutex::new(Vec::new()));
    lanes
        .run(1, &stop, async |job| {
            if write {
                job.write().await;
            }
            let mut runs = runs.lock().unwrap();
            runs.push((job.key.clone(), start.elapsed().as_millis()));
            if runs.len() == until {
                stop.cancel();
            }
            if fail { Err("no") } else { Ok(Next::Done) }
        })
        .await;
    runs.into_inner().unwrap()
}

fn near(runs: &[(String, u128)], want: &[(&str, u128)]) {
    let close =
        |(a, at): &(String, u128), (b, due): &(&str, u128)| a == b && at.abs_diff(*due) <= 3;
    let all = runs.len() == want.len() && runs.iter().zip(want).all(|(a, b)| close(a, b));
    assert!(all, "{runs:?} is not about {want:?}");
}

#[tokio::test(start_paused = true)]
async fn fast_at_once_and_standard_after_its_delay() {
    let (lanes, _) = two_lanes(None);
    lanes.add(1, "s".into());
    lanes.add(0, "f".into());
    lanes.add(1, "s".into());
    near(&record(&lanes, 2, false, false).await, &[("f", 0), ("s", 500)]);
    assert!(lanes.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_rate_so_small_that_its_waits_have_no_end_is_waited_for() {
    let (lanes, _) = two_lanes(Some(Rate::new(1e-19, 1.0)));
    for key in ["1", "2"] {
        lanes.add(0, key.into());
    }
    let both = record(&lanes, 2, true, false);
    assert!(tokio::time::timeout(Duration::from_hours(3), both).await.is_err(), "it has one token");
}

#[tokio::test(start_paused = true)]
async fn writes_keep_the_budget_and_looks_are_free() {
    let (lanes, _) = two_lanes(Some(Rate::new(10.0, 3.0)));
    for key in ["1", "2", "3", "4", "5"] {
        lanes.add(0, key.into());
    }
    near(
        &record(&lanes, 5, false, false).await,
        &[("1", 0), ("2", 0), ("3", 0), ("4", 0), ("5", 0)],
    );
    for key in ["1", "2", "3", "4", "5"] {
        lanes.add(0, key.into());
    }
    near(
        &record(&lanes, 5, true, false).await,
        &[("1", 0), ("2", 0), ("3", 0), ("4", 100), ("5", 200)],
    );
}

#[tokio::test(start_paused = true)]
async fn standard_leaves_tokens_for_fast() {
    let (lanes, _) = two_lanes(Some(Rate::new(10.0, 3.0)));
    for key in ["s1", "s2", "s3"] {
        lanes.add_after(1, key.into(), Duration::ZERO);
    }
    lanes.add_after(0, "f1".into(), Duration::from_millis(50));
    lanes.add_after(0, "f2".into(), Duration::from_millis(50));
    // s1 leaves two tokens, which f1 and f2 find at once; s2 waits until there are three again.
    near(
        &record(&lanes, 5, true, false).await,
        &[("s1", 0), ("f1", 50), ("f2", 50), ("s2", 300), ("s3", 400)],
    );
}

#[tokio::test(start_paused = true)]
async fn a_raised_budget_counts_at_once() {
    let rate = Rate::new(0.0, 1.0);
    let (lanes, _) = two_lanes(Some(rate.clone()));
    for key in ["1", "2"] {
        lanes.add(0, key.into());
    }
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        rate.set(100.0, 1.0);
    });
    near(&record(&lanes, 2, true, false).await, &[("1", 0), ("2", 1010)]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_and_counted() {
    let (lanes, metrics) = two_lanes(None);
    lanes.add(0, "f".into());
    near(
        &record(&lanes, 4, false, true).await,
        &[("f", 0), ("f", 1_000), ("f", 3_000), ("f", 7_000)],
    );
    let text = metrics.render();
    for line in [
        "cilium_operator_workqueue_adds_total{queue_name=\"cilium_endpoint_slice_fast\"} 1",
        "cilium_k8s_workqueue_adds_total{name=\"cilium_endpoint_slice_fast\"} 1",
        "cilium_operator_workqueue_retries_total{queue_name=\"cilium_endpoint_slice_fast\"} 4",
        "cilium_operator_workqueue_depth{queue_name=\"cilium_endpoint_slice_standard\"} 0",
        "cilium_operator_workqueue_unfinished_work_seconds{queue_name=\"cilium_endpoint_slice_fast\"} 0",
        "cilium_operator_workqueue_longest_running_processor_seconds{queue_name=\"cilium_endpoint_slice_fast\"} 0",
        "cilium_operator_workqueue_queue_duration_seconds_count{queue_name=\"cilium_endpoint_slice_fast\"} 4",
        "cilium_operator_workqueue_work_duration_seconds_bucket{queue_name=\"cilium_endpoint_slice_fast\",le=\"60\"} 4",
        "cilium_k8s_workqueue_work_duration_seconds_bucket{name=\"cilium_endpoint_slice_fast\",le=\"10\"} 4",
    ] {
        let found = text.lines().any(|l| l.trim_end_matches(".0") == line);
        assert!(
            found,
            "{line}\n--\n{}",
            text.lines().filter(|l| l.contains("workqueue")).collect::<Vec<_>>().join("\n")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_moves_between_lanes() {
    let (lanes, _) = two_lanes(None);
    for key in ["a/1", "b/1"] {
        lanes.add(1, key.into());
    }
    lanes.move_to(0, |key| key.starts_with("b/"));
    near(&record(&lanes, 2, false, false).await, &[("b/1", 0), ("a/1", 500)]);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_run_under_way_but_not_long() {
    for (length, over) in [(500, true), (5_000, false)] {
        let (lanes, _) = two_lanes(None);
        lanes.add(0, "f".into());
        let (stop, done, start) = (CancellationToken::new(), Mutex::new(false), Instant::now());
        lanes
            .run(4, &stop, async |_| {
                stop.cancel();
                tokio::time::sleep(Duration::from_millis(length)).await;
                *done.lock().unwrap() = true;
                Ok::<_, String>(Next::Done)
            })
            .await;
        assert_eq!(*done.lock().unwrap(), over);
        assert!(start.elapsed() <= Duration::from_millis(1_002), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_highest_rank_goes_first_once_there_is_a_token() {
    let (lanes, _) = two_lanes(Some(Rate::new(10.0, 1.0)));
    for key in ["5 first", "1 low", "9 high", "5 second"] {
        lanes.add(0, key.into());
    }
    let (stop, runs) = (CancellationToken::new(), Mutex::new(Vec::new()));
    let rank = |key: &String| Turn::Now(key.as_bytes()[0]);
    let handle = async |job: Job<String>| {
        job.write().await;
        let mut runs = runs.lock().unwrap();
        runs.push(job.key.clone());
        if runs.len() == 1 {
            // Appears while the others wait for tokens.
            lanes.add(0, "7 late".into());
        }
        if runs.len() == 5 {
            stop.cancel();
        }
        Ok::<_, String>(Next::Done)
    };
    lanes.run_by(1, &stop, rank, handle).await;
    assert_eq!(runs.into_inner().unwrap(), ["9 high", "7 late", "5 first", "5 second", "1 low"]);
}
