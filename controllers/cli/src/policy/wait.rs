//! `cilia policy wait`: returns once a revision of the policies is in place at every endpoint of a node.

use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::Value;

use crate::access::duration;
use crate::agent::Agent;
use crate::output::{items, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The revision, as cilia policy get shows it
    revision: u64,
    /// How long to wait for an endpoint whose policy can't be put in place
    #[arg(long, default_value = "60", value_name = "DURATION", value_parser = duration)]
    fail_wait_time: Duration,
    /// How long to wait at most
    #[arg(long, default_value = "360", value_name = "DURATION", value_parser = duration)]
    max_wait_time: Duration,
    /// How long to wait before asking again
    #[arg(long, default_value = "1", value_name = "DURATION", value_parser = duration)]
    sleep_time: Duration,
}

pub(super) async fn run(agent: &Agent, arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut failing: Option<Instant> = None;
    loop {
        let endpoints = agent.get("/v1/endpoint").await?;
        let behind = behind(items(&endpoints), arguments.revision);
        if behind.is_empty() {
            println!(
                "all endpoints have revision {} of the policies, or a later one",
                arguments.revision
            );
            return Ok(());
        }
        let is_failing = behind.iter().any(|one| one.failed);
        failing = is_failing.then(|| failing.unwrap_or_else(Instant::now));
        let failed = failing.is_some_and(|since| since.elapsed() >= arguments.fail_wait_time);
        if failed || started.elapsed() >= arguments.max_wait_time {
            let which: Vec<&str> = behind.iter().map(|one| one.said.as_str()).collect();
            bail!(
                "revision {} is not in place after {:.0?} at endpoints {}; see cilia endpoint log, and cilia \
                 policy get for the revision that there is",
                arguments.revision,
                started.elapsed(),
                which.join("; ")
            );
        }
        tokio::time::sleep(arguments.sleep_time.max(Duration::from_millis(100))).await;
    }
}

/// An endpoint that does not have the revision yet.
#[derive(Debug, PartialEq, Eq)]
struct Behind {
    said: String,
    failed: bool,
}

fn behind(endpoints: &[Value], revision: u64) -> Vec<Behind> {
    let one = |endpoint: &Value| {
        let status = &endpoint["status"];
        let (state, policy) = (text(&status["state"]), &status["policy"]["realized"]);
        let has = policy["policy-revision"].as_u64().unwrap_or(0);
        let leaves = matches!(state.as_str(), "disconnecting" | "disconnected");
        let fault = text(&policy["error"]);
        let late = !leaves && (has < revision || !fault.is_empty());
        late.then(|| {
            let why = if fault.is_empty() { state } else { fault };
            let failed = policy["error"].is_string();
            Behind { said: format!("{} (revision {has}: {why})", text(&endpoint["id"])), failed }
        })
    };
    endpoints.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Behind, behind};

    #[test]
    fn endpoints_are_waited_for_until_they_have_it() {
        let endpoint = |id: u16, state: &str, revision: u64, error: Option<&str>| json!({"id": id, "status": {"state": state, "policy": {"realized": {"policy-revision": revision, "error": error}}}});
        let endpoints = [
            endpoint(1, "ready", 5, None),
            endpoint(2, "waiting-to-regenerate", 4, None),
            endpoint(3, "disconnecting", 1, None),
            endpoint(4, "ready", 5, Some("map full")),
        ];
        let late = |said: &str, failed| Behind { said: said.to_owned(), failed };
        let want = [
            late("2 (revision 4: waiting-to-regenerate)", false),
            late("4 (revision 5: map full)", true),
        ];
        assert_eq!(behind(&endpoints, 5), want);
        assert_eq!(behind(&endpoints[..1], 5), []);
        assert_eq!(behind(&[], 5), []);
    }
}
