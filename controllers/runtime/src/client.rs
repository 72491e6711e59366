//! Makes the Kubernetes client: where the API server is, how often it may be asked, and by whom.

mod paced;

use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};

pub use paced::{Paced, PacedLayer};

use crate::config::Config;
use crate::leader::Leadership;

/// A connection on which nothing arrives for this long is dead: even a watch of nothing gets a
/// bookmark every minute.
pub(crate) const SILENCE: Duration = Duration::from_secs(130);
const _: () = assert!(SILENCE.as_secs() > 60 && SILENCE.as_secs() < 300);

/// Writes at once, and a second beyond those: the 250 pods that a node usually has at most may change four times in a
/// row, and the 1,000 that some have once.
const PODS: f64 = 1000.0;
const POD_WRITES: f64 = 50.0;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of `k8s-kubeconfig-path`.
    #[error("k8s-kubeconfig-path {path}: {cause}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: kube::config::KubeconfigError,
    },
    /// Not in a pod, and no kubeconfig named.
    #[error("neither in a pod ({0}) nor is k8s-kubeconfig-path set")]
    InCluster(kube::config::InClusterError),
    /// An entry of `k8s-api-server-urls`.
    #[error("k8s-api-server-urls: {url:?} is not a URL: {cause}")]
    Url {
        /// The entry.
        url: String,
        /// What is wrong with it.
        cause: http::uri::InvalidUri,
    },
    /// The TLS settings or credentials cannot be used.
    #[error("set up the Kubernetes client: {0}")]
    Setup(kube::Error),
}

/// What distinguishes one client of a process from another.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How the API server's log names us.
    pub user_agent: String,
    /// Requests per second and at once; `None` for no limit.
    pub limits: Option<(f64, f64)>,
    /// No answer within this time is an error; does not concern watches.
    pub timeout: Duration,
    /// A connection on which nothing arrives for this long is dead, also that of a watch; usually 130 s.
    pub silence: Duration,
    /// Whether the client repeats requests that the server turned away (429, 503, 504).
    pub retry: bool,
    /// Writes are refused unless this leadership is held.
    pub leadership: Option<Leadership>,
}

impl Settings {
    /// The settings of a component's ordinary client.
    pub fn new(config: &Config, component: &str) -> Self {
        let limits = [
            ("operator-k8s-client-qps", "operator-k8s-client-burst"),
            ("k8s-client-qps", "k8s-client-burst"),
        ]
        .into_iter()
        .find(|(qps, _)| config.has(qps))
        .map(|(qps, burst)| {
            (config.float(qps), f64::from(i32::try_from(config.int(burst)).unwrap_or(i32::MAX)))
        })
        .filter(|&(qps, _)| qps > 0.0);
        Self {
            user_agent: format!("{component}/v{}", env!("CARGO_PKG_VERSION")),
            limits,
            timeout: Duration::from_secs(30),
            silence: SILENCE,
            retry: true,
            leadership: None,
        }
    }

    /// The same for what a node writes of its pods. All of them change together when their namespace does, so as
    /// many writes as a node may have pods may go at once, unless the user has set a limit.
    #[must_use]
    pub fn for_pods(mut self, config: &Config) -> Self {
        if !config.is_set("k8s-client-qps") && !config.is_set("k8s-client-burst") {
            self.limits = Some((POD_WRITES, PODS));
        }
        self
    }
}

/// The client that `config` and `settings` describe. Must be called inside a Tokio runtime.
pub async fn client(config: &Config, settings: &Settings) -> Result<Client, Error> {
    let mut access = access(config).await?;
    access.connect_timeout =
        Some(config.duration("k8s-client-connection-timeout")).filter(|t| !t.is_zero());
    from_access(access, settings)
}

/// A client for an API server that is already known; see [`client`].
pub fn from_access(mut access: kube::Config, settings: &Settings) -> Result<Client, Error> {
    access.default_retry = settings.retry;
    access.read_timeout = Some(settings.silence);
    access.reset_reader_on_write = true;
    if let Ok(value) = HeaderValue::from_str(&settings.user_agent) {
        access.headers.push((USER_AGENT, value));
    }
    let layer = PacedLayer::new(settings.limits, settings.timeout, settings.leadership.clone());
    Ok(ClientBuilder::try_from(access).map_err(Error::Setup)?.with_layer(&layer).build())
}

async fn access(config: &Config) -> Result<kube::Config, Error> {
    let path = config.string("k8s-kubeconfig-path");
    let mut access = if path.is_empty() {
        kube::Config::incluster().map_err(Error::InCluster)?
    } else {
        let failed = |cause| Error::Kubeconfig { path: path.into(), cause };
        let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
        let options = KubeConfigOptions::default();
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?
    };
    if let Some(url) = config.strings("k8s-api-server-urls").first() {
        access.cluster_url = url.parse().map_err(|cause| Error::Url { url: url.clone(), cause })?;
    }
    Ok(access)
}
