//! The node itself as an endpoint: its number, its labels, and when its policy begins to count.
//!
//! The programs ask for the node's policy only once its map has been written: a node that has not heard
//! of its policies yet must not cut itself off from the API server that would tell it.

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

/// The number of the node's own endpoint; no pod gets it.
pub const ENDPOINT: u16 = u16::MAX;

/// The node as a subject. Its labels, which node selectors match, come with the nodes.
pub(super) fn subject() -> Subject {
    Subject {
        identity: NumericIdentity::HOST,
        labels: Arc::new(Labels::reserved("host")),
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

/// Has the programs ask for the node's policy, through `base`, as soon as it is in place.
pub async fn guard(
    enforcer: Enforcer,
    base: watch::Sender<NodeConfig>,
    workqueues: Workqueues,
    stop: CancellationToken,
) {
    let lane = vec![Lane::new("host-policy")];
    let lanes: Lanes<()> = Lanes::new(lane, Retry::default(), None, &workqueues);
    lanes.add(0, ());
    let work = lanes.run(1, &stop, async |_| {
        enforcer.realize_host().await?;
        base.send_if_modified(|base| base.host_endpoint.replace(ENDPOINT) != Some(ENDPOINT));
        Ok::<_, Error>(Next::Done)
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}
