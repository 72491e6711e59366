//! Keeps this node's `CiliumNode` right, and knows all others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::CiliumNode;
use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use cilia_runtime::watch::{Event, Scope, watch, watch_scoped};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::own::{self, Facts, Write};
use super::{Config, Error, LocalNode, NodeInfo, Nodes};
use crate::ipam::Ipam;
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

#[derive(Debug, Default)]
struct Seen {
    facts: Option<Facts>,
    own: Option<Arc<CiliumNode>>,
    synced: bool,
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
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        Self { config, client, nodes, ipam, readiness, boot_id, seen: Mutex::default(), lanes }
    }

    /// Watches and writes until the token is cancelled.
    pub async fn run(&self, token: CancellationToken) {
        let own =
            Scope { fields: format!("metadata.name={}", self.config.name), ..Scope::default() };
        let kubernetes = watch_scoped::<Node>(Api::all(self.client.clone()), own);
        let cilium = watch::<CiliumNode>(Api::all(self.client.clone()));
        let follow = async {
            tokio::pin!(kubernetes, cilium);
            loop {
                tokio::select! {
                    Some(event) = kubernetes.next() => self.node(event),
                    Some(event) = cilium.next() => self.cilium_node(event),
                    else => return,
                }
            }
        };
        let work = self.lanes.run(1, &token, async |_| {
            self.reconcile().await?;
            Ok::<_, Error>(Next::Done)
        });
        tokio::select! {
            () = token.cancelled() => {}
            () = follow => {}
            () = work => {}
        }
    }

    fn node(&self, event: Event<Node>) {
        if let Event::Applied(node) = event {
            let facts = Facts::from(&node);
            let news = self.seen().facts.replace(facts.clone()) != Some(facts);
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
                    self.seen().own = Some(Arc::new(node));
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

    async fn reconcile(&self) -> Result<(), Error> {
        let (facts, own) = {
            let seen = self.seen();
            match (&seen.facts, seen.synced) {
                (Some(facts), true) => (facts.clone(), seen.own.clone()),
                (None, _) => {
                    let name = &self.config.name;
                    self.readiness
                        .close(GATE, format!("waiting for Kubernetes to have a Node {name}"));
                    return Ok(());
                }
                (_, false) => return Ok(()),
            }
        };
        let ranges = own::ranges(&self.config, &facts, own.as_deref());
        let routers = ranges.as_deref().map(own::routers).unwrap_or_default();
        let local = self.nodes.local();
        let former = local.as_ref().map(|local| local.pod_cidrs.as_slice()).unwrap_or_default();
        let own = own.as_deref();
        let write = own::write(&self.config, &facts, &routers, &self.boot_id, former, own);
        if let Some(write) = write {
            self.write(write).await?;
        }
        match ranges {
            Ok(ranges) => self.use_ranges(&facts, ranges, routers),
            Err(reason) => {
                self.readiness.close(GATE, reason);
                Ok(())
            }
        }
    }

    fn use_ranges(
        &self,
        facts: &Facts,
        ranges: Vec<ipnet::IpNet>,
        routers: Vec<std::net::IpAddr>,
    ) -> Result<(), Error> {
        use std::net::IpAddr;
        self.ipam.set_ranges(&ranges, &routers)?;
        let ipv4 = facts.internal(true).and_then(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let ipv6 = facts.internal(false).and_then(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        });
        let (name, labels) = (self.config.name.clone(), facts.labels.clone());
        self.nodes.set_local(LocalNode { name, ipv4, ipv6, pod_cidrs: ranges, routers, labels });
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
        match written {
            Ok(node) => {
                // The watch will say the same; until then this is what is there.
                self.seen().own = Some(Arc::new(node));
                Ok(())
            }
            Err(cause) => {
                Err(Error::Kubernetes { operation, name: name.clone(), cause: Box::new(cause) })
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
