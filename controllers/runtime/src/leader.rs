//! Decides which replica works: the one that holds the Lease, and for how long it may believe so.
//!
//! Interoperates with client-go's holders. A standby watches the Lease instead of polling it, so it
//! takes over at once when the leader stops cleanly, and in the moment in which the Lease of one that
//! was killed ends. Every write carries the Lease's resourceVersion. A leader counts its right to lead
//! from before it sent its last good renewal, so it always ends before others may take the Lease.
//!
//! A slow API server is waited for: a renewal without an answer is not given up, but accompanied by
//! another one after half the retry period. Each is on a connection of its own, so one that hangs holds
//! up no other, and after half the renew deadline it is given up. So a leader survives answers that take
//! almost that long each: a renewal counts from when it was sent, and the next one needs its answer.

mod error;
mod leadership;
mod record;
mod settings;

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use error::Error;
pub use leadership::{Leadership, OpenWrite};
pub use settings::Settings;

use crate::watch::{Event, Scope, watch_scoped};
use error::{Failure, Lost};
use record::{Seen, Turn};

/// How long what is under way may take to end after a stop, before the Lease is given up.
const LAST_WORK: Duration = Duration::from_millis(1200);
/// A candidate that was too slow looks again after this time.
const AFTER_CONFLICT: Duration = Duration::from_millis(20);
/// How long giving up the Lease may take.
const RELEASE: Duration = Duration::from_millis(700);

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
        self.release(&seen, output.is_none() || leadership.may_still_write()).await;
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
                    let now = Instant::now();
                    try_at = now + self.settings.retry_period;
                    // The version guards the write: who knows the Lease need not ask before.
                    let free = known && seen.as_ref().is_none_or(|seen| self.may_take(seen));
                    let taken = if free {
                        self.take(seen.as_ref()).await.map(Some)
                    } else {
                        self.look_and_take(&mut seen).await
                    };
                    match taken {
                        Ok(Some(acquired)) => return acquired,
                        Ok(None) => (known, failing) = (true, None),
                        Err(Failure::Conflict) => {
                            // Who was faster is not known yet, or the watch is behind.
                            (known, failing, try_at) = (false, None, now + AFTER_CONFLICT);
                            debug!(lease = %self.lease(), "another was faster");
                        }
                        Err(error) => {
                            // It may be another, or none, and the watch dead.
                            known &= !matches!(error, Failure::Request(_));
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
        if seen.as_ref().is_some_and(|seen| !self.may_take(seen)) {
            return Ok(None);
        }
        self.take(seen.as_ref()).await.map(Some)
    }

    fn may_take(&self, seen: &Seen) -> bool {
        seen.turn(&self.settings.identity, Instant::now().into_std()) == Turn::Take
    }

    /// Takes the Lease as it was `seen`.
    async fn take(&self, seen: Option<&Seen>) -> Result<(Leadership, Seen), Failure> {
        let sent = Instant::now();
        let ours = self.within(self.write(seen)).await?;
        self.leadership.set_cut_off(seen.is_some_and(Seen::is_held));
        self.leadership.extend(sent + self.settings.renew_deadline);
        Ok((self.leadership.clone(), ours))
    }

    /// Renews the Lease until that fails for too long.
    async fn keep(&self, leadership: &Leadership, seen: &mut Seen) -> Error {
        let not_renewed = |cause: &str| Error::NotRenewed {
            lease: self.lease(),
            deadline: self.settings.renew_deadline,
            cause: cause.to_owned(),
        };
        let mut cause = Failure::Timeout.to_string();
        let mut tries = FuturesUnordered::new();
        let mut next = Instant::now() + self.settings.retry_period;
        loop {
            let ended = tokio::select! {
                biased;
                // Also after a freeze, though no renewal failed.
                () = sleep_until(leadership.deadline()) => return not_renewed(&cause),
                Some(ended) = tries.next(), if !tries.is_empty() => ended,
                () = sleep_until(next) => {
                    let (sent, seen) = (Instant::now(), seen.clone());
                    next = sent + self.settings.retry_period / 2;
                    tries.push(async move { (sent, self.renew(seen).await) });
                    continue;
                }
            };
            match ended {
                (sent, Ok(ours)) => {
                    leadership.extend(sent + self.settings.renew_deadline);
                    *seen = ours;
                    // Those under way are about a version of the past.
                    tries.clear();
                    next = Instant::now().max(sent + self.settings.retry_period);
                }
                (_, Err(Lost::Taken(holder))) => {
                    return Error::Taken { lease: self.lease(), holder };
                }
                (_, Err(Lost::NotNow(error))) => {
                    warn!(lease = %self.lease(), %error, "lease not renewed, will be retried");
                    cause = error.to_string();
                }
            }
        }
    }

    /// Renews once; looks who has the Lease if somebody wrote it meanwhile.
    async fn renew(&self, seen: Seen) -> Result<Seen, Lost> {
        let failure = match self.write(Some(&seen)).await {
            Ok(ours) => return Ok(ours),
            Err(failure) => failure,
        };
        // Perhaps our own write of which we never heard, or the Lease was deleted.
        let Ok(lease) = self.leases.get_opt(&self.settings.name).await else {
            return Err(Lost::NotNow(failure));
        };
        let current = lease.map(|lease| read(Some(&seen), lease));
        if let Some(other) =
            current.as_ref().filter(|current| !current.held_by(&self.settings.identity))
        {
            return Err(Lost::Taken(other.spec.holder_identity.clone().unwrap_or_default()));
        }
        self.write(current.as_ref()).await.map_err(Lost::NotNow)
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
            Some(_) => self.leases.replace(&self.settings.name, &parameters, &lease).await,
            None => self.leases.create(&parameters, &lease).await,
        };
        Ok(read(None, written?))
    }

    /// Gives up the Lease, if it is still ours, so that another can lead at once; or soon, if writes of ours
    /// may still be under way.
    async fn release(&self, seen: &Seen, writing: bool) {
        let last = |seen: &Seen| {
            if writing { record::abandoned(&seen.spec) } else { record::released(&seen.spec) }
        };
        let given_up = async {
            match self.put(Some(seen), last(seen)).await {
                // A renewal of which we have not heard came in between.
                Err(Failure::Conflict) => {
                    let current = self.leases.get(&self.settings.name).await?;
                    let current = read(None, current);
                    if current.held_by(&self.settings.identity) {
                        self.put(Some(&current), last(&current)).await?;
                    }
                    Ok(())
                }
                done => done.map(drop),
            }
        };
        match timeout(RELEASE, given_up).await {
            Ok(Ok(())) => info!(lease = %self.lease(), "lease released"),
            Ok(Err(error)) => {
                warn!(lease = %self.lease(), %error, "lease not released: others wait until it ends");
            }
            Err(_) => {
                warn!(lease = %self.lease(), "lease not released in time: others wait until it ends");
            }
        }
    }

    /// The answer to a candidate's request: it must not miss the moment in which the Lease is free.
    async fn within<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        match timeout(self.settings.request_timeout(), request).await {
            Ok(answer) => Ok(answer?),
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

#[cfg(test)]
mod tests;
