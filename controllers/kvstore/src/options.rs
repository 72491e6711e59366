//! What `kvstore-opt` and the etcd client's YAML file say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cilia_runtime::config::duration;
use serde::Deserialize;

use crate::Error;

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
const QPS: f64 = 20.0;
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
        let number = |option: &str, default: f64| match options.get(option) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite() && *number >= 0.0)
                .ok_or_else(|| bad(option, format!("{text:?} is no number from 0"))),
        };
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
        let source = match (options.get(CONFIG), options.get(ADDRESS)) {
            (Some(path), _) => Source::File(path.into()),
            (None, Some(address)) => Source::Address(address.clone()),
            (None, None) => {
                return Err(bad(ADDRESS, format!("this or {CONFIG} must be set")));
            }
        };
        let qps = number("etcd.qps", QPS)?;
        if qps <= 0.0 {
            return Err(bad("etcd.qps", "must be more than 0".into()));
        }
        let inflight = whole("etcd.maxInflight", 0)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of requests"
        )]
        let max_inflight = if inflight == 0 { qps.ceil() as usize } else { inflight as usize };
        Ok(Self {
            source,
            qps,
            bootstrap_qps: number("etcd.bootstrapQps", 0.0)?,
            max_inflight,
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

/// Where etcd's members are, and how to talk to them: the etcd client's YAML file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Endpoints {
    /// URLs.
    pub endpoints: Vec<String>,
    /// The authority of the servers' certificates.
    pub trusted_ca_file: Option<PathBuf>,
    /// The client's certificate, whose name is its user.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// A user with a password, in place of a certificate's.
    pub username: String,
    /// The password.
    pub password: String,
    /// Not supported: a server that nobody vouches for.
    pub insecure_skip_tls_verify: bool,
    /// Keys of the file that mean nothing here.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// The keys of the file that do.
const READ: &[&str] = &[
    "endpoints",
    "trusted-ca-file",
    "cert-file",
    "key-file",
    "username",
    "password",
    "insecure-skip-tls-verify",
];

impl Endpoints {
    /// Reads what the source says now.
    pub fn read(source: &Source) -> Result<Self, Error> {
        let path = match source {
            Source::Address(address) => {
                return Ok(Self { endpoints: vec![url(address)], ..Self::default() });
            }
            Source::File(path) => path,
        };
        let bad = |reason: String| Error::File { path: path.clone(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        let mut endpoints: Self =
            serde_saphyr::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let keys: BTreeMap<String, serde_json::Value> =
            serde_saphyr::from_str(&text).map_err(|error| bad(error.to_string()))?;
        endpoints.ignored = keys.into_keys().filter(|key| !READ.contains(&key.as_str())).collect();
        if endpoints.endpoints.is_empty() {
            return Err(bad("endpoints: at least one URL is needed".into()));
        }
        if endpoints.insecure_skip_tls_verify {
            return Err(bad(
                "insecure-skip-tls-verify: is not supported; set trusted-ca-file".into()
            ));
        }
        if endpoints.cert_file.is_some() != endpoints.key_file.is_some() {
            return Err(bad("cert-file and key-file: both or neither must be set".into()));
        }
        for endpoint in &mut endpoints.endpoints {
            *endpoint = url(endpoint);
            if endpoint.starts_with("https://") && endpoints.trusted_ca_file.is_none() {
                return Err(bad(format!("trusted-ca-file: must be set for {endpoint}")));
            }
        }
        Ok(endpoints)
    }
}

fn url(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{Endpoints, Options, Source};

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
            (vec![address, ("etcd.qps", "fast")], "etcd.qps: \"fast\" is no number"),
            (vec![address, ("etcd.qps", "0")], "etcd.qps: must be more than 0"),
            (vec![address, ("etcd.limit", "-1")], "etcd.limit: \"-1\""),
            (vec![address, ("etcd.keepaliveTimeout", "25")], "etcd.keepaliveTimeout: \"25\""),
        ] {
            let error = parse(&options).unwrap_err();
            assert!(error.contains(want), "{error} lacks {want}");
        }
    }

    #[test]
    fn files_are_read_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.config");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Endpoints::read(&Source::File(path.clone())).map_err(|error| error.to_string())
        };
        let files = "trusted-ca-file: /ca\ncert-file: /c\nkey-file: /k\n";
        let good =
            read(&format!("---\nendpoints:\n  - https://a:2379\n  - b:2379\n{files}")).unwrap();
        assert_eq!(good.endpoints, ["https://a:2379", "http://b:2379"]);
        assert_eq!(good.ignored, [""; 0]);
        let more = read("endpoints: [a:1]\ndial-timeout: 5s\nmax-call-send-msg-size: 1\n").unwrap();
        assert_eq!(more.ignored, ["dial-timeout", "max-call-send-msg-size"]);
        for (text, want) in [
            ("endpoints: []\n", "at least one URL"),
            ("endpoints: [https://a:1]\n", "trusted-ca-file: must be set"),
            ("endpoints: [http://a:1]\ncert-file: /c\n", "both or neither"),
            ("endpoints: [http://a:1]\ninsecure-skip-tls-verify: true\n", "not supported"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(want), "{error} lacks {want}");
        }
    }
}
