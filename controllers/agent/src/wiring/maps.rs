//! Starts what fills the maps that programs read: ipcache, policy, services.

use std::sync::Arc;

use cilia_loader::Datapath;
use tokio::sync::mpsc;

use super::Agent;
use crate::config::Settings;
use crate::endpoint::Endpoints;
use crate::identity::Identities;
use crate::ipcache::{self, Cache};
use crate::kvstore::Kvstore;
use crate::node::Nodes;
use crate::policy::{self, Enforcer};
use crate::readiness::Readiness;
use crate::service::Services;

/// What filling the maps takes.
pub(super) struct Maps<'a> {
    pub(super) settings: &'a Settings,
    pub(super) client: &'a kube::Client,
    pub(super) nodes: &'a Nodes,
    pub(super) endpoints: &'a Endpoints,
    pub(super) identities: &'a Identities,
    pub(super) cache: &'a Cache,
    pub(super) enforcer: &'a Enforcer,
    pub(super) services: &'a Services,
    pub(super) datapath: &'a Arc<Datapath>,
    pub(super) readiness: &'a Readiness,
    pub(super) fed: Option<mpsc::Receiver<Vec<ipcache::Fed>>>,
}

impl Agent {
    /// Has the maps filled, and kept right until the agent stops.
    pub(super) fn fill_maps(&mut self, maps: Maps<'_>) {
        let (datapath, readiness) = (maps.datapath, maps.readiness);
        let sources = ipcache::Sources {
            client: maps.client.clone(),
            slices: maps.settings.slices,
            nodes: maps.nodes.clone(),
            endpoints: maps.endpoints.clone(),
            kubernetes: !Kvstore::feeds(&maps.settings.kvstore),
            fed: maps.fed,
        };
        let stop = self.stop.clone();
        self.spawn(
            "ipcache",
            maps.cache.clone().run(sources, datapath.clone(), readiness.clone(), stop.clone()),
        );
        let sources = policy::Sources {
            client: maps.client.clone(),
            kinds: maps.settings.kinds,
            identities: maps.identities.clone(),
            nodes: maps.nodes.clone(),
            ipcache: maps.cache.clone(),
        };
        self.spawn(
            "policy",
            maps.enforcer.clone().run(sources, datapath.clone(), readiness.clone(), stop.clone()),
        );
        let node = maps.settings.node.name.clone();
        self.spawn(
            "services",
            maps.services.clone().run(
                maps.client.clone(),
                node,
                datapath.clone(),
                readiness.clone(),
                stop,
            ),
        );
    }
}
