//! The node under the pods: its devices, the programs on them, and the policy of the node itself.

use std::sync::Arc;

use anyhow::Result;
use cilia_loader::{Datapath, NodeConfig};
use cilia_runtime::lanes::Workqueues;
use tokio::sync::watch;

use super::steps::{load, retried};
use super::{Agent, DATAPATH};
use crate::config::Settings;
use crate::device::mtu::Mtu;
use crate::device::{Netlink, Sysctl};
use crate::endpoint::{EndpointMap, Endpoints};
use crate::node::{LocalNode, Nodes, Plumbing};
use crate::policy::{self, Enforcer};
use crate::readiness::Readiness;

/// What there is once the node is prepared.
pub(super) struct Ground {
    pub(super) netlink: Netlink,
    pub(super) sysctl: Sysctl,
    pub(super) mtu: Mtu,
    pub(super) datapath: Arc<Datapath>,
    pub(super) map: EndpointMap,
    /// What programs know of the node beside its devices.
    pub(super) base: watch::Sender<NodeConfig>,
}

impl Agent {
    /// Makes the node's devices and loads the programs on them; keeps both right until the agent stops.
    pub(super) async fn prepare_node(
        &mut self,
        settings: &Settings,
        nodes: &Nodes,
        local: &LocalNode,
        readiness: &Readiness,
        workqueues: &Workqueues,
    ) -> Result<Ground> {
        let netlink = Netlink::connect()?;
        let sysctl = Sysctl::new(&settings.node.procfs);
        let plumbing = Plumbing::new(
            settings.node.clone(),
            nodes.clone(),
            netlink.clone(),
            sysctl.clone(),
            workqueues,
        );
        let devices =
            retried("node-devices", || plumbing.ensure(), readiness, DATAPATH, workqueues).await;
        let mtu = plumbing.mtu(local).await?;
        let base = policy::host::at_start(settings);
        let node = Plumbing::node_config(&devices, local, &base.borrow());
        let datapath = Arc::new(load(settings, &node).await?);
        let map = EndpointMap::new(datapath.endpoints());
        plumbing.ensure_hosts(&map, &devices).await?;
        readiness.open(DATAPATH);
        self.spawn("node devices and routes", {
            let (datapath, map, stop) = (datapath.clone(), map.clone(), self.stop.clone());
            let (base, guarded) = (base.subscribe(), settings.guarded_devices.clone());
            async move { plumbing.run(datapath, map, base, &guarded, stop).await }
        });
        Ok(Ground { netlink, sysctl, mtu, datapath, map, base })
    }

    /// What realizes policy: that of the node, too, if it has one.
    pub(super) fn enforce(
        &mut self,
        settings: &Settings,
        endpoints: &Endpoints,
        base: watch::Sender<NodeConfig>,
        workqueues: &Workqueues,
    ) -> Result<Enforcer> {
        let enforcer = Enforcer::new(
            settings.policy.clone(),
            policy::Settings { host: settings.host_firewall, lockdown: settings.lockdown },
        );
        if let Some(id) = enforcer.host() {
            endpoints.reserve(id);
            enforcer.restore_host()?;
            let guard =
                policy::host::guard(enforcer.clone(), base, workqueues.clone(), self.stop.clone());
            self.spawn("the node's policy", guard);
        }
        Ok(enforcer)
    }
}
