//! Decides which limits a call has: those of Cilium, and what `api-rate-limit` changes of them.

use std::collections::BTreeMap;
use std::time::Duration;

use cilia_runtime::config::{Config, Error, duration};

const FLAG: &str = "api-rate-limit";
/// The call that the plugin does not make: its way of making endpoints is not limited.
const CREATE: &str = "endpoint-create";

/// What limits a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) struct Limit {
    /// Requests per second.
    pub(super) rate: Option<f64>,
    /// Requests that may come at once after a pause.
    pub(super) burst: u32,
    /// Requests that are answered at once.
    pub(super) parallel: Option<usize>,
    pub(super) least_parallel: usize,
    pub(super) most_parallel: Option<usize>,
    /// So many requests after the start are not limited.
    pub(super) skip_initial: u64,
    pub(super) shortest_wait: Duration,
    /// Who would have to wait longer is refused.
    pub(super) longest_wait: Duration,
    /// Whether limits follow how long answers take, compared with `estimated`.
    pub(super) auto_adjust: bool,
    pub(super) estimated: Duration,
    /// So many answers make a mean.
    pub(super) mean_over: usize,
    /// Which part of an adjustment is made.
    pub(super) delayed_adjustment: f64,
    /// Limits grow and shrink by this factor at most.
    pub(super) most_adjustment: f64,
    /// Whether each request is logged.
    pub(super) log: bool,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            rate: None,
            burst: 1,
            parallel: None,
            least_parallel: 0,
            most_parallel: None,
            skip_initial: 0,
            shortest_wait: Duration::ZERO,
            longest_wait: Duration::from_secs(30),
            auto_adjust: false,
            estimated: Duration::from_secs(1),
            mean_over: 10,
            delayed_adjustment: 0.5,
            most_adjustment: 100.0,
            log: false,
        }
    }
}

/// The limits of every call.
pub(in super::super) type Limits = BTreeMap<&'static str, Limit>;

/// The call as which an operation of the API is counted.
pub(in super::super) fn call_of(operation: &str) -> Option<&'static str> {
    match operation {
        "GetEndpoint" => Some("endpoint-list"),
        "DeleteEndpoint" | "DeleteEndpointID" => Some("endpoint-delete"),
        "PutEndpointID" => Some(CREATE),
        _ if operation.starts_with("GetEndpointID") => Some("endpoint-get"),
        _ if operation.starts_with("PatchEndpointID") => Some("endpoint-patch"),
        _ => None,
    }
}

/// What Cilium has if nothing is set.
fn defaults() -> Limits {
    let seconds = Duration::from_secs;
    let base = Limit { burst: 4, auto_adjust: true, ..Limit::default() };
    let few = Limit { parallel: Some(4), least_parallel: 2, skip_initial: 4, ..base };
    Limits::from([
        (
            CREATE,
            Limit { rate: Some(0.5), longest_wait: seconds(60), estimated: seconds(2), ..few },
        ),
        (
            "endpoint-delete",
            Limit { parallel: Some(4), estimated: Duration::from_millis(200), ..base },
        ),
        (
            "endpoint-get",
            Limit {
                rate: Some(4.0),
                longest_wait: seconds(10),
                estimated: Duration::from_millis(200),
                ..few
            },
        ),
        (
            "endpoint-patch",
            Limit { rate: Some(0.5), longest_wait: seconds(15), estimated: seconds(1), ..few },
        ),
        (
            "endpoint-list",
            Limit {
                rate: Some(1.0),
                parallel: Some(2),
                least_parallel: 2,
                estimated: Duration::from_millis(300),
                ..base
            },
        ),
    ])
}

/// The limits that the configuration asks for.
pub(in super::super) fn limits(config: &Config) -> Result<Limits, Error> {
    read(config.string(FLAG)).map_err(|why| config.reject(FLAG, why))
}

/// Whether the configuration asks for limits that can be; an error names what it can't mean. What it limits without
/// effect is logged.
pub fn check(config: &Config) -> Result<(), Error> {
    limits(config)?;
    // What can't be read was an error already.
    if calls(config.string(FLAG)).is_ok_and(|calls| calls.contains_key(CREATE)) {
        tracing::warn!(
            "{FLAG}: {CREATE} limits who makes endpoints by this API: the CNI plugin's requests are not limited"
        );
    }
    Ok(())
}

fn read(text: &str) -> Result<Limits, String> {
    let mut limits = defaults();
    for (call, changes) in calls(text)? {
        let known: Vec<&str> = limits.keys().copied().collect();
        let limit = limits
            .get_mut(call.as_str())
            .ok_or_else(|| format!("for {call:?}: calls are {}", known.join(", ")))?;
        for change in changes.split(',').map(str::trim).filter(|change| !change.is_empty()) {
            let set = change.split_once(':').and_then(|(key, value)| set(limit, key, value));
            set.ok_or_else(|| {
                format!("in {call}: {change:?} is none of rate-limit:10/s, rate-burst:N, parallel-requests:N, max-wait-duration:10s and the like")
            })?;
        }
    }
    Ok(limits)
}

/// Calls with what is set for them: `call=key:value,key:value,call=...`, or an object of JSON.
fn calls(text: &str) -> Result<BTreeMap<String, String>, String> {
    let text = text.trim();
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|error| format!("an object of texts: {error}"));
    }
    let mut calls: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let change = match part.split_once('=') {
            Some((call, change)) => {
                last = Some(call.trim().to_owned());
                change
            }
            None => part,
        };
        let call = last.clone().ok_or("call=key:value")?;
        let changes = calls.entry(call).or_default();
        changes.push_str(change);
        changes.push(',');
    }
    Ok(calls)
}

/// Changes one setting; nothing if there is no such one, or if the value can't be.
fn set(limit: &mut Limit, key: &str, value: &str) -> Option<()> {
    let positive = || value.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    match key {
        "rate-limit" => limit.rate = Some(rate(value)?),
        "rate-burst" => limit.burst = value.parse().ok().filter(|burst| *burst > 0)?,
        "parallel-requests" => {
            limit.parallel = Some(value.parse().ok()?).filter(|places| *places > 0);
        }
        "min-parallel-requests" => limit.least_parallel = value.parse().ok()?,
        "max-parallel-requests" => {
            limit.most_parallel = Some(value.parse().ok()?).filter(|places| *places > 0);
        }
        "skip-initial" => limit.skip_initial = value.parse().ok()?,
        "min-wait-duration" => limit.shortest_wait = duration::parse(value)?,
        "max-wait-duration" => limit.longest_wait = duration::parse(value)?,
        "estimated-processing-duration" => limit.estimated = duration::parse(value)?,
        "auto-adjust" => limit.auto_adjust = value.parse().ok()?,
        "mean-over" => limit.mean_over = value.parse().ok()?,
        "delayed-adjustment-factor" => limit.delayed_adjustment = positive()?,
        "max-adjustment-factor" => limit.most_adjustment = positive()?,
        "log" => limit.log = value.parse().ok()?,
        _ => return None,
    }
    Some(())
}

/// Requests per second of `10/s`, `5/m` or `3/10s`.
fn rate(text: &str) -> Option<f64> {
    let (count, per) = text.split_once('/')?;
    let count: f64 = count.trim().parse().ok()?;
    let per = per.trim();
    let per = duration::parse(per).or_else(|| duration::parse(&format!("1{per}")))?;
    let rate = count / per.as_secs_f64();
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{defaults, rate, read};

    #[test]
    fn settings_change_single_limits() {
        assert_eq!(read(""), Ok(defaults()));
        let text = "endpoint-get=rate-limit:10/m,rate-burst:2,endpoint-list=max-wait-duration:5s";
        let changed = read(text).expect(text);
        let get = changed["endpoint-get"];
        assert_eq!((get.rate, get.burst, get.parallel), (Some(10.0 / 60.0), 2, Some(4)));
        assert_eq!(changed["endpoint-list"].longest_wait, Duration::from_secs(5));
        assert_eq!(changed["endpoint-patch"], defaults()["endpoint-patch"]);
        assert!(read("endpoint-get=log:true").expect("a log")["endpoint-get"].log);
        let json = r#"{"endpoint-get": "rate-limit:10/m,rate-burst:2", "endpoint-list": "max-wait-duration:5s"}"#;
        assert_eq!(read(json), Ok(changed));
        for wrong in [
            "endpoint-eat=rate-limit:1/s",
            "rate-limit:1/s",
            "endpoint-get=rate-limit:0/s",
            "endpoint-get=rate-limit:x",
            "endpoint-get=colour:red",
            "endpoint-get=rate-burst:0",
            "{\"endpoint-get\": 7}",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(rate("3/10s"), Some(0.3));
        assert_eq!(rate("1/h"), Some(1.0 / 3600.0));
    }
}
