//! Decides whether the kvstore can be relied on: a quorum that takes locks, members that answer.

use std::fmt::Write as _;
use std::time::Duration;

use cilia_runtime::config::duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::keys;
use crate::members::Members;
use crate::messages::{StatusRequest, StatusResponse};

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
/// How long a quorum may take to give a lock, unless [`CHECK_VARIABLE`] says so.
const CHECK: Duration = Duration::from_secs(10);
const CHECK_VARIABLE: &str = "CILIUM_ETCD_STATUS_CHECK_INTERVAL";
const INTERVAL: Duration = Duration::from_secs(30);
const INTERVAL_WITH_FAILURES: Duration = Duration::from_secs(5);

/// How the kvstore is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether it can be relied on.
    pub ok: bool,
    /// As `cilium status` shows it.
    pub message: String,
}

impl Default for Health {
    fn default() -> Self {
        Self { ok: false, message: "Waiting for initial connection to be established".into() }
    }
}

/// A member's answer.
#[derive(Debug, Clone)]
struct Member {
    url: String,
    answer: Result<(String, bool), String>,
}

/// Looks after a client's etcd; clones share it.
#[derive(Debug, Clone)]
pub struct Watchdog {
    client: Client,
    /// The path of its own that it locks.
    path: String,
    /// Quorum errors in a row that are not yet a failure.
    tolerated: u64,
    /// How long a quorum may take to give a lock.
    within: Duration,
    health: watch::Sender<Health>,
}

impl Watchdog {
    /// For this client, with `kvstore-max-consecutive-quorum-errors`.
    pub fn new(client: Client, tolerated: u64) -> Self {
        let path = format!("{}/{:x}", keys::INIT_LOCK, rand::random::<u64>());
        let within = within(std::env::var(CHECK_VARIABLE).ok().as_deref());
        Self { client, path, tolerated, within, health: watch::Sender::default() }
    }

    /// How the kvstore is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Looks again and again until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut errors = 0;
        loop {
            let Some((quorum, members)) = stop.run_until_cancelled(self.look()).await else {
                return;
            };
            errors = if quorum.is_ok() {
                0
            } else {
                self.client.0.sync.quorum_error("lock timeout");
                errors + 1
            };
            let leases = self.client.lease_counts();
            let health = judge(&quorum, errors, self.tolerated, &members, leases);
            self.health.send_if_modified(|known| {
                if known.ok != health.ok {
                    let Health { ok, message } = &health;
                    if *ok {
                        tracing::info!(message, "kvstore");
                    } else {
                        tracing::warn!(message, "kvstore");
                    }
                }
                std::mem::replace(known, health.clone()) != health
            });
            let well = errors == 0 && members.iter().all(|member| member.answer.is_ok());
            let pause = if well { INTERVAL } else { INTERVAL_WITH_FAILURES };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    async fn look(&self) -> (Result<(), String>, Vec<Member>) {
        self.client.0.connection.refresh();
        let quorum = async {
            let proved = self.client.prove_quorum(&self.path).await;
            proved.map_err(|error| format!("unable to acquire lock: {error}"))
        };
        let timed_out =
            Err(format!("unable to acquire lock: not within {} s", self.within.as_secs()));
        let quorum = tokio::time::timeout(self.within, quorum).await.unwrap_or(timed_out);
        let connection = &self.client.0.connection;
        let members = connection.members().ok();
        let asked = members.iter().flat_map(Members::all).map(|member| async move {
            let answer =
                connection.ask_member::<_, StatusResponse>(&member, STATUS, StatusRequest {}).await;
            let answer = answer.map_err(|status| status.message().to_owned());
            let leads = |status: &StatusResponse| {
                status.header.as_ref().is_some_and(|header| header.member_id == status.leader)
            };
            Member {
                url: member.url().to_owned(),
                answer: answer.map(|status| (status.version.clone(), leads(&status))),
            }
        });
        (quorum, futures::future::join_all(asked).await)
    }
}

/// What [`CHECK_VARIABLE`] says, if that is a time.
fn within(said: Option<&str>) -> Duration {
    let Some(said) = said.filter(|said| !said.is_empty()) else { return CHECK };
    let time = duration::parse(said).filter(|time| !time.is_zero());
    time.unwrap_or_else(|| {
        tracing::warn!(said, "{CHECK_VARIABLE} is no duration such as 10s, which is taken");
        CHECK
    })
}

fn judge(
    quorum: &Result<(), String>,
    errors: u64,
    tolerated: u64,
    members: &[Member],
    (leases, lock_leases): (usize, usize),
) -> Health {
    let answering = members.iter().filter(|member| member.answer.is_ok()).count();
    if let Err(error) = quorum
        && members.is_empty()
    {
        // There is no file that says who they are.
        return Health { ok: false, message: error.clone() };
    }
    if let Err(error) = quorum
        && errors > tolerated
    {
        let message = format!("Err: quorum check failed {errors} times in a row: {error}");
        return Health { ok: false, message };
    }
    if answering == 0 {
        return Health {
            ok: false,
            message: "Err: not able to connect to any etcd endpoints".into(),
        };
    }
    let has = match quorum {
        Ok(()) => "true".to_owned(),
        Err(error) => format!("{error}, consecutive-errors={errors}"),
    };
    let mut message = format!(
        "etcd: {answering}/{} connected, leases={leases}, lock leases={lock_leases}, has-quorum={has}: ",
        members.len()
    );
    for (index, Member { url, answer }) in members.iter().enumerate() {
        let separator = if index > 0 { "; " } else { "" };
        // Writing to a string cannot fail.
        let _ = match answer {
            Ok((version, leads)) => {
                write!(
                    message,
                    "{separator}{url} - {version}{}",
                    if *leads { " (Leader)" } else { "" }
                )
            }
            Err(error) => write!(message, "{separator}{url} - {error}"),
        };
    }
    Health { ok: true, message }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Member, judge, within};

    #[test]
    fn a_variable_says_how_long_a_quorum_may_take() {
        for (said, want) in [(None, 10), (Some(""), 10), (Some("soon"), 10), (Some("1m"), 60)] {
            assert_eq!(within(said), Duration::from_secs(want), "{said:?}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let member = |url: &str, answer: Result<(&str, bool), &str>| Member {
            url: url.into(),
            answer: answer.map(|(version, leads)| (version.into(), leads)).map_err(Into::into),
        };
        let up = [member("http://a:1", Ok(("3.6.0", true))), member("http://b:1", Err("refused"))];
        let down = [member("http://a:1", Err("refused"))];
        let none: Result<(), String> = Err("no leader".into());
        for (quorum, errors, members, ok, want) in [
            (
                Ok(()),
                0,
                &up[..],
                true,
                "etcd: 1/2 connected, leases=1, lock leases=2, has-quorum=true: http://a:1 - 3.6.0 (Leader); http://b:1 - refused",
            ),
            (none.clone(), 1, &up[..], true, "has-quorum=no leader, consecutive-errors=1"),
            (
                none.clone(),
                3,
                &up[..],
                false,
                "Err: quorum check failed 3 times in a row: no leader",
            ),
            (none.clone(), 1, &[], false, "no leader"),
            (none, 2, &down[..], false, "Err: not able to connect to any etcd endpoints"),
        ] {
            let health = judge(&quorum, errors, 2, members, (1, 2));
            assert_eq!(health.ok, ok, "{health:?}");
            assert!(health.message.contains(want), "{} lacks {want}", health.message);
        }
    }
}
