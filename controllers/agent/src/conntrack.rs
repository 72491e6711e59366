//! Decides how often connections that are over are taken out of the datapath's tables, and does it.
//!
//! The more there was to take out, the sooner the next time comes.

use std::sync::Arc;
use std::time::Duration;

use cilia_loader::{Collected, Conntrack, Datapath};
use cilia_runtime::config::Config as Flags;
use cilia_runtime::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

const START: Duration = Duration::from_mins(5);
const LEAST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_hours(12);

/// When to collect next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    interval: Duration,
    /// The user has said how often (`conntrack-gc-interval`).
    fixed: bool,
    most: Duration,
}

impl Pace {
    /// What the flags ask for.
    pub fn read(flags: &Flags) -> Self {
        let set = |flag: &str| Some(flags.duration(flag)).filter(|time| !time.is_zero());
        let (fixed, most) = (set("conntrack-gc-interval"), set("conntrack-gc-max-interval"));
        Self {
            interval: fixed.unwrap_or(START),
            fixed: fixed.is_some(),
            most: most.unwrap_or(MOST).max(LEAST),
        }
    }

    /// After a run that has found this.
    fn after(self, collected: Collected) -> Self {
        if self.fixed || collected.scanned == 0 {
            return self;
        }
        let percent = (100 * collected.removed / collected.scanned).min(90);
        let percent = u32::try_from(percent).unwrap_or(90);
        let interval = match percent {
            26.. => self.interval * (100 - percent) / 100,
            0..5 => self.interval * 3 / 2,
            _ => self.interval,
        };
        Self { interval: interval.clamp(LEAST, self.most), ..self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    global: String,
}

/// Collects until `stop`.
pub async fn collect(
    mut pace: Pace,
    datapath: Arc<Datapath>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let interval = Family::<Labels, Gauge>::default();
    metrics.register(
        "datapath_conntrack_gc_interval_seconds",
        "Seconds between two runs of the collection of expired connections",
        interval.clone(),
    );
    let interval = interval.get_or_create_owned(&Labels { global: "global".to_owned() });
    loop {
        interval.set(i64::try_from(pace.interval.as_secs()).unwrap_or(i64::MAX));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pace.interval) => {}
        }
        // The tables may be large: they are read on a thread of its own.
        let tables = datapath.conntrack();
        let run = tokio::task::spawn_blocking(move || tables.gc(Conntrack::now())).await;
        match run {
            Ok(Ok(collected)) => {
                tracing::debug!(?collected, "expired connections removed");
                pace = pace.after(collected);
            }
            Ok(Err(error)) => tracing::warn!(%error, "expired connections not removed"),
            Err(error) => tracing::warn!(%error, "expired connections not removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_loader::Collected;
    use cilia_runtime::config::{Config, Flags};

    use super::{LEAST, MOST, Pace, START};

    fn pace(args: &[&str]) -> Pace {
        let args = args.iter().map(ToString::to_string);
        Pace::read(&Config::load(Flags::agent(), args, []).unwrap())
    }

    #[test]
    fn the_more_was_over_the_sooner_it_is_looked_again() {
        let cases: &[(&str, usize, usize, Duration)] = &[
            ("an empty table says nothing", 0, 0, START),
            ("nothing was over", 1000, 0, START * 3 / 2),
            ("some was", 1000, 100, START),
            ("half was", 1000, 500, START / 2),
            ("all was", 1000, 1000, START / 10),
        ];
        for &(name, scanned, removed, want) in cases {
            let next = pace(&[]).after(Collected { scanned, removed });
            assert_eq!(next.interval, want, "{name}");
        }
        let (mut busy, mut idle) = (pace(&[]), pace(&[]));
        for _ in 0..50 {
            busy = busy.after(Collected { scanned: 10, removed: 10 });
            idle = idle.after(Collected { scanned: 10, removed: 0 });
        }
        assert_eq!((busy.interval, idle.interval), (LEAST, MOST));
    }

    #[test]
    fn the_user_s_word_counts() {
        let fixed = pace(&["--conntrack-gc-interval=1m"]);
        assert_eq!(fixed.interval, Duration::from_mins(1));
        assert_eq!(fixed.after(Collected { scanned: 10, removed: 10 }), fixed);
        let most = pace(&["--conntrack-gc-max-interval=6m"]);
        let next = most.after(Collected { scanned: 10, removed: 0 });
        assert_eq!(next.interval, Duration::from_mins(6));
    }
}
