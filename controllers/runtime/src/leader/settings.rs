//! The times of an election, and what they may be.

use std::time::Duration;

use rand::RngExt;

use crate::client;
use crate::config::{Config, Error};

/// client-go's candidates wait up to this much longer than their retry period.
const JITTER: f64 = 1.2;

/// How an election is held.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who we are, unlike any other candidate.
    pub identity: String,
    /// A lease that was not renewed for this long is free.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long gives up.
    pub renew_deadline: Duration,
    /// Time between two tries.
    pub retry_period: Duration,
}

impl Settings {
    /// The settings that the `leader-election-*` flags give, for the Lease `name`.
    pub fn new(config: &Config, name: &str) -> Result<Self, Error> {
        let lease_duration = config.duration("leader-election-lease-duration");
        let renew_deadline = config.duration("leader-election-renew-deadline");
        let retry_period = config.duration("leader-election-retry-period");
        if retry_period.is_zero() {
            return Err(config.reject("leader-election-retry-period", "more than 0"));
        }
        if renew_deadline <= retry_period.mul_f64(JITTER) {
            let allowed = "more than 1.2 times leader-election-retry-period";
            return Err(config.reject("leader-election-renew-deadline", allowed));
        }
        if lease_duration <= renew_deadline {
            let allowed = "more than leader-election-renew-deadline";
            return Err(config.reject("leader-election-lease-duration", allowed));
        }
        let namespace = config.string("k8s-namespace");
        Ok(Self {
            namespace: if namespace.is_empty() { "default" } else { namespace }.into(),
            name: name.into(),
            identity: identity(),
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }

    /// The client for the Lease alone: nothing else holds its requests up, and one without an answer is given
    /// up while there is time for another.
    #[must_use]
    pub fn client(&self, ordinary: &client::Settings) -> client::Settings {
        client::Settings {
            user_agent: format!("{} leader-election", ordinary.user_agent),
            limits: None,
            timeout: self.request_timeout(),
            silence: ordinary.silence,
            retry: false,
            leadership: None,
        }
    }

    /// How long one request may take, so that there is time for another try: half the renew deadline, as in
    /// client-go, and at least a second.
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1)).min(self.renew_deadline)
    }
}

/// The host's name and ten random characters.
fn identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut random = rand::rng();
    let alphabet = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let suffix: String =
        (0..10).map(|_| char::from(alphabet[random.random_range(0..alphabet.len())])).collect();
    format!("{}-{suffix}", host.unwrap_or_else(|| "unknown".into()))
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::config::{Config, Flags};

    fn settings(args: &[&str]) -> Result<Settings, String> {
        let config =
            Config::load(Flags::operator(), args.iter().map(ToString::to_string), []).unwrap();
        Settings::new(&config, "lock").map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_cilium() {
        let settings = settings(&[]).unwrap();
        let seconds = [settings.lease_duration, settings.renew_deadline, settings.retry_period]
            .map(|d| d.as_secs());
        assert_eq!(seconds, [15, 10, 2]);
        assert_eq!(
            (settings.namespace.as_str(), settings.request_timeout().as_secs()),
            ("default", 5)
        );
        let (_, suffix) = settings.identity.rsplit_once('-').unwrap();
        assert_eq!(suffix.len(), 10);
    }

    #[test]
    fn a_request_has_half_the_deadline() {
        let config = Config::load(Flags::operator(), [], []).unwrap();
        let ordinary = crate::client::Settings::new(&config, "c");
        for (deadline, retry, seconds) in
            [("10s", "2s", 5.0), ("7s", "1s", 3.5), ("1500ms", "1s", 1.0)]
        {
            let args = [
                format!("--leader-election-renew-deadline={deadline}"),
                format!("--leader-election-retry-period={retry}"),
            ];
            let client = settings(&[&args[0], &args[1]]).unwrap().client(&ordinary);
            assert_eq!(
                (client.timeout.as_secs_f64(), client.limits, client.retry),
                (seconds, None, false)
            );
            assert!(client.user_agent.ends_with(" leader-election"));
        }
    }

    #[test]
    fn times_must_leave_room_for_each_other() {
        let cases = [
            ("--leader-election-retry-period=0", "leader-election-retry-period"),
            ("--leader-election-retry-period=9s", "leader-election-renew-deadline"),
            ("--leader-election-lease-duration=10s", "leader-election-lease-duration"),
        ];
        for (arg, key) in cases {
            let error = settings(&[arg]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }
}
