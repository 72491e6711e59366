//! What `kvstore-opt` says; where etcd's members are is read in [`endpoints`](self::endpoints).

mod endpoints;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cilia_runtime::config::duration;

use crate::Error;

pub use endpoints::Endpoints;
pub(crate) use endpoints::authorities;

const ADDRESS: &str = "etcd.address";
const CONFIG: &str = "etcd.config";
const SUPPORTED: &[&str] = &[
    ADDRESS,
    "etcd.bootstrapQps",
    CONFIG,
    "etcd.keepaliveHeartbeat",
    "etcd.keepaliveTimeout",
    "etcd.limit",
    "etcd.maxInflight",
    "etcd.qps",
];
const QPS: u32 = 20;
const PAGE: i64 = 256;
/// How often a file that is not there is looked for.
const FILE_RETRY: Duration = Duration::from_secs(5);

/// How to reach etcd, and how much of it to take.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Where etcd is.
    pub source: Source,
    /// Requests per second, and at once.
    pub qps: f64,
    /// The same until everything has been listed; 0 for no difference.
    pub bootstrap_qps: f64,
    /// Requests under way at once.
    pub max_inflight: usize,
    /// Keys per page of a list; 0 for all.
    pub page: i64,
    /// How often a silent connection is probed, and how long for an answer.
    pub keep_alive: (Duration, Duration),
}

/// Where the endpoints are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Here: one endpoint, without TLS files.
    Address(String),
    /// In a YAML file.
    File(PathBuf),
}

impl Source {
    /// Whether it is a file that is not there (yet).
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::File(path) if matches!(path.try_exists(), Ok(false)))
    }
}

impl Options {
    /// Reads `kvstore-opt`.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, Error> {
        let bad = |option: &str, reason: String| Error::Option { option: option.into(), reason };
        if let Some(unknown) = options.keys().find(|key| !SUPPORTED.contains(&key.as_str())) {
            let reason = format!("is not known; supported: {}", SUPPORTED.join(", "));
            return Err(bad(unknown, reason));
        }
        let whole = |option: &str, default: u32| match options.get(option) {
            None => Ok(default),
            Some(text) => {
                text.parse().map_err(|_| bad(option, format!("{text:?} is no whole number from 0")))
            }
        };
        let time = |option: &str, default: u64| match options.get(option) {
            None => Ok(Duration::from_secs(default)),
            Some(text) => duration::parse(text)
                .filter(|time| !time.is_zero())
                .ok_or_else(|| bad(option, format!("{text:?} is no duration such as 15s"))),
        };
        // As with no such option.
        let said = |option: &str| options.get(option).filter(|text| !text.is_empty());
        let source = match (said(CONFIG), said(ADDRESS)) {
            (Some(path), _) => Source::File(path.into()),
            (None, Some(address)) => Source::Address(address.clone()),
            (None, None) => {
                return Err(bad(ADDRESS, format!("this or {CONFIG} must be set")));
            }
        };
        let qps = whole("etcd.qps", QPS)?;
        if qps == 0 {
            return Err(bad("etcd.qps", "must be more than 0".into()));
        }
        let inflight = match whole("etcd.maxInflight", 0)? {
            0 => qps,
            inflight => inflight,
        };
        Ok(Self {
            source,
            qps: f64::from(qps),
            bootstrap_qps: f64::from(whole("etcd.bootstrapQps", 0)?),
            max_inflight: usize::try_from(inflight).unwrap_or(usize::MAX),
            page: i64::from(whole("etcd.limit", u32::try_from(PAGE).unwrap_or_default())?),
            keep_alive: (time("etcd.keepaliveHeartbeat", 15)?, time("etcd.keepaliveTimeout", 25)?),
        })
    }

    /// Returns once the file that should name the endpoints is there.
    pub async fn wait_for_file(&self) {
        let Source::File(path) = &self.source else { return };
        while self.source.is_absent() {
            let path = path.display();
            tracing::warn!(%path, "etcd.config: no such file yet, looking again in 5 s");
            tokio::time::sleep(FILE_RETRY).await;
        }
    }

    /// The options of a remote cluster, whose configuration is this file.
    pub fn of_file(path: &Path, qps: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of requests"
        )]
        Self {
            source: Source::File(path.into()),
            qps,
            bootstrap_qps: 0.0,
            max_inflight: qps.ceil() as usize,
            page: PAGE,
            keep_alive: (Duration::from_secs(15), Duration::from_secs(25)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::{Endpoints, Options, SUPPORTED};

    fn parse(options: &[(&str, &str)]) -> Result<Options, String> {
        let options: BTreeMap<_, _> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Options::parse(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults() {
        let options = parse(&[("etcd.address", "127.0.0.1:2379")]).unwrap();
        assert_eq!((options.qps, options.max_inflight, options.page), (20.0, 20, 256));
        assert_eq!(options.keep_alive.0, Duration::from_secs(15));
        let endpoints = Endpoints::read(&options.source).unwrap();
        assert_eq!(endpoints.endpoints, ["http://127.0.0.1:2379"]);
    }

    #[test]
    fn mistakes_name_the_option_and_what_is_allowed() {
        let address = ("etcd.address", "x");
        for (options, want) in [
            (vec![], "etcd.address: this or etcd.config must be set"),
            (vec![address, ("etcd.cfg", "y")], "etcd.cfg: is not known; supported: etcd.address"),
            (vec![("etcd.address", ""), ("etcd.config", "")], "etcd.address: this or etcd.config"),
            (vec![address, ("etcd.qps", "fast")], "etcd.qps: \"fast\" is no whole number"),
            (vec![address, ("etcd.bootstrapQps", "2.5")], "etcd.bootstrapQps: \"2.5\""),
            (vec![address, ("etcd.qps", "0")], "etcd.qps: must be more than 0"),
            (vec![address, ("etcd.limit", "-1")], "etcd.limit: \"-1\""),
            (vec![address, ("etcd.keepaliveTimeout", "25")], "etcd.keepaliveTimeout: \"25\""),
        ] {
            let error = parse(&options).unwrap_err();
            assert!(error.contains(want), "{error} lacks {want}");
        }
    }

    /// What a hand may have written is read, or refused with the name of what is wrong.
    #[test]
    fn spoilt_options_and_files_are_read_or_refused() {
        const OPTIONS: [&str; 6] = ["20", "15s", "http://[::1]:2379", "a:1", "-1", "1e9"];
        const FILES: [&str; 5] = [
            "endpoints:\n- https://a:2379\n- b:2379\ntrusted-ca-file: /ca\n",
            "endpoints: [a:1]\ninsecure-transport: true\nusername: u\npassword: p\n",
            "endpoints: &a ['http://[::1]:1']\nother: *a\n",
            "cert-file: /c\nkey-file: /k\nendpoints: ['x']\n",
            "{\"endpoints\": [\"a:1\"], \"dial-timeout\": 5}",
        ];
        let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| rand::rng().random());
        println!("CILIA_SEED={seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut good = 0;
        for _ in 0..1_000 {
            let options = SUPPORTED.iter().filter(|_| rng.random_bool(0.3)).copied();
            let options: Vec<&str> = options.collect();
            let value = |_: &&str| OPTIONS[rng.random_range(0..OPTIONS.len())];
            let values: Vec<&str> = options.iter().map(value).collect();
            let options: Vec<(&str, &str)> = options.into_iter().zip(values).collect();
            match parse(&options) {
                Ok(options) => good += usize::from(options.qps > 0.0 && options.max_inflight > 0),
                Err(error) => assert!(error.starts_with("kvstore-opt: etcd."), "{error}"),
            }
            let mut file = FILES[rng.random_range(0..FILES.len())].as_bytes().to_vec();
            let at = rng.random_range(0..file.len());
            let end = (at + rng.random_range(0..4)).min(file.len());
            file.splice(at..end, [rng.random::<u8>() & 0x7f]);
            if let Ok(endpoints) = Endpoints::parse(&String::from_utf8_lossy(&file)) {
                assert!(endpoints.endpoints.iter().all(|url| url.starts_with("http")));
                good += 1;
            }
        }
        assert!(good > 100, "only {good} are good still: nothing is tested");
    }
}
