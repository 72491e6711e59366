//! Decides what a node is: namespaces of its own for network, processes, mounts and the host's name,
//! so that the usual paths and process 1 are the node's, and a cgroup; containerd, kubelet and kube-proxy run
//! there with their defaults.

mod power;

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::cgroup::Cgroups;
use crate::command::{command, output, output_with_input};
use crate::error::io;
use crate::layout::{HOST, Layout, node_host, node_name};
use crate::pins::make_network;
use crate::pki::Authority;
use crate::place::{Place, make_dir, write};
use crate::tools::Tools;
use crate::wait::until_ok;
use crate::{ControlPlane, Error, Options};

/// Makes the usual paths the node's own; `$1` is its folder, `$2` its cgroup v2 or nothing.
const MOUNTS: &str = include_str!("node/mounts.sh");
/// A node's process 1: reaps whoever is orphaned.
const INIT: &str = "while :; do sleep 3600 & wait; done";
/// Starts a daemon again as often as it fails, as a machine's init does: kubelet gives up where a runtime
/// that takes over many pods is slow to answer.
const AGAIN: &str = r#"until "$@"; do sleep 1; done"#;
/// The image every pod's sandbox runs.
pub(crate) const PAUSE_IMAGE: &str = "localhost/cilia/pause:1";
/// Where the cluster's DNS is found.
pub(crate) const DNS_ADDRESS: &str = "10.96.0.10";
/// How long containerd may take to answer on a busy machine.
const RUNTIME_LIMIT: Duration = Duration::from_mins(1);

/// One node of a cluster.
#[derive(Debug, Clone)]
pub struct Node {
    layout: Layout,
    index: u8,
    /// Where its daemons run.
    pub place: Place,
}

impl Node {
    /// Node `index` of `layout`, whether it runs or not.
    pub fn new(layout: &Layout, index: u8) -> Self {
        let place = Place {
            net: layout.node_namespace(index, "net"),
            mount: Some(layout.node_namespace(index, "mnt")),
            uts: Some(layout.node_namespace(index, "uts")),
            pid: Some(layout.node_namespace(index, "pid")),
            cgroup: format!("{}/system", layout.node_cgroup(index)),
        };
        Self { layout: layout.clone(), index, place }
    }

    /// Kubernetes' name of the node.
    pub fn name(&self) -> String {
        node_name(self.index)
    }

    /// The node's addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let host = node_host(self.index);
        [self.layout.ipv4(host).into(), self.layout.ipv6(host).into()]
    }

    /// Makes the node's configuration, and the rest as if its power came on.
    pub async fn create(
        &self,
        cgroups: &Cgroups,
        authority: &Authority,
        options: &Options,
    ) -> Result<(), Error> {
        self.configure(authority, options)?;
        self.boot(cgroups, options).await
    }

    /// Makes what a machine has anew each time that it starts: namespaces, cgroup, cable to the bridge, mounts.
    async fn boot(&self, cgroups: &Cgroups, options: &Options) -> Result<(), Error> {
        cgroups.create(&self.layout.node_cgroup(self.index))?;
        self.connect(options).await?;
        let dir = self.layout.node_dir(self.index);
        for name in ["etc-work", "opt", "opt-work", "var-lib", "var-log"] {
            make_dir(&dir.join(name))?;
        }
        self.make_namespaces(cgroups).await?;
        let unified = cgroups.unified(&self.layout.node_cgroup(self.index));
        let unified = unified.map(|path| path.display().to_string()).unwrap_or_default();
        let script = ["sh", "-euc", MOUNTS, "sh", &dir.display().to_string(), &unified];
        output(&mut self.place.command(&script)).await.map(drop)
    }

    /// Makes the namespaces for mounts and for processes; an init keeps the latter.
    async fn make_namespaces(&self, cgroups: &Cgroups) -> Result<(), Error> {
        let mount = self.layout.node_namespace(self.index, "mnt");
        let pid = self.layout.node_namespace(self.index, "pid");
        let uts = self.layout.node_namespace(self.index, "uts");
        for pin in [&mount, &pid, &uts] {
            write(pin, "")?;
        }
        let pin = format!("--uts={}", uts.display());
        output(&mut command("unshare", [&pin, "hostname", &self.name()])).await?;
        let outside = self.outside();
        let mount = format!("--mount={}", mount.display());
        let words = ["unshare", &mount, "--propagation=private", "true"];
        output(&mut outside.command(&words)).await?;
        // The init is in the node's mount namespace, too: pods that enter that of process 1
        // find the node's.
        let pin = format!("--pid={}", pid.display());
        let words = ["unshare", &pin, "--fork", "--kill-child", "nsenter", &mount, "--"];
        let words: Vec<_> = words.into_iter().chain(["sh", "-c", INIT]).collect();
        let log = self.layout.log(&format!("{}-init", self.name()));
        let words = words.into_iter().map(str::to_owned).collect();
        outside.start(cgroups, "init", words, &log)?;
        until_ok(&format!("the process namespace of {}", self.name()), RUNTIME_LIMIT, || async {
            output(&mut self.place.command(&["true"])).await
        })
        .await
        .map(drop)
    }

    async fn connect(&self, options: &Options) -> Result<(), Error> {
        let (net, name) = (self.place.net.display(), self.name());
        let bridge = ControlPlane::new(&self.layout).place;
        let outside = self.outside();
        let [ipv4, ipv6] = self.addresses();
        let (gate4, gate6) = (self.layout.ipv4(HOST), self.layout.ipv6(HOST));
        make_network(&self.place.net).await?;
        let cable = format!(
            "link add {name} type veth peer name eth0 netns {net}\n\
             link set {name} master br0\n\
             link set {name} up\n"
        );
        bridge.ip(&cable).await?;
        let inside = format!(
            "link set lo up\n\
             link set eth0 up\n\
             addr add {ipv4}/24 dev eth0\n\
             route add default via {gate4}\n"
        );
        outside.ip(&inside).await?;
        if options.ipv6 {
            let inside = format!(
                "addr add {ipv6}/64 dev eth0 nodad\n\
                 route add default via {gate6}\n"
            );
            outside.ip(&inside).await?;
        }
        let forward = "for f in ipv4/ip_forward ipv6/conf/all/forwarding; do \
                       echo 1 >/proc/sys/net/$f; done";
        output(&mut outside.command(&["sh", "-ec", forward])).await.map(drop)
    }

    /// The node's network without the rest of it.
    fn outside(&self) -> Place {
        Place { mount: None, uts: None, pid: None, ..self.place.clone() }
    }

    /// What the node finds below `/etc`.
    fn configure(&self, authority: &Authority, options: &Options) -> Result<(), Error> {
        let name = self.name();
        let etc = self.layout.node_dir(self.index).join("etc");
        let kubernetes = etc.join("kubernetes");
        write(&kubernetes.join("pki/ca.crt"), authority.credentials().certificate)?;
        let server = authority.server(&name, &[&name], &self.addresses())?;
        server.write(&kubernetes.join("pki"), "kubelet")?;
        let users = [
            (format!("system:node:{name}"), Some("system:nodes"), "kubelet.conf"),
            ("system:kube-proxy".to_owned(), None, "kube-proxy.conf"),
            ("kubernetes-admin".to_owned(), Some("system:masters"), "admin.conf"),
        ];
        for (user, group, file) in users {
            let credentials = authority.client(&user, group)?;
            let config = authority.kubeconfig(&self.layout.api_server(), &credentials);
            write(&kubernetes.join(file), config.to_string())?;
        }
        make_dir(&etc.join("cni/net.d"))?;
        write(&etc.join("containerd/config.toml"), containerd_config())?;
        write(&kubernetes.join("kubelet.yaml"), self.kubelet_config().to_string())?;
        write(&kubernetes.join("kube-proxy.yaml"), proxy_config(options).to_string())
    }

    /// Starts the container runtime and waits until it answers.
    pub async fn start_runtime(&self, cgroups: &Cgroups) -> Result<(), Error> {
        self.start(cgroups, "containerd", vec!["containerd".to_owned()])?;
        until_ok(&format!("containerd on {}", self.name()), RUNTIME_LIMIT, || async {
            output(&mut self.place.command(&["ctr", "version"])).await
        })
        .await
        .map(drop)
    }

    /// Starts kubelet and, if wished, kube-proxy.
    pub fn start_kubelet(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        options: &Options,
    ) -> Result<(), Error> {
        let [ipv4, ipv6] = self.addresses();
        let addresses = if options.ipv6 { format!("{ipv4},{ipv6}") } else { ipv4.to_string() };
        let [shell, c, again] = ["sh", "-c", AGAIN].map(str::to_owned);
        let kubelet = vec![
            shell.clone(),
            c,
            again,
            shell,
            tools.path("kubelet").display().to_string(),
            "--config=/etc/kubernetes/kubelet.yaml".to_owned(),
            "--kubeconfig=/etc/kubernetes/kubelet.conf".to_owned(),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={addresses}"),
        ];
        self.start(cgroups, "kubelet", kubelet)?;
        if options.kube_proxy {
            let proxy = vec![
                tools.path("kube-proxy").display().to_string(),
                "--config=/etc/kubernetes/kube-proxy.yaml".to_owned(),
                format!("--hostname-override={}", self.name()),
            ];
            self.start(cgroups, "kube-proxy", proxy)?;
        }
        Ok(())
    }

    /// Gives the node an image.
    pub async fn load(&self, archive: &Path) -> Result<(), Error> {
        let file = File::open(archive).map_err(io("open", archive))?;
        let words = ["ctr", "--namespace=k8s.io", "images", "import", "-"];
        let mut import = self.place.command(&words);
        output(import.stdin(Stdio::from(file))).await.map(drop)
    }

    /// Runs a command on the node and returns what it printed.
    pub async fn run(&self, words: &[&str]) -> Result<String, Error> {
        output(&mut self.place.command(words)).await
    }

    /// The same with `input` on its standard input.
    pub async fn run_with_input(&self, words: &[&str], input: &str) -> Result<String, Error> {
        output_with_input(&mut self.place.command(words), input).await
    }

    /// A process of the pod with this uid, if it runs here.
    pub fn pod_process(&self, cgroups: &Cgroups, uid: &str) -> Option<i32> {
        self.pod_processes(cgroups, uid).first().copied()
    }

    /// Every process of the pod with this uid that runs here.
    pub fn pod_processes(&self, cgroups: &Cgroups, uid: &str) -> Vec<i32> {
        let root = format!("{}/kubepods", self.layout.node_cgroup(self.index));
        let classes = ["", "/burstable", "/besteffort"];
        let pods = classes.iter().map(|class| format!("{root}{class}/pod{uid}"));
        pods.flat_map(|cgroup| cgroups.members(&cgroup)).collect()
    }

    fn start(&self, cgroups: &Cgroups, daemon: &str, words: Vec<String>) -> Result<(), Error> {
        let log = self.layout.log(&format!("{}-{daemon}", self.name()));
        self.place.start(cgroups, daemon, words, &log)
    }

    fn kubelet_config(&self) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": "/etc/kubernetes/pki/kubelet.crt",
            "tlsPrivateKeyFile": "/etc/kubernetes/pki/kubelet.key",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.layout.node_cgroup(self.index)),
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "failCgroupV1": false,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "maxPods": 250,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            // The machine's disk and memory are not the cluster's to guard.
            "evictionHard": {
                "nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        })
    }
}

fn proxy_config(options: &Options) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": "0.0.0.0",
        "clusterCIDR": options.pod_cidrs(),
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
        // The limits are the machine's: not a namespace's to set.
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
}

fn containerd_config() -> String {
    format!(
        "version = 2\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n\
         sandbox_image = \"{PAUSE_IMAGE}\"\n\
         # Root may lack CAP_SYS_RESOURCE.\n\
         restrict_oom_score_adj = true\n"
    )
}

/// Removes what is at `path`, be it a file, a folder, or nothing.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
