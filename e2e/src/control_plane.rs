//! Decides how a cluster's control plane runs: etcd, API server, controllers and scheduler in a
//! network namespace of their own, which also holds the bridge that the nodes hang on.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cgroup::Cgroups;
use crate::command::{command, output, output_with_input};
use crate::layout::{API_PORT, CONTROL_PLANE, HOST, Layout, WORLD};
use crate::pins::make_network;
use crate::pki::{Authority, Credentials};
use crate::place::{Place, make_dir, write};
use crate::tools::Tools;
use crate::wait::until_ok;
use crate::{Error, Options};

/// The API server's daemon name, for [`ControlPlane::place`].
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// The first address of the IPv4 service range: the API server's own service.
const API_SERVICE: [u8; 4] = [10, 96, 0, 1];
/// How long the API server may take to be ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// The control plane of one cluster.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    layout: Layout,
    /// Where its daemons run.
    pub place: Place,
}

impl ControlPlane {
    /// The control plane of `layout`, whether it runs or not.
    pub fn new(layout: &Layout) -> Self {
        let place = Place {
            net: layout.control_plane_network(),
            mount: None,
            uts: None,
            pid: None,
            cgroup: format!("{}/cp", layout.cgroup()),
        };
        Self { layout: layout.clone(), place }
    }

    /// Makes the namespace, the bridge, and the cable from the machine to it.
    pub async fn connect(&self) -> Result<(), Error> {
        let layout = &self.layout;
        let net = self.place.net.display();
        let device = layout.host_device();
        let [host4, here4, world4] = [HOST, CONTROL_PLANE, WORLD].map(|h| layout.ipv4(h));
        let [host6, here6, world6] = [HOST, CONTROL_PLANE, WORLD].map(|h| layout.ipv6(h));
        make_network(&self.place.net).await?;
        let inside = format!(
            "link set lo up\n\
             link add br0 type bridge\n\
             link set br0 up\n\
             addr add {here4}/24 dev br0\n\
             addr add {world4}/24 dev br0\n\
             addr add {here6}/64 dev br0 nodad\n\
             addr add {world6}/64 dev br0 nodad\n"
        );
        self.place.ip(&inside).await?;
        let outside = format!(
            "link add {device} type veth peer name host netns {net}\n\
             addr add {host4}/24 dev {device}\n\
             link set {device} up\n\
             addr add {host6}/64 dev {device} nodad\n"
        );
        ip_batch(&outside).await?;
        self.place.ip("link set host master br0\nlink set host up\n").await
    }

    /// Writes keys, certificates and kubeconfigs.
    pub fn write_credentials(&self, authority: &Authority) -> Result<(), Error> {
        let layout = &self.layout;
        let pki = layout.state().join("pki");
        authority.credentials().write(&pki, "ca")?;
        Credentials::service_accounts()?.write(&pki, "service-accounts")?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let addresses = [
            IpAddr::from(layout.ipv4(CONTROL_PLANE)),
            IpAddr::from(layout.ipv6(CONTROL_PLANE)),
            IpAddr::from(API_SERVICE),
            IpAddr::from([127, 0, 0, 1]),
        ];
        authority.server("kube-apiserver", &names, &addresses)?.write(&pki, "apiserver")?;
        let masters = Some("system:masters");
        authority.client("kube-apiserver", masters)?.write(&pki, "kubelet-client")?;
        let users = [
            ("kubernetes-admin", masters, layout.kubeconfig()),
            ("system:kube-controller-manager", None, pki.join("controller-manager.conf")),
            ("system:kube-scheduler", None, pki.join("scheduler.conf")),
        ];
        for (user, group, path) in users {
            let credentials = authority.client(user, group)?;
            let config = authority.kubeconfig(&layout.api_server(), &credentials);
            write(&path, config.to_string())?;
        }
        Ok(())
    }

    /// Starts etcd and the API server.
    pub fn start_api_server(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        options: &Options,
    ) -> Result<(), Error> {
        write(&self.audit_policy(), audit_policy().to_string())?;
        self.start(cgroups, tools, "etcd", self.etcd())?;
        self.resume_api_server(cgroups, tools, options)
    }

    /// Ends the API server: its clients find nobody there.
    pub async fn stop_api_server(&self, cgroups: &Cgroups) -> Result<(), Error> {
        self.place.stop(cgroups, API_SERVER).await
    }

    /// Starts the API server, which is not running.
    pub fn resume_api_server(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        options: &Options,
    ) -> Result<(), Error> {
        self.start(cgroups, tools, API_SERVER, self.api_server(options))
    }

    /// Waits until the API server says that it is ready.
    pub async fn ready(&self, tools: &Tools) -> Result<(), Error> {
        let layout = &self.layout;
        let config = format!("--kubeconfig={}", layout.kubeconfig().display());
        until_ok("readiness of the API server", READY_LIMIT, || async {
            let args = [config.as_str(), "--request-timeout=2s", "get", "--raw=/readyz"];
            output(&mut command(tools.path("kubectl"), args)).await
        })
        .await
        .map(drop)
    }

    /// Starts the controllers and the scheduler.
    pub fn start_controllers(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        options: &Options,
    ) -> Result<(), Error> {
        let manager = self.controller_manager(options);
        self.start(cgroups, tools, "kube-controller-manager", manager)?;
        let config = self.layout.state().join("pki/scheduler.conf");
        let scheduler = vec![
            format!("--kubeconfig={}", config.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        self.start(cgroups, tools, "kube-scheduler", scheduler)
    }

    fn start(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        daemon: &str,
        args: Vec<String>,
    ) -> Result<(), Error> {
        let mut words = vec![tools.path(daemon).display().to_string()];
        words.extend(args);
        self.place.start(cgroups, daemon, words, &self.layout.log(daemon))
    }

    fn etcd(&self) -> Vec<String> {
        let data = self.layout.state().join("etcd");
        vec![
            format!("--data-dir={}", data.display()),
            // What a test cluster holds is not worth a disk's latency.
            "--unsafe-no-fsync".to_owned(),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--initial-cluster=default=http://127.0.0.1:2380".to_owned(),
        ]
    }

    fn api_server(&self, options: &Options) -> Vec<String> {
        let pki = self.layout.state().join("pki");
        let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
        let address = self.layout.ipv4(CONTROL_PLANE);
        vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            format!("--secure-port={API_PORT}"),
            file("client-ca-file", "ca.crt"),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("kubelet-certificate-authority", "ca.crt"),
            file("kubelet-client-certificate", "kubelet-client.crt"),
            file("kubelet-client-key", "kubelet-client.key"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            file("service-account-key-file", "service-accounts.crt"),
            file("service-account-signing-key-file", "service-accounts.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-cluster-ip-range={}", options.service_cidrs()),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--audit-policy-file={}", self.audit_policy().display()),
            format!("--audit-log-path={}", self.layout.log("audit").display()),
        ]
    }

    fn audit_policy(&self) -> PathBuf {
        self.layout.state().join("audit-policy.json")
    }

    fn controller_manager(&self, options: &Options) -> Vec<String> {
        let pki = self.layout.state().join("pki");
        let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
        let mut args = vec![
            file("kubeconfig", "controller-manager.conf"),
            file("root-ca-file", "ca.crt"),
            file("service-account-private-key-file", "service-accounts.key"),
            file("cluster-signing-cert-file", "ca.crt"),
            file("cluster-signing-key-file", "ca.key"),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            format!("--service-cluster-ip-range={}", options.service_cidrs()),
        ];
        if options.node_cidrs {
            args.push("--allocate-node-cidrs=true".to_owned());
            args.push(format!("--cluster-cidr={}", options.pod_cidrs()));
        }
        args
    }
}

/// Every write of a service account is recorded: the tests count those of Cilia.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {
                "level": "Metadata",
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
                "userGroups": ["system:serviceaccounts"],
            },
            {"level": "None"},
        ],
    })
}

/// Runs several `ip` commands at once, beside all clusters.
async fn ip_batch(lines: &str) -> Result<(), Error> {
    output_with_input(&mut command("ip", ["-batch", "-"]), lines).await.map(drop)
}

/// Prepares a folder for the cluster's logs.
pub(crate) fn make_log_dir(state: &Path) -> Result<(), Error> {
    make_dir(&state.join("log"))
}
