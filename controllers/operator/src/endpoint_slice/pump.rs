//! Feeds the core: endpoints, slices, namespaces and the number of nodes, as they change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumNode};
use cilia_runtime::watch::{self, Key, PartialObjectMeta, watch};
use cilia_slices::Event;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::budget::Budget;
use super::confirm;
use super::reconciler::Reconciler;
use super::slim::Slim;
use super::store::seen;
use crate::wiring::Leading;

const PRIORITY_ANNOTATION: &str = "cilium.io/ces-namespace";
/// Events taken in at once while there are many.
const BATCH: usize = 256;
/// How often fragmentation is healed, one slice at a time, and slices are doubted of which no
/// watch has told.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often a standby looks whether a leader has registered the kinds by now.
const LOOK_FOR_KINDS: Duration = Duration::from_secs(5);

/// Endpoints, slices and namespaces.
const SOURCES: u32 = 3;

type Meta<K> = PartialObjectMeta<K>;

#[expect(clippy::large_enum_variant, reason = "told and dropped at once, never stored")]
enum Input {
    Endpoint(watch::Event<Slim<CiliumEndpoint>>),
    Slice(watch::Event<Slim<CiliumEndpointSlice>>),
    Namespace(watch::Event<Meta<Namespace>>),
    Node(watch::Event<Meta<CiliumNode>>),
}

pub(super) struct Pump {
    reconciler: Arc<Reconciler>,
    budget: Arc<Budget>,
    nodes: HashSet<Key>,
    /// Slices that the watch has told of, with their uids.
    told: HashMap<Arc<str>, String>,
    /// Slices that the watch had not told of at the last upkeep.
    doubtful: HashSet<String>,
    /// Of endpoints, slices and namespaces.
    synced: u32,
    leads: bool,
}

impl Pump {
    pub(super) fn new(reconciler: Arc<Reconciler>, budget: Arc<Budget>) -> Self {
        Self {
            reconciler,
            budget,
            nodes: HashSet::new(),
            told: HashMap::new(),
            doubtful: HashSet::new(),
            synced: 0,
            leads: false,
        }
    }

    /// Runs until `stop`; has slices written once this process leads.
    pub(super) async fn run(mut self, client: &Client, stop: &CancellationToken, leading: Leading) {
        let mut leads = std::pin::pin!(leading.begins());
        tokio::select! {
            () = stop.cancelled() => return,
            () = &mut leads => self.leads = true,
            () = served(client) => {}
        }
        let mut inputs = inputs(client).ready_chunks(BATCH);
        let mut upkeep = tokio::time::interval(UPKEEP);
        let mut confirmation = FuturesUnordered::new();
        let mut started = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut leads, if !self.leads => self.leads = true,
                _ = upkeep.tick() => self.keep_up(),
                Some(batch) = inputs.next() => self.take_in(batch),
                Some(()) = confirmation.next() => {}
            }
            if !started && self.leads && self.synced == SOURCES {
                started = true;
                self.reconciler.tell(|slices, _| slices.start());
                confirmation.push(confirm::run(client, &self.reconciler));
            }
        }
    }

    fn take_in(&mut self, batch: Vec<Input>) {
        let reconciler = Arc::clone(&self.reconciler);
        let synced = self.synced;
        reconciler.tell(|slices, now| {
            for input in batch {
                match input {
                    Input::Endpoint(watch::Event::Applied(Slim(endpoint))) => slices.apply(
                        Event::Endpoint {
                            namespace: endpoint.metadata.namespace.as_deref().unwrap_or_default(),
                            name: endpoint.metadata.name.as_deref().unwrap_or_default(),
                            status: endpoint.status.as_ref(),
                        },
                        now,
                    ),
                    Input::Endpoint(watch::Event::Deleted(Key { namespace, name })) => {
                        let event = Event::EndpointGone { namespace: &namespace, name: &name };
                        slices.apply(event, now);
                    }
                    Input::Slice(watch::Event::Applied(Slim(slice))) => {
                        self.told.insert(slice.name_any().into(), slice.uid().unwrap_or_default());
                        slices.apply(seen(&slice), now);
                    }
                    Input::Slice(watch::Event::Deleted(key)) => {
                        let uid = self.told.remove(&key.name).unwrap_or_default();
                        let event = Event::SliceGone { name: &key.name, uid: Some(&uid) };
                        slices.apply(event, now);
                    }
                    Input::Namespace(watch::Event::Applied(namespace)) => {
                        let annotation = namespace.annotations().get(PRIORITY_ANNOTATION);
                        let priority = annotation.is_some_and(|value| value == "priority");
                        let name = &namespace.name_any();
                        slices.apply(Event::Namespace { name, priority }, now);
                    }
                    Input::Namespace(watch::Event::Deleted(key)) => {
                        slices.apply(Event::Namespace { name: &key.name, priority: false }, now);
                    }
                    Input::Node(event) => self.node(event),
                    Input::Endpoint(watch::Event::Synced)
                    | Input::Slice(watch::Event::Synced)
                    | Input::Namespace(watch::Event::Synced) => {
                        self.synced += 1;
                    }
                }
            }
            if synced < self.synced && self.synced == SOURCES {
                let (endpoints, objects) = slices.len();
                info!(endpoints, slices = objects, "all endpoints and slices are known");
            }
        });
    }

    fn node(&mut self, event: watch::Event<Meta<CiliumNode>>) {
        match event {
            watch::Event::Applied(node) => self.nodes.insert(Key::of(&node)),
            watch::Event::Deleted(key) => self.nodes.remove(&key),
            watch::Event::Synced => true,
        };
        self.budget.nodes(self.nodes.len());
    }

    fn keep_up(&mut self) {
        let idle = self.reconciler.is_idle();
        self.doubtful = self.reconciler.tell(|slices, _| {
            let untold = |name: &&str| !self.told.contains_key(*name);
            let untold: HashSet<String> =
                slices.names().filter(untold).map(str::to_owned).collect();
            // Long enough for an event: the object may have been deleted while the watch was down.
            let doubtful: HashSet<&String> = self.doubtful.intersection(&untold).collect();
            if !doubtful.is_empty() {
                slices.relisted(|name| !doubtful.contains(&name.to_owned()));
            }
            if idle {
                slices.tidy();
            }
            untold
        });
    }
}

/// Completes when endpoints and slices can be listed.
async fn served(client: &Client) {
    let one = ListParams::default().limit(1);
    let endpoints: Api<Slim<CiliumEndpoint>> = Api::all(client.clone());
    let slices: Api<Slim<CiliumEndpointSlice>> = Api::all(client.clone());
    loop {
        match tokio::try_join!(endpoints.list_metadata(&one), slices.list_metadata(&one)) {
            Ok(_) => return,
            Err(error) => debug!(%error, "endpoints and slices cannot be followed yet"),
        }
        tokio::time::sleep(LOOK_FOR_KINDS).await;
    }
}

fn inputs(client: &Client) -> impl Stream<Item = Input> + Send + Unpin + use<> {
    let endpoints = watch(Api::<Slim<CiliumEndpoint>>::all(client.clone())).map(Input::Endpoint);
    let slices = watch(Api::<Slim<CiliumEndpointSlice>>::all(client.clone())).map(Input::Slice);
    let namespaces = watch(Api::<Meta<Namespace>>::all(client.clone())).map(Input::Namespace);
    let nodes = watch(Api::<Meta<CiliumNode>>::all(client.clone())).map(Input::Node);
    futures::stream::select_all([
        endpoints.boxed(),
        slices.boxed(),
        namespaces.boxed(),
        nodes.boxed(),
    ])
}
