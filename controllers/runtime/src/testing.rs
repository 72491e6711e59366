//! A real etcd and kube-apiserver on loopback, for tests that want to know what the API server says.
//!
//! ```no_run
//! # async fn test() {
//! use cilia_runtime::testing::ApiServer;
//! let server = ApiServer::start().await;
//! let client = server.client();
//! // … do something, then see what it cost:
//! assert_eq!(server.writes().await, []);
//! # }
//! ```
//! Everything ends and vanishes when the [`ApiServer`] is dropped, or when the test process dies.
//! Starting takes two to five seconds, so let one test function cover a story. There is no
//! controller-manager: nothing collects garbage, removes namespaces or makes service accounts.

mod audit;
mod condition;
mod flags;
mod process;
pub mod proxy;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use audit::Write;
pub use condition::{eventually, eventually_for};
pub use flags::unread_flags;
pub use nix::sys::signal::Signal;
pub use process::Process;

use http::{HeaderName, HeaderValue};

use crate::client::{SILENCE, Settings, from_access};

const SERVICE_ACCOUNT_KEY: &str = include_str!("testing/service-account.pem");
const TOKEN: &str = "test-token";
const READY_WITHIN: Duration = Duration::from_mins(1);

/// A running API server with an empty cluster behind it.
#[derive(Debug)]
pub struct ApiServer {
    // Fields are dropped in this order: the API server before its etcd, both before their files.
    apiserver: Process,
    _etcd: Process,
    folder: tempfile::TempDir,
    address: SocketAddr,
}

impl ApiServer {
    /// Starts etcd and kube-apiserver on free ports and waits until they are ready.
    ///
    /// # Panics
    /// If a binary is missing or does not become ready; the message says what to do.
    pub async fn start() -> Self {
        Self::with_arguments(&[]).await
    }

    /// Like [`ApiServer::start`], with more arguments for kube-apiserver.
    ///
    /// # Panics
    /// See [`ApiServer::start`].
    pub async fn with_arguments(arguments: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("cilia-test-")
            .tempdir()
            .expect("create a temporary folder");
        let [client_port, peer_port, api_port] = free_ports();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(path(name), text).expect("write a file of the test server");
        };
        write("sa.pem", SERVICE_ACCOUNT_KEY);
        write("tokens.csv", &format!("{TOKEN},admin,admin,system:masters\n"));
        write("audit.yaml", audit::POLICY);
        let clients = format!("http://127.0.0.1:{client_port}");
        let peers = format!("http://127.0.0.1:{peer_port}");
        let etcd = Process::start(
            &binary("etcd"),
            &[
                format!("--data-dir={}", path("etcd").display()),
                "--unsafe-no-fsync".into(),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
            ],
            &path("etcd.log"),
        );
        let mut all = vec![
            format!("--etcd-servers={clients}"),
            format!("--cert-dir={}", path("certs").display()),
            format!("--service-account-key-file={}", path("sa.pem").display()),
            format!("--service-account-signing-key-file={}", path("sa.pem").display()),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            format!("--token-auth-file={}", path("tokens.csv").display()),
            "--authorization-mode=RBAC".into(),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={api_port}"),
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".into(),
            format!("--audit-policy-file={}", path("audit.yaml").display()),
            format!("--audit-log-path={}", path("audit.log").display()),
        ];
        all.extend(arguments.iter().map(ToString::to_string));
        let apiserver = Process::start(&binary("kube-apiserver"), &all, &path("apiserver.log"));
        let address = SocketAddr::from(([127, 0, 0, 1], api_port));
        let mut server = Self { apiserver, _etcd: etcd, folder, address };
        std::fs::write(server.kubeconfig(), kubeconfig("https", address))
            .expect("write the kubeconfig");
        server.wait_until_ready().await;
        server
    }

    async fn wait_until_ready(&mut self) {
        let client = self.client();
        let deadline = tokio::time::Instant::now() + READY_WITHIN;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).expect("build a request");
            let failure = match client.request_text(request).await {
                Ok(_) => return,
                Err(error) => error.to_string(),
            };
            if let Some(status) = self.apiserver.ended() {
                panic!("kube-apiserver ended with {status}:\n{}", self.log());
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "kube-apiserver is not ready after {READY_WITHIN:?}: {failure}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// An administrator's client without limits.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn client(&self) -> kube::Client {
        self.client_as("test")
    }

    /// A client that appears under this user agent in [`ApiServer::writes`].
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn client_as(&self, user_agent: &str) -> kube::Client {
        client_of(self.address, user_agent)
    }

    /// Like [`ApiServer::client_as`], with the rights of a user who has none but those that a test gives.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn client_of_user(&self, user_agent: &str, user: &'static str) -> kube::Client {
        let header = (HeaderName::from_static("impersonate-user"), HeaderValue::from_static(user));
        client_with(self.address, user_agent, SILENCE, vec![header])
    }

    /// Where the API server listens (TLS).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig file of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A kubeconfig file of an administrator who reaches the API server by way of `address`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn kubeconfig_via(&self, address: SocketAddr) -> PathBuf {
        self.kubeconfig_by("https", address)
    }

    /// The same by way of an `address` that speaks plain HTTP.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn kubeconfig_via_http(&self, address: SocketAddr) -> PathBuf {
        self.kubeconfig_by("http", address)
    }

    fn kubeconfig_by(&self, scheme: &str, address: SocketAddr) -> PathBuf {
        let path = self.folder.path().join(format!("kubeconfig-{}", address.port()));
        std::fs::write(&path, kubeconfig(scheme, address)).expect("write a kubeconfig");
        path
    }

    /// Every write so far that was not the API server's own, in order. Writes that clients have had
    /// an answer to are there.
    ///
    /// # Panics
    /// If the audit log cannot be read.
    pub async fn writes(&self) -> Vec<Write> {
        audit::writes(&self.folder.path().join("audit.log")).await
    }

    /// The end of the API server's log.
    fn log(&self) -> String {
        let log =
            std::fs::read_to_string(self.folder.path().join("apiserver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// An administrator's client of an API server at `address`, for example behind a [`proxy`].
///
/// # Panics
/// Outside a Tokio runtime.
pub fn client_of(address: SocketAddr, user_agent: &str) -> kube::Client {
    client_with(address, user_agent, SILENCE, Vec::new())
}

/// The same, that takes a connection for dead on which nothing arrives for `silence`.
///
/// # Panics
/// Outside a Tokio runtime.
pub fn client_that_doubts(
    address: SocketAddr,
    user_agent: &str,
    silence: Duration,
) -> kube::Client {
    client_with(address, user_agent, silence, Vec::new())
}

fn client_with(
    address: SocketAddr,
    user_agent: &str,
    silence: Duration,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> kube::Client {
    let url = format!("https://{address}").parse().expect("an address makes a URL");
    let mut access = kube::Config::new(url);
    access.accept_invalid_certs = true;
    access.auth_info.token = Some(TOKEN.to_string().into());
    access.headers.extend(headers);
    let settings = Settings {
        user_agent: user_agent.into(),
        limits: None,
        timeout: Duration::from_secs(30),
        silence,
        retry: true,
        leadership: None,
    };
    from_access(access, &settings).expect("make a client")
}

fn kubeconfig(scheme: &str, address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"{scheme}://{address}\", insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: test, user: {{token: {TOKEN}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
    )
}

/// Ports on loopback that nobody listens on now.
///
/// # Panics
/// If there are none.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners =
        [(); N].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("find a free port"));
    listeners.map(|listener| listener.local_addr().expect("read a listener's address").port())
}

/// The path of a binary in `KUBEBUILDER_ASSETS`, the project's cache, or `PATH`.
///
/// # Panics
/// If there is none.
pub fn binary(name: &str) -> PathBuf {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    let cache = Path::new(&home).join(".cache/cilia");
    let mut folders: Vec<PathBuf> =
        std::env::var_os("KUBEBUILDER_ASSETS").into_iter().map(PathBuf::from).collect();
    folders.extend([cache.join("bin"), cache.join("bin-scratch")]);
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()).unwrap_or_else(
        || {
            panic!(
                "{name} is not in any of {folders:?}: run `make tools` or set KUBEBUILDER_ASSETS"
            )
        },
    )
}
