mod under_way;

use super::{Ended, Lane, Queue, Retry, Turn, Verdict};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const FAST: usize = 0;
const STANDARD: usize = 1;

fn queue(share: u32) -> Queue<&'static str> {
    let standard = Lane { delay: Duration::from_millis(500), share, ..Lane::new("standard") };
    Queue::new(vec![Lane::new("fast"), standard], retry())
}

fn retry() -> Retry {
    Retry {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(4),
        max: 4,
        recheck: Duration::from_mins(1),
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Takes what is next, as the shell does.
fn next(queue: &mut Queue<&'static str>, now: Instant) -> Option<&'static str> {
    let (lane, _) = queue.choose(now)?;
    queue.take(lane, now).map(|taken| taken.key)
}

#[test]
fn a_burst_is_one_run() {
    let (mut queue, start) = (queue(0), Instant::now());
    assert!(queue.add(STANDARD, "a", start));
    assert!(!queue.add(STANDARD, "a", start + ms(400)));
    assert_eq!(next(&mut queue, start + ms(499)), None);
    assert_eq!(queue.next_due(start), Some(start + ms(500)));
    assert_eq!(next(&mut queue, start + ms(500)), Some("a"));
    assert_eq!(next(&mut queue, start + ms(900)), None);
    queue.finish(&"a", Ended::Done, start + ms(900));
    assert!(queue.is_empty());
}

#[test]
fn a_key_waits_since_it_was_first_asked_for() {
    // CID-37: the first time counts until the key is taken, then the next.
    let (mut queue, start) = (queue(0), Instant::now());
    let take = |queue: &mut Queue<&'static str>, now| {
        queue.choose(now).and_then(|(lane, _)| queue.take(lane, now)).map(|taken| taken.since)
    };
    queue.add(STANDARD, "a", start);
    queue.add(STANDARD, "a", start + ms(400));
    assert_eq!(take(&mut queue, start + ms(600)), Some(start));
    queue.add(STANDARD, "a", start + ms(700));
    queue.add(STANDARD, "a", start + ms(800));
    queue.finish(&"a", Ended::Done, start + ms(900));
    assert_eq!(take(&mut queue, start + ms(1300)), Some(start + ms(700)));
    queue.finish(&"a", Ended::Done, start + ms(1400));
    assert_eq!(take(&mut queue, start + ms(9000)), None);
}

#[test]
fn news_during_a_run_is_one_more_run_after_it() {
    let (mut queue, start) = (queue(0), Instant::now());
    queue.add(FAST, "a", start);
    assert_eq!(next(&mut queue, start), Some("a"));
    assert!(queue.add(FAST, "a", start));
    assert!(!queue.add(FAST, "a", start));
    assert_eq!(next(&mut queue, start), None, "not twice at once");
    queue.finish(&"a", Ended::Done, start + ms(5));
    assert_eq!(next(&mut queue, start + ms(5)), Some("a"));
    queue.finish(&"a", Ended::Done, start + ms(6));
    assert_eq!(next(&mut queue, start + ms(9)), None);
}

#[test]
fn earlier_lanes_go_first_but_the_share_is_kept() {
    for (share, want) in [(0, "ffffffffss"), (4, "fffsfffsff"), (2, "fsfsffffff")] {
        let (mut queue, start) = (queue(share), Instant::now());
        for key in ["s1", "s2"] {
            queue.add(STANDARD, key, start);
        }
        let now = start + ms(600);
        for key in ["f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8"] {
            queue.add(FAST, key, now);
        }
        let order: String =
            std::iter::from_fn(|| next(&mut queue, now)).map(|key| &key[..1]).collect();
        assert_eq!(order, want, "share {share}");
    }
}

#[test]
fn an_owed_lane_leaves_nothing_to_those_that_had_their_turns() {
    let (mut queue, now) = (queue(4), Instant::now());
    queue.set_reserve(STANDARD, 9.0);
    queue.add_at(STANDARD, "s", now, now);
    for key in ["f1", "f2", "f3"] {
        assert_eq!(queue.choose(now), Some((STANDARD, 9.0)));
        queue.add(FAST, key, now);
        assert_eq!(next(&mut queue, now), Some(key));
    }
    // They come one by one and take each token before there are as many as it has to leave.
    assert_eq!(queue.choose(now), Some((STANDARD, 0.0)));
}

#[test]
fn failures_back_off_then_are_rechecked() {
    let (mut queue, mut now) = (queue(0), Instant::now());
    queue.add(FAST, "a", now);
    let mut verdicts = Vec::new();
    for _ in 0..6 {
        now = queue.next_due(now).unwrap_or(now);
        assert_eq!(next(&mut queue, now), Some("a"));
        verdicts.push(queue.finish(&"a", Ended::Failed, now));
    }
    let retry = |s| Verdict::Retry(Duration::from_secs(s));
    let given_up = Verdict::GivenUp(Duration::from_mins(1));
    assert_eq!(verdicts, [retry(1), retry(2), retry(4), retry(4), given_up, given_up]);
    queue.add(FAST, "a", now);
    assert_eq!(next(&mut queue, now), Some("a"), "news do not wait for the recheck");
    assert_eq!(queue.finish(&"a", Ended::Failed, now), retry(1), "and give it all its retries");
}

#[test]
fn a_moved_key_is_only_in_its_new_lane() {
    let (mut queue, start) = (queue(0), Instant::now());
    queue.add(STANDARD, "a", start);
    queue.move_to(FAST, &"a", start + ms(10));
    assert_eq!(queue.choose(start + ms(10)), Some((FAST, 0.0)));
    assert_eq!(next(&mut queue, start + ms(10)), Some("a"));
    queue.add(FAST, "a", start + ms(20));
    queue.move_to(STANDARD, &"a", start + ms(20));
    queue.finish(&"a", Ended::Done, start + ms(30));
    assert_eq!(
        queue.choose(start + ms(30)),
        Some((STANDARD, 0.0)),
        "due at once, in the other lane"
    );
    queue.move_to(FAST, &"unknown", start);
    queue.forget(&"a");
    assert!(queue.is_empty());
}

#[test]
fn a_lane_with_a_share_is_never_starved() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let share = random.random_range(2..6);
        let lower = |name| Lane { share, ..Lane::new(name) };
        let lanes = vec![Lane::new("first"), lower("second"), lower("third")];
        let mut queue: Queue<u32> = Queue::new(lanes, retry());
        let (now, mut next_key, mut others) = (Instant::now(), 0, [0; 3]);
        for step in 0..300 {
            for lane in 0..3 {
                // The first lane always has work, the others now and then.
                if lane == 0 || random.random_range(0..4) == 0 {
                    queue.add(lane, next_key, now);
                    next_key += 1;
                }
            }
            let waiting = [1, 2].map(|lane| queue.depth(lane, now) > 0);
            let (lane, _) = queue.choose(now).unwrap();
            let taken = queue.take(lane, now).unwrap();
            queue.finish(&taken.key, Ended::Done, now);
            for other in [1, 2] {
                others[other] =
                    if other == lane || !waiting[other - 1] { 0 } else { others[other] + 1 };
                // Two lanes with the same share may be owed at the same moment.
                assert!(
                    others[other] <= share,
                    "seed {seed} step {step}: lane {other} waits for {others:?}"
                );
            }
        }
    }
}

/// The rules again, as slowly and plainly as possible.
#[derive(Default)]
struct Model {
    keys: Vec<ModelKey>,
    sequence: u64,
}

#[derive(Clone)]
struct ModelKey {
    key: u8,
    lane: usize,
    due: Option<Instant>,
    sequence: u64,
    running: bool,
    failures: u32,
    given_up: bool,
}

impl Model {
    fn add(&mut self, lane: usize, key: u8, due: Instant) {
        self.sequence += 1;
        let sequence = self.sequence;
        match self.keys.iter_mut().find(|k| k.key == key) {
            None => self.keys.push(ModelKey {
                key,
                lane,
                due: Some(due),
                sequence,
                running: false,
                failures: 0,
                given_up: false,
            }),
            Some(old) => {
                old.lane = lane;
                old.due = Some(old.due.map_or(due, |d| d.min(due)));
                if old.given_up {
                    (old.failures, old.given_up) = (0, false);
                }
            }
        }
    }

    fn first(&self, now: Instant) -> Option<u8> {
        let ready = self.keys.iter().filter(|k| !k.running && k.due.is_some_and(|due| due <= now));
        ready.min_by_key(|k| (k.lane, k.due, k.sequence)).map(|k| k.key)
    }

    fn finish(&mut self, key: u8, ended: Ended, now: Instant, retry: &Retry) {
        self.sequence += 1;
        let at = self.keys.iter().position(|k| k.key == key).unwrap();
        let entry = &mut self.keys[at];
        entry.running = false;
        entry.sequence = self.sequence;
        let wait = match ended {
            Ended::Done => None,
            Ended::After(wait) => Some(wait),
            Ended::Failed if entry.failures < retry.max => {
                Some(retry.cap.min(retry.base * 2u32.pow(entry.failures)))
            }
            Ended::Failed => Some(retry.recheck),
        };
        match ended {
            Ended::Failed if entry.failures < retry.max => entry.failures += 1,
            Ended::Failed if entry.due.is_none() => entry.given_up = true,
            _ => entry.failures = 0,
        }
        entry.due = [entry.due, wait.map(|wait| now + wait)].into_iter().flatten().min();
        if entry.due.is_none() {
            self.keys.remove(at);
        }
    }
}

#[test]
fn behaves_like_the_model() {
    for seed in 0..3_000 {
        let mut random = StdRng::seed_from_u64(seed);
        let standard = Lane { delay: ms(500), ..Lane::new("standard") };
        let mut queue: Queue<u8> = Queue::new(vec![Lane::new("fast"), standard], retry());
        let mut model = Model::default();
        let mut now = Instant::now();
        let mut running: Vec<u8> = Vec::new();
        for step in 0..120 {
            let (key, lane) = (random.random_range(0..6), random.random_range(0..2));
            match random.random_range(0..10) {
                0..=2 => {
                    queue.add(lane, key, now);
                    model.add(lane, key, now + if lane == STANDARD { ms(500) } else { ms(0) });
                }
                3 => {
                    let due = now + ms(random.random_range(0..3_000));
                    queue.add_at(lane, key, due, now);
                    model.add(lane, key, due);
                }
                4 => {
                    queue.move_to(lane, &key, now);
                    let soonest = now + if lane == STANDARD { ms(500) } else { ms(0) };
                    if let Some(entry) =
                        model.keys.iter_mut().find(|k| k.key == key && k.lane != lane)
                    {
                        entry.lane = lane;
                        if entry.failures == 0 {
                            entry.due = entry.due.map(|due| due.min(soonest));
                        }
                    }
                }
                5 | 6 => {
                    let taken = queue
                        .choose(now)
                        .and_then(|(lane, _)| queue.take(lane, now))
                        .map(|t| t.key);
                    assert_eq!(taken, model.first(now), "seed {seed} step {step}");
                    if let Some(key) = taken {
                        assert!(
                            !running.contains(&key),
                            "seed {seed} step {step}: {key} runs twice"
                        );
                        running.push(key);
                        let entry = model.keys.iter_mut().find(|k| k.key == key).unwrap();
                        (entry.running, entry.due) = (true, None);
                    }
                }
                7 | 8 if !running.is_empty() => {
                    let key = running.swap_remove(random.random_range(0..running.len()));
                    let ended = match random.random_range(0..4) {
                        0 => Ended::After(ms(random.random_range(0..2_000))),
                        1 => Ended::Done,
                        _ => Ended::Failed,
                    };
                    queue.finish(&key, ended, now);
                    model.finish(key, ended, now, &retry());
                }
                _ => now += ms(random.random_range(0..2_000)),
            }
            let due = model
                .keys
                .iter()
                .filter(|k| !k.running)
                .filter_map(|k| k.due)
                .filter(|&due| due > now)
                .min();
            assert_eq!(queue.next_due(now), due, "seed {seed} step {step}");
        }
        // Whatever happened, everything asked for is run in the end.
        for key in running {
            queue.finish(&key, Ended::Done, now);
        }
        let mut left: HashSet<u8> =
            [FAST, STANDARD].iter().flat_map(|&lane| queue.keys(lane)).copied().collect();
        now += Duration::from_hours(1);
        while let Some((lane, _)) = queue.choose(now) {
            let key = queue.take(lane, now).unwrap().key;
            queue.finish(&key, Ended::Done, now);
            left.remove(&key);
        }
        assert!(left.is_empty() && queue.is_empty(), "seed {seed}: {left:?}");
    }
}

#[test]
fn a_key_goes_when_it_is_its_turn() {
    let (mut queue, start) = (queue(0), Instant::now());
    for key in ["early", "heavy", "light"] {
        queue.add(FAST, key, start);
    }
    let turn = |late: u64| {
        move |key: &&str| match *key {
            "early" => Turn::In(ms(late)),
            "heavy" => Turn::Now(2),
            _ => Turn::Now(1),
        }
    };
    let mut take = |late| queue.take_by(FAST, start, turn(late)).map(|taken| taken.key);
    assert_eq!([take(70), take(60), take(50)], [Ok("heavy"), Ok("light"), Err(Some(ms(50)))]);
    assert_eq!(queue.take(FAST, start).map(|taken| taken.key), Some("early"));
    assert_eq!(queue.take_by(FAST, start, turn(40)).err(), Some(None), "nothing is ready");
}
