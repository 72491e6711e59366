//! Keeps this node's `CiliumNode` right, and knows all others.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::CiliumNode;
use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use cilia_runtime::watch::{Event, Scope, watch, watch_scoped};
use futures::StreamExt as _;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::own::{self, Facts, Write};
use super::{CILIUM_INTERNAL_IP, Config, Error, IpamMode, LocalNode, NodeInfo, Nodes, supply};
use crate::device;
use crate::ipam::{Ipam, ROUTER};
use crate::readiness::Readiness;

/// The gate of readiness that opens when this node has the ranges of its pods.
const GATE: &str = "node";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Keeps [`Nodes`] and this node's object.
pub struct Keeper {
    config: Config,
    client: Client,
    nodes: Nodes,
    ipam: Ipam,
    readiness: Readiness,
    boot_id: String,
    seen: Mutex<Seen>,
    lanes: Lanes<()>,
}

/// What tells this node's reboots apart; empty if the kernel does not say.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

#[derive(Debug, Default)]
struct Seen {
    facts: Option<Facts>,
    own: Option<Arc<CiliumNode>>,
    synced: bool,
    /// The addresses that a former agent gave `cilium_host`.
    former_routers: Vec<IpAddr>,
    /// When something was last written that nobody waited for.
    written: Option<Instant>,
}

impl Keeper {
    /// Will keep `nodes`, give `ipam` its ranges, and open the gate `node`.
    pub fn new(
        config: Config,
        client: Client,
        nodes: Nodes,
        ipam: Ipam,
        readiness: Readiness,
        workqueues: &Workqueues,
    ) -> Self {
        let retry = Retry {
            base: Duration::from_millis(200),
            cap: Duration::from_secs(10),
            max: u32::MAX,
            ..Retry::default()
        };
        let lanes = Lanes::new(vec![Lane::new("ciliumnode")], retry, None, workqueues);
        let boot_id = boot_id();
        Self { config, client, nodes, ipam, readiness, boot_id, seen: Mutex::default(), lanes }
    }

    /// Watches and writes until the token is cancelled.
    pub async fn run(&self, token: CancellationToken) {
        self.run_after(device::host::left_behind().await, token).await;
    }

    /// The same after an agent that gave the node's own device these addresses.
    async fn run_after(&self, routers: Vec<IpAddr>, token: CancellationToken) {
        self.remember_routers(routers);
        let own =
            Scope { fields: format!("metadata.name={}", self.config.name), ..Scope::default() };
        let kubernetes = watch_scoped::<Node>(Api::all(self.client.clone()), own);
        let cilium = watch::<CiliumNode>(Api::all(self.client.clone()));
        let mut demand = self.ipam.demand();
        let follow = async {
            tokio::pin!(kubernetes, cilium);
            loop {
                tokio::select! {
                    Some(event) = kubernetes.next() => self.node(event),
                    Some(event) = cilium.next() => self.cilium_node(event),
                    Ok(()) = demand.changed() => self.lanes.add(0, ()),
                    else => return,
                }
            }
        };
        let work = self.lanes.run(1, &token, async |_| self.reconcile().await);
        let pools = self.ipam.pools().clone();
        let pools = pools.run(self.client.clone(), token.clone(), || self.lanes.add(0, ()));
        tokio::select! {
            () = token.cancelled() => {}
            () = pools => {}
            () = follow => {}
            () = work => {}
        }
    }

    /// What the routers had stays theirs as far as the node has it still, also if its object is gone.
    fn remember_routers(&self, routers: Vec<IpAddr>) {
        if self.ipam.has_pools() {
            for router in &routers {
                // If a pod has it, it is the router's no more.
                drop(self.ipam.restore(*router, ROUTER));
            }
        }
        self.seen().former_routers = routers;
    }

    fn node(&self, event: Event<Node>) {
        if let Event::Applied(node) = event {
            let mut seen = self.seen();
            let facts = Facts::from(&node);
            let news = seen.facts.replace(facts.clone()) != Some(facts);
            drop(seen);
            if news {
                self.lanes.add(0, ());
            }
        }
    }

    fn cilium_node(&self, event: Event<CiliumNode>) {
        match event {
            Event::Applied(node) => {
                self.nodes.applied(NodeInfo::from(&node));
                if node.metadata.name.as_deref() == Some(&self.config.name) {
                    self.know(node);
                    self.lanes.add(0, ());
                }
            }
            Event::Deleted(key) => {
                self.nodes.deleted(&key.name);
                if *key.name == *self.config.name {
                    self.seen().own = None;
                    self.lanes.add(0, ());
                }
            }
            Event::Synced => {
                self.seen().synced = true;
                self.lanes.add(0, ());
            }
        }
    }

    async fn reconcile(&self) -> Result<Next, Error> {
        let (facts, own) = {
            let seen = self.seen();
            match (&seen.facts, seen.synced) {
                (Some(facts), true) => (facts.clone(), seen.own.clone()),
                (None, _) => {
                    let name = &self.config.name;
                    self.readiness
                        .close(GATE, format!("waiting for Kubernetes to have a Node {name}"));
                    return Ok(Next::Done);
                }
                (_, false) => return Ok(Next::Done),
            }
        };
        let own = own.as_deref();
        let allocated = supply::allocated(own);
        self.ipam.observe(own.map(|own| (supply::version(own), allocated.as_slice())));
        let ranges = own::ranges(&self.config, &facts, own);
        let local = self.nodes.local();
        let routers = match &ranges {
            Ok(ranges) => self.routers(ranges, own, local.as_deref()),
            Err(_) => Vec::new(),
        };
        let wait = self.wait();
        let time = own.is_none() || wait.is_none();
        let wish = self.ipam.wish(&supply::requested(own), time).map_err(Error::Notes)?;
        let former = local.as_ref().map(|local| local.pod_cidrs.as_slice()).unwrap_or_default();
        let write =
            |wish| own::write(&self.config, &facts, &routers, &self.boot_id, former, own, wish);
        let mut patch = write(wish.as_ref());
        let mut later = None;
        // What nobody waits for may be written along, or waits for its time.
        if let Some(wish) = wish.as_ref().filter(|wish| !time && !wish.urgent)
            && write(None).is_none()
        {
            later = wait.filter(|_| wish.later || patch.is_some());
            patch = None;
        }
        if let Some(write) = patch {
            self.write(write).await?;
            self.seen().written = Some(Instant::now());
        }
        match ranges {
            Ok(ranges) => self.use_ranges(&facts, ranges, routers)?,
            Err(reason) => self.readiness.close(GATE, reason),
        }
        if self.config.ipam == IpamMode::Crd {
            later = self.publish_use().await?;
        }
        Ok(later.map_or(Next::Done, Next::After))
    }

    /// How long what nobody waits for has to wait.
    fn wait(&self) -> Option<Duration> {
        let since = self.seen().written?.elapsed();
        self.config.update_rate.checked_sub(since).filter(|wait| !wait.is_zero())
    }

    fn routers(
        &self,
        ranges: &[IpNet],
        own: Option<&CiliumNode>,
        local: Option<&LocalNode>,
    ) -> Vec<IpAddr> {
        if matches!(self.config.ipam, IpamMode::ClusterPool | IpamMode::Kubernetes) {
            return own::routers(ranges);
        }
        let addresses = own.into_iter().flat_map(|own| &own.spec.addresses);
        let mut published: Vec<IpAddr> = addresses
            .filter(|address| address.address_type.as_deref() == Some(CILIUM_INTERNAL_IP))
            .filter_map(|address| address.ip.as_deref()?.parse().ok())
            .collect();
        published.extend(&self.seen().former_routers);
        let present = local.map(|local| local.routers.as_slice()).unwrap_or_default();
        supply::routers(ranges, present, &published, |address| self.ipam.owner(address))
    }

    /// Tells which addresses are in use, and answers to what is wanted back (mode crd); how long to
    /// wait before the next time.
    async fn publish_use(&self) -> Result<Option<Duration>, Error> {
        let Some(own) = self.seen().own.clone() else { return Ok(None) };
        // It may say more than what this look began with, and what is answered must hold from here on.
        let mut offered = supply::offered(Some(&own));
        offered.retain(|range| self.config.has_family(range));
        let routers = self.nodes.local().map(|local| local.routers.clone()).unwrap_or_default();
        self.ipam.set_ranges(&offered, &routers)?;
        let Some((status, urgent)) = supply::status(&own, &self.ipam.list()) else {
            return Ok(None);
        };
        if let Some(wait) = self.wait().filter(|_| !urgent) {
            return Ok(Some(wait));
        }
        let version = own.metadata.resource_version.as_deref().unwrap_or_default();
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let api: Api<CiliumNode> = Api::all(self.client.clone());
        let name = &self.config.name;
        let params = PatchParams::default();
        let written = api.patch_status(name, &params, &Patch::Merge(patch)).await;
        self.wrote("patch the status of", written).await?;
        self.seen().written = Some(Instant::now());
        Ok(None)
    }

    fn use_ranges(
        &self,
        facts: &Facts,
        ranges: Vec<IpNet>,
        routers: Vec<IpAddr>,
    ) -> Result<(), Error> {
        let pod_cidrs = match self.config.ipam {
            IpamMode::MultiPool { .. } => {
                self.ipam.set_routers(&routers)?;
                let mut all = self.ipam.ranges(None);
                all.retain(|range| self.config.has_family(range));
                all
            }
            IpamMode::Crd => {
                self.ipam.set_ranges(&ranges, &routers)?;
                IpNet::aggregate(&ranges)
            }
            IpamMode::ClusterPool | IpamMode::Kubernetes => {
                self.ipam.set_ranges(&ranges, &routers)?;
                ranges
            }
        };
        let ipv4 = facts.internal(true).and_then(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let ipv6 = facts.internal(false).and_then(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        });
        let (name, labels) = (self.config.name.clone(), facts.labels.clone());
        self.nodes.set_local(LocalNode { name, ipv4, ipv6, pod_cidrs, routers, labels });
        self.readiness.open(GATE);
        Ok(())
    }

    async fn write(&self, write: Write) -> Result<(), Error> {
        let api: Api<CiliumNode> = Api::all(self.client.clone());
        let name = &self.config.name;
        let (operation, written) = match write {
            Write::Create(node) => ("create", api.create(&PostParams::default(), &node).await),
            Write::Patch(patch) => {
                ("patch", api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
            }
        };
        self.wrote(operation, written).await
    }

    async fn wrote(
        &self,
        operation: &'static str,
        written: Result<CiliumNode, kube::Error>,
    ) -> Result<(), Error> {
        match written {
            Ok(node) => {
                // The watch will say the same; until then this is what is there.
                self.know(node);
                self.lanes.add(0, ());
                Ok(())
            }
            Err(cause) => {
                let name = self.config.name.clone();
                // What is known is wrong, and perhaps the watch has nothing to add.
                if matches!(&cause, kube::Error::Api(status) if matches!(status.code, 404 | 409)) {
                    let api: Api<CiliumNode> = Api::all(self.client.clone());
                    // Agents may list nodes, not get one.
                    let own = ListParams::default().fields(&format!("metadata.name={name}"));
                    match api.list(&own).await.map(|mut list| list.items.pop()) {
                        Ok(Some(node)) => self.know(node),
                        Ok(None) => self.seen().own = None,
                        Err(_) => {}
                    }
                }
                Err(Error::Kubernetes { operation, name, cause: Box::new(cause) })
            }
        }
    }

    /// The node's own object is so; unless more is known: watch and answers don't come in order.
    fn know(&self, node: CiliumNode) {
        let mut seen = self.seen();
        if !seen.own.as_ref().is_some_and(|known| is_older(&node, known)) {
            seen.own = Some(Arc::new(node));
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `one` is the same object as `other` at an earlier time. Versions of one kind of object
/// are numbers that grow.
fn is_older(one: &CiliumNode, other: &CiliumNode) -> bool {
    let version = |node: &CiliumNode| node.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    one.metadata.uid == other.metadata.uid && version(one) < version(other)
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "supply_tests.rs"]
mod supply_tests;
