//! Tells how the limits of the kvstores' clients let requests in: as calls `etcd` and `etcd-<cluster>` of `api_limiter_*`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cilia_kvstore::Fared;

use super::counters::{Counters, Outcome};
use super::{Limit, Pace};

const CALL: &str = "etcd";

impl Counters {
    /// To be told of every request to the own etcd.
    pub fn of_etcd(&self) -> impl Fn(&Fared) + Send + Sync + 'static {
        let (counters, pace) = (self.clone(), Mutex::new(fresh()));
        move |fared| {
            counters.tell(CALL, &mut pace.lock().unwrap_or_else(PoisonError::into_inner), fared);
        }
    }

    /// To be told of every request to the etcd of another cluster, by its name.
    pub fn of_clusters(&self) -> impl Fn(&str, &Fared) + Send + Sync + 'static {
        let (counters, paces) =
            (self.clone(), Mutex::new(HashMap::<String, (String, Pace)>::new()));
        move |cluster, fared| {
            let mut paces = paces.lock().unwrap_or_else(PoisonError::into_inner);
            if !paces.contains_key(cluster) {
                paces.insert(cluster.to_owned(), (format!("{CALL}-{cluster}"), fresh()));
            }
            if let Some((call, pace)) = paces.get_mut(cluster) {
                counters.tell(call, pace, fared);
            }
        }
    }

    fn tell(&self, call: &str, pace: &mut Pace, fared: &Fared) {
        let (per_second, burst) = fared.rate;
        pace.limit.rate = Some(per_second);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; what is too large is cut"
        )]
        {
            pace.limit.burst = burst.ceil() as u32;
        }
        pace.limit.parallel = Some(fared.parallel);
        pace.running = fared.in_flight.saturating_sub(1);
        pace.wait_of(fared.waited);
        pace.end(fared.took, false);
        self.show(call, pace);
        self.waited(call, fared.waited);
        // As Cilium has it, which has no codes there.
        let (outcome, code) =
            if fared.well { (Outcome::Success, 200) } else { (Outcome::Fail, -1) };
        self.processed(call, outcome, code);
    }
}

fn fresh() -> Pace {
    Pace::new(Limit::default(), Instant::now())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_kvstore::Fared;
    use cilia_runtime::metrics::Metrics;

    use super::Counters;

    #[test]
    fn the_kvstore_s_rate_is_shown_as_another_limit() {
        let metrics = Metrics::new("cilium");
        let counters = Counters::register(&metrics);
        let (tell, other) = (counters.of_etcd(), counters.of_clusters());
        let fared = Fared {
            waited: Duration::from_millis(500),
            took: Duration::from_millis(250),
            well: true,
            rate: (20.0, 20.0),
            in_flight: 3,
            parallel: 20,
        };
        tell(&fared);
        tell(&Fared { well: false, ..fared });
        for cluster in ["west", "north", "west"] {
            other(cluster, &fared);
        }
        let told = metrics.render();
        for (name, labels, value) in [
            ("rate_limit", r#"value="limit""#, "20.0"),
            ("rate_limit", r#"value="burst""#, "20.0"),
            ("requests_in_flight", r#"value="in-flight""#, "2.0"),
            ("requests_in_flight", r#"value="limit""#, "20.0"),
            ("wait_duration_seconds", r#"value="mean""#, "0.5"),
            ("processing_duration_seconds", r#"value="mean""#, "0.25"),
            ("processed_requests_total", r#"outcome="success",return_code="200""#, "1"),
            ("processed_requests_total", r#"outcome="fail",return_code="-1""#, "1"),
        ] {
            let line = format!(r#"cilium_api_limiter_{name}{{api_call="etcd",{labels}}} {value}"#);
            assert!(told.lines().any(|told| told == line), "{line}\n--\n{told}");
        }
        for (cluster, count) in [("west", 2), ("north", 1)] {
            let labels =
                format!(r#"api_call="etcd-{cluster}",outcome="success",return_code="200""#);
            let line = format!("cilium_api_limiter_processed_requests_total{{{labels}}} {count}");
            assert!(told.lines().any(|told| told == line), "{line}\n--\n{told}");
        }
    }
}
