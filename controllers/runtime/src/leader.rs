//! Decides which replica works: the one that holds the Lease, and for how long it may believe so.
//!
//! Interoperates with client-go's holders. A standby watches the Lease instead of polling it, so it
//! takes over at once when the leader stops cleanly. Every write carries the Lease's
//! resourceVersion. A leader counts its right to lead from before it sent its last good renewal, so it
//! always ends before others may take the Lease.

mod leadership;
mod record;
mod settings;

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use leadership::Leadership;
pub use settings::Settings;

use crate::watch::{Event, Scope, watch_scoped};
use record::{Seen, Turn};

/// How long what is under way may take to end after a stop, before the Lease is given up.
const LAST_WORK: Duration = Duration::from_millis(1200);
/// How long giving up the Lease may take.
const RELEASE: Duration = Duration::from_millis(700);

/// Why leadership ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another replica has the Lease.
    #[error("Leader election lost: lease {lease} is now held by {holder:?}")]
    Taken {
        /// Namespace and name.
        lease: String,
        /// The other one's identity.
        holder: String,
    },
    /// The Lease could not be renewed in time.
    #[error(
        "Leader election lost: lease {lease} was not renewed for {deadline:?}, last failure: {cause}"
    )]
    NotRenewed {
        /// Namespace and name.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
        /// The last failure.
        cause: String,
    },
}

/// Why one request about the Lease did not do what it should.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer in time")]
    Timeout,
    #[error("changed meanwhile")]
    Conflict,
    #[error("{0}")]
    Request(#[from] kube::Error),
}

impl Failure {
    /// Whether somebody must hear of it: missing rights stay missing, and what has lasted longer than a
    /// Lease keeps this replica from ever leading.
    fn is_grave(&self, lasting: Duration, lease_duration: Duration) -> bool {
        let refused = matches!(
            self,
            Self::Request(kube::Error::Api(status)) if matches!(status.code, 401 | 403)
        );
        refused || lasting > lease_duration
    }
}

/// A candidate for leadership.
#[derive(Debug)]
pub struct Elector {
    leases: Api<Lease>,
    settings: Settings,
    leadership: Leadership,
}

impl Elector {
    /// A candidate. `client` is best one of its own, without a rate limit and without retries.
    pub fn new(client: Client, settings: Settings) -> Self {
        let leases = Api::namespaced(client, &settings.namespace);
        Self { leases, settings, leadership: Leadership::until(Instant::now()) }
    }

    /// The leadership that this candidate may come to hold: for what is set up before.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Waits to lead, then does `work` and keeps the Lease until it ends.
    ///
    /// `work` shall end soon after `stop` is cancelled; then the Lease is released. `None` if `stop`
    /// came first or `work` did not end. When leadership is lost, `work` is dropped and that is an error:
    /// the process must end, since it cannot know what is still under way.
    pub async fn run<T>(
        &self,
        stop: &CancellationToken,
        work: impl AsyncFnOnce(Leadership) -> T,
    ) -> Result<Option<T>, Error> {
        let acquired = tokio::select! {
            () = stop.cancelled() => None,
            acquired = self.acquire() => Some(acquired),
        };
        let Some((leadership, mut seen)) = acquired else { return Ok(None) };
        info!(lease = %self.lease(), identity = self.settings.identity, "leading");
        let output = {
            let stopped = async {
                stop.cancelled().await;
                sleep(LAST_WORK).await;
            };
            tokio::select! {
                output = work(leadership.clone()) => Some(output),
                lost = self.keep(&leadership, &mut seen) => {
                    leadership.end();
                    return Err(lost);
                }
                () = stopped => {
                    warn!("work did not end in time after the stop");
                    None
                }
            }
        };
        leadership.end();
        self.release(&seen).await;
        Ok(output)
    }

    /// Waits until the Lease is ours.
    async fn acquire(&self) -> (Leadership, Seen) {
        let scope =
            Scope { fields: format!("metadata.name={}", self.settings.name), ..Scope::default() };
        let mut events = pin!(watch_scoped(self.leases.clone(), scope));
        let mut seen: Option<Seen> = None;
        // Nothing is known yet: ask rather than take.
        let mut known = false;
        let mut try_at = Instant::now();
        let mut failing: Option<Instant> = None;
        loop {
            let turn = match &seen {
                _ if !known => Turn::Take,
                Some(seen) => seen.turn(&self.settings.identity, Instant::now().into_std()),
                None => Turn::Take,
            };
            // A holder renews every retry period. If that is not heard of, look: the watch may be dead.
            let silence = Instant::now() + self.settings.retry_period * 2;
            let wake = match turn {
                Turn::Take => try_at,
                Turn::Wait(until) => Instant::from_std(until).min(silence),
            };
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Applied(lease)) => {
                        (seen, known) = (Some(read(seen.as_ref(), lease)), true);
                        self.report(seen.as_ref());
                    }
                    Some(Event::Deleted(_)) => (seen, known) = (None, true),
                    Some(Event::Synced) => known = true,
                    None => {}
                },
                () = sleep_until(wake) => {
                    try_at = Instant::now() + self.settings.retry_period;
                    match self.look_and_take(&mut seen).await {
                        Ok(Some(acquired)) => return acquired,
                        Ok(None) => (known, failing) = (true, None),
                        Err(Failure::Conflict) => {
                            failing = None;
                            debug!(lease = %self.lease(), "another was faster");
                        }
                        Err(error) => {
                            let since = *failing.get_or_insert_with(Instant::now);
                            self.report_failure(&error, since.elapsed());
                        }
                    }
                }
            }
        }
    }

    /// Reads the Lease and takes it if it is free.
    async fn look_and_take(
        &self,
        seen: &mut Option<Seen>,
    ) -> Result<Option<(Leadership, Seen)>, Failure> {
        *seen = self
            .within(self.leases.get_opt(&self.settings.name))
            .await?
            .map(|lease| read(seen.as_ref(), lease));
        let now = Instant::now().into_std();
        if seen.as_ref().is_some_and(|seen| seen.turn(&self.settings.identity, now) != Turn::Take) {
            return Ok(None);
        }
        let sent = Instant::now();
        let cut_off = seen.as_ref().is_some_and(Seen::is_held);
        let ours = self.write(seen.as_ref()).await?;
        self.leadership.set_cut_off(cut_off);
        self.leadership.extend(sent + self.settings.renew_deadline);
        Ok(Some((self.leadership.clone(), ours)))
    }

    /// Renews the Lease until that fails for too long.
    async fn keep(&self, leadership: &Leadership, seen: &mut Seen) -> Error {
        let mut cause = "none".to_string();
        loop {
            let next = Instant::now() + self.settings.retry_period;
            sleep_until(next.min(leadership.deadline())).await;
            // After a freeze the deadline is over although no renewal failed.
            if !leadership.held() {
                let deadline = self.settings.renew_deadline;
                return Error::NotRenewed { lease: self.lease(), deadline, cause };
            }
            let sent = Instant::now();
            match timeout_at(leadership.deadline(), self.renew(seen)).await {
                Ok(Ok(())) => leadership.extend(sent + self.settings.renew_deadline),
                Ok(Err(Lost::Taken(holder))) => {
                    return Error::Taken { lease: self.lease(), holder };
                }
                Ok(Err(Lost::NotNow(error))) => {
                    warn!(lease = %self.lease(), %error, "lease not renewed, will be retried");
                    cause = error.to_string();
                }
                Err(_) => cause = Failure::Timeout.to_string(),
            }
        }
    }

    /// Renews once; looks who has the Lease if somebody wrote it meanwhile.
    async fn renew(&self, seen: &mut Seen) -> Result<(), Lost> {
        let failure = match self.write(Some(seen)).await {
            Ok(ours) => {
                *seen = ours;
                return Ok(());
            }
            Err(failure @ (Failure::Conflict | Failure::Request(_))) => failure,
            Err(failure) => return Err(Lost::NotNow(failure)),
        };
        // Perhaps our own write of which we never heard, or the Lease was deleted.
        let Ok(lease) = self.within(self.leases.get_opt(&self.settings.name)).await else {
            return Err(Lost::NotNow(failure));
        };
        let current = lease.map(|lease| read(Some(seen), lease));
        if let Some(other) =
            current.as_ref().filter(|current| !current.held_by(&self.settings.identity))
        {
            return Err(Lost::Taken(other.spec.holder_identity.clone().unwrap_or_default()));
        }
        *seen = self.write(current.as_ref()).await.map_err(Lost::NotNow)?;
        Ok(())
    }

    /// Writes the Lease as ours over what was `seen`.
    async fn write(&self, seen: Option<&Seen>) -> Result<Seen, Failure> {
        let spec = record::held(
            seen.map(|seen| &seen.spec),
            &self.settings.identity,
            self.settings.lease_duration,
        );
        self.put(seen, spec).await
    }

    async fn put(
        &self,
        seen: Option<&Seen>,
        spec: k8s_openapi::api::coordination::v1::LeaseSpec,
    ) -> Result<Seen, Failure> {
        let named = || ObjectMeta {
            name: Some(self.settings.name.clone()),
            namespace: Some(self.settings.namespace.clone()),
            ..ObjectMeta::default()
        };
        let metadata = seen.map_or_else(named, |seen| seen.metadata.clone());
        let lease = Lease { metadata, spec: Some(spec) };
        let parameters = PostParams::default();
        let written = match seen {
            Some(_) => {
                self.within(self.leases.replace(&self.settings.name, &parameters, &lease)).await
            }
            None => self.within(self.leases.create(&parameters, &lease)).await,
        };
        Ok(read(None, written?))
    }

    /// Gives up the Lease, if it is still as we wrote it, so that another can lead at once.
    async fn release(&self, seen: &Seen) {
        let given_up = self.put(Some(seen), record::released(&seen.spec));
        match timeout(RELEASE, given_up).await {
            Ok(Ok(_)) => info!(lease = %self.lease(), "lease released"),
            Ok(Err(error)) => {
                warn!(lease = %self.lease(), %error, "lease not released: others wait until it ends");
            }
            Err(_) => {
                warn!(lease = %self.lease(), "lease not released in time: others wait until it ends");
            }
        }
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        match timeout(self.settings.request_timeout(), request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Failure::Conflict),
            Ok(Err(error)) => Err(Failure::Request(error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    fn report(&self, seen: Option<&Seen>) {
        let holder = seen.and_then(|seen| seen.spec.holder_identity.as_deref()).unwrap_or_default();
        debug!(lease = %self.lease(), holder, "standing by");
    }

    fn report_failure(&self, error: &Failure, lasting: Duration) {
        let lease = self.lease();
        if error.is_grave(lasting, self.settings.lease_duration) {
            warn!(%lease, %error, "cannot take the lease, will be retried");
        } else {
            debug!(%lease, %error, "cannot take the lease now");
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }
}

/// A Lease read just now.
fn read(before: Option<&Seen>, lease: Lease) -> Seen {
    Seen::new(before, lease, Instant::now().into_std())
}

/// Why a renewal failed.
enum Lost {
    /// For good: somebody else leads.
    Taken(String),
    /// For now.
    NotNow(Failure),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;

    use super::Failure;

    #[test]
    fn says_what_will_not_pass() {
        let answer = |code| {
            let status = Status::failure("", "").with_code(code).boxed();
            Failure::Request(kube::Error::Api(status))
        };
        let lease = Duration::from_secs(15);
        for (failure, lasting, want) in [
            (answer(403), 0, true),
            (answer(401), 0, true),
            (answer(500), 0, false),
            (answer(500), 16, true),
            (Failure::Timeout, 15, false),
            (Failure::Timeout, 16, true),
        ] {
            let lasting = Duration::from_secs(lasting);
            assert_eq!(failure.is_grave(lasting, lease), want, "{failure} for {lasting:?}");
        }
    }
}
