//! The node itself as an endpoint: its number, its labels, and when its policy begins to count.
//!
//! The programs ask for the node's policy only once its map has been written: a node that has not heard
//! of its policies yet must not cut itself off from the API server that would tell it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::NodeConfig;
use cilia_loader::maps::names::POLICY_PREFIX;
use cilia_policy::NamedPorts;
use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::realize::Subject;
use super::{Enforcer, Error};
use crate::node::Nodes;

/// The number of the node's own endpoint; no pod gets it.
pub const ENDPOINT: u16 = u16::MAX;

/// What the node's policy depends on: its labels, which node selectors match.
pub(super) fn subject(node_labels: &BTreeMap<String, String>) -> Subject {
    let mut labels = Labels::reserved("host");
    for (key, value) in node_labels {
        labels.insert("k8s", key, value);
    }
    Subject {
        identity: NumericIdentity::HOST,
        labels: Arc::new(labels),
        ports: NamedPorts::default(),
    }
}

/// What the programs know of the node at first. A former agent's policy of the node counts at once.
pub fn at_start(settings: &crate::config::Settings) -> watch::Sender<NodeConfig> {
    let pinned = settings.bpf_root.join("tc/globals").join(format!("{POLICY_PREFIX}{ENDPOINT:05}"));
    let guarded = settings.host_firewall && pinned.exists();
    let host_endpoint = guarded.then_some(ENDPOINT);
    watch::Sender::new(NodeConfig { host_endpoint, ..settings.datapath.clone() })
}

/// Keeps the node's policy that of its labels until `stop`, and has the programs ask for it, through
/// `base`, as soon as it is in place.
pub async fn guard(
    enforcer: Enforcer,
    nodes: Nodes,
    base: watch::Sender<NodeConfig>,
    workqueues: Workqueues,
    stop: CancellationToken,
) {
    let lane = vec![Lane::new("host-policy")];
    let lanes: Lanes<()> = Lanes::new(lane, Retry::default(), None, &workqueues);
    let mut changes = nodes.subscribe();
    let follow = async {
        lanes.add(0, ());
        while changes.changed().await.is_ok() {
            lanes.add(0, ());
        }
    };
    let work = lanes.run(1, &stop, async |_| {
        let local = nodes.wait_local().await;
        enforcer.realize_host(&local.labels).await?;
        base.send_if_modified(|base| base.host_endpoint.replace(ENDPOINT) != Some(ENDPOINT));
        Ok::<_, Error>(Next::Done)
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
        () = work => {}
    }
}
