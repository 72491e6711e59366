//! Decides in which order a cluster comes to life, and what it consists of while it lives.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroups;
use crate::command::{command, output};
use crate::control_plane::make_log_dir;
use crate::error::io;
use crate::image::{Image, catalog};
use crate::layout::{MAX_NODES, node_name};
use crate::pki::Authority;
use crate::place::{make_dir, write};
use crate::wait::{Look, until};
use crate::{
    ControlPlane, Error, Layout, Node, Place, Progress, Tools, dns, pins, requirements, teardown,
};

/// How long nodes may take to register on a busy machine.
const REGISTER_LIMIT: Duration = Duration::from_secs(90);
/// The file in the cluster's folder that says what it consists of.
const OPTIONS: &str = "options.json";

/// What kind of cluster to build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the command line")]
pub struct Options {
    /// How many nodes.
    pub nodes: u8,
    /// Nodes and services have IPv6 addresses besides IPv4.
    pub ipv6: bool,
    /// Kubernetes gives each node a pod CIDR (`spec.podCIDRs`); else the network plugin does.
    pub node_cidrs: bool,
    /// kube-proxy runs on each node, in nftables mode.
    pub kube_proxy: bool,
    /// `CoreDNS` is installed; it runs once a network plugin is there.
    pub dns: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 2, ipv6: true, node_cidrs: false, kube_proxy: true, dns: true }
    }
}

impl Options {
    /// The service ranges.
    pub fn service_cidrs(&self) -> &'static str {
        if self.ipv6 { "10.96.0.0/16,fd10:96::/112" } else { "10.96.0.0/16" }
    }

    /// The pod ranges.
    pub fn pod_cidrs(&self) -> &'static str {
        if self.ipv6 { "10.244.0.0/16,fd10:244::/56" } else { "10.244.0.0/16" }
    }
}

/// A cluster that is there.
#[derive(Debug)]
pub struct Cluster {
    /// Its names and addresses.
    pub layout: Layout,
    /// What it was built as.
    pub options: Options,
    /// The programs it is made of.
    pub tools: Tools,
    cgroups: Cgroups,
}

/// One of the cluster's daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonStatus {
    /// `control-plane` or a node.
    pub place: String,
    /// Its name.
    pub daemon: &'static str,
    /// Its processes; none if it does not run.
    pub pids: Vec<i32>,
}

impl Cluster {
    /// Builds the cluster; what a former one of this name left is removed first.
    ///
    /// Every node gets the images in these archives. Returns when every node is registered; they
    /// become ready once a network plugin is there.
    pub async fn up(
        layout: Layout,
        options: Options,
        images: &[PathBuf],
        progress: Progress,
    ) -> Result<Self, Error> {
        if options.nodes == 0 || options.nodes > MAX_NODES {
            return Err(Error::Invalid(format!(
                "{} nodes: a cluster has 1 to {MAX_NODES}",
                options.nodes
            )));
        }
        requirements::ensure(&progress).await?;
        let cgroups = Cgroups::detect()?;
        let tools = Tools::ensure(&progress).await?;
        let archives = catalog::base(&tools).await?;
        let base: Vec<_> = archives.iter().map(Image::archive).collect::<Result<_, _>>()?;
        let archives: Vec<_> = images.iter().cloned().chain(base).collect();

        if teardown::remove(&layout, &cgroups).await? {
            progress.say("removed what a former cluster of this name had left");
        }
        let cluster = Self { layout, options, tools, cgroups };
        let _lock = cluster.create_state()?;
        pins::prepare(&cluster.layout).await?;
        let control_plane = cluster.control_plane();
        control_plane.connect().await?;
        let authority = Authority::new()?;
        control_plane.write_credentials(&authority)?;
        control_plane.start_api_server(&cluster.cgroups, &cluster.tools, &cluster.options)?;
        progress.say("etcd and kube-apiserver started");
        tokio::try_join!(
            cluster.start_control_plane(&control_plane, progress),
            cluster.start_nodes(&authority, &archives, progress),
        )?;
        cluster.registered().await?;
        progress.say(format!("{} nodes registered", cluster.options.nodes));
        Ok(cluster)
    }

    /// The cluster of this name, which is up.
    pub async fn open(layout: Layout) -> Result<Self, Error> {
        let path = layout.state().join(OPTIONS);
        let text = fs::read_to_string(&path).map_err(|_| Error::Missing {
            what: format!("the cluster {:?}", layout.name()),
            remedy: format!("`cilia-cluster up --name {}` builds it", layout.name()),
        })?;
        let options = serde_json::from_str(&text)
            .map_err(|error| Error::Invalid(format!("{}: {error}", path.display())))?;
        let tools = Tools::ensure(&Progress::new()).await?;
        Ok(Self { layout, options, tools, cgroups: Cgroups::detect()? })
    }

    /// Removes all there is of the cluster of this name; says whether there was anything.
    pub async fn down(layout: &Layout) -> Result<bool, Error> {
        teardown::remove(layout, &Cgroups::detect()?).await
    }

    /// The cluster's control plane.
    pub fn control_plane(&self) -> ControlPlane {
        ControlPlane::new(&self.layout)
    }

    /// The cluster's nodes.
    pub fn nodes(&self) -> Vec<Node> {
        (1..=self.options.nodes).map(|index| Node::new(&self.layout, index)).collect()
    }

    /// The node that Kubernetes calls `name`.
    pub fn node(&self, name: &str) -> Result<Node, Error> {
        let found = self.nodes().into_iter().find(|node| node.name() == name);
        found.ok_or_else(|| {
            Error::Invalid(format!(
                "node {name}: there are n1 to {}",
                node_name(self.options.nodes)
            ))
        })
    }

    /// The cgroup hierarchies the cluster's processes are in.
    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Gives every node an image.
    pub async fn load(&self, archive: &Path) -> Result<(), Error> {
        let nodes = self.nodes();
        futures::future::try_join_all(nodes.iter().map(|node| node.load(archive))).await.map(drop)
    }

    /// Every daemon and its processes.
    pub fn status(&self) -> Vec<DaemonStatus> {
        let pids = |place: &Place, daemon| place.pids(&self.cgroups, daemon);
        let control = self.control_plane().place;
        let daemons = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
        let mut all: Vec<_> = daemons
            .into_iter()
            .map(|daemon| DaemonStatus {
                place: "control-plane".to_owned(),
                daemon,
                pids: pids(&control, daemon),
            })
            .collect();
        let proxy = self.options.kube_proxy.then_some("kube-proxy");
        for node in self.nodes() {
            for daemon in ["containerd", "kubelet"].into_iter().chain(proxy) {
                let pids = pids(&node.place, daemon);
                all.push(DaemonStatus { place: node.name(), daemon, pids });
            }
        }
        all
    }

    /// Runs kubectl as the administrator and returns what it printed.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String, Error> {
        output(&mut self.kubectl_command(args)).await
    }

    /// Runs kubectl with `input`, for `-f -`.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, Error> {
        crate::command::output_with_input(&mut self.kubectl_command(args), input).await
    }

    fn kubectl_command(&self, args: &[&str]) -> tokio::process::Command {
        let config = format!("--kubeconfig={}", self.layout.kubeconfig().display());
        let args = std::iter::once(config.as_str()).chain(args.iter().copied());
        command(self.tools.path("kubectl"), args)
    }

    /// The cluster's folder, held by this process until the lock is dropped.
    fn create_state(&self) -> Result<Flock<File>, Error> {
        let state = self.layout.state();
        make_dir(&state)?;
        let file = File::open(&state).map_err(io("open", &state))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            Error::Invalid(format!("cluster {:?} is being built already", self.layout.name()))
        })?;
        make_log_dir(&state)?;
        let options = serde_json::to_string(&self.options).unwrap_or_default();
        write(&state.join(OPTIONS), options)?;
        Ok(lock)
    }

    async fn start_control_plane(
        &self,
        control_plane: &ControlPlane,
        progress: Progress,
    ) -> Result<(), Error> {
        control_plane.ready(&self.tools).await?;
        control_plane.start_controllers(&self.cgroups, &self.tools, &self.options)?;
        progress.say("kube-apiserver ready; controllers and scheduler started");
        if self.options.dns {
            let args = ["apply", "--server-side", "-f", "-"];
            self.kubectl_with_input(&args, &dns::manifests(&self.options)).await?;
        }
        Ok(())
    }

    async fn start_nodes(
        &self,
        authority: &Authority,
        archives: &[PathBuf],
        progress: Progress,
    ) -> Result<(), Error> {
        let nodes = self.nodes();
        let started = nodes.iter().map(|node| async move {
            node.create(&self.cgroups, authority, &self.options).await?;
            node.start_runtime(&self.cgroups).await?;
            progress.say(format!("{}: containerd answers", node.name()));
            node.start_kubelet(&self.cgroups, &self.tools, &self.options)?;
            for archive in archives {
                node.load(archive).await?;
            }
            progress.say(format!("{}: kubelet started, images loaded", node.name()));
            Ok(())
        });
        futures::future::try_join_all(started).await.map(drop)
    }

    async fn registered(&self) -> Result<(), Error> {
        let want = usize::from(self.options.nodes);
        until("registration of the nodes", REGISTER_LIMIT, || async {
            match self.kubectl(&["get", "nodes", "--output=name"]).await {
                Ok(names) if names.lines().count() == want => Look::Done(()),
                Ok(names) => Look::Not(names),
                Err(error) => Look::Not(error.to_string()),
            }
        })
        .await
    }
}
