//! Feeds the core: endpoints, slices, namespaces and the number of nodes, as they change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{self, Key, PartialObjectMeta, watch};
use cilia_slices::Event;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::budget::Budget;
use super::confirm::confirm;
use super::reconciler::Reconciler;
use super::slim::{Slice, Slim};
use super::store::heard;
use crate::failure::{Failure, NOT_FOUND};
use crate::wiring::{Context, Leading};

const PRIORITY_ANNOTATION: &str = "cilium.io/ces-namespace";
/// Events taken in at once while there are many.
const BATCH: usize = 256;
/// How often fragmentation is healed, one slice at a time, slices are doubted of which no watch has
/// told, and silence of the API server is noticed.
const UPKEEP: Duration = Duration::from_secs(5);
/// How many slices are doubted at once: each is read.
const DOUBTS: usize = 16;
/// A standby looks so often whether a leader has registered the kinds by now, and a leader so often tries
/// to make certain of all slices.
const AGAIN: Retry = Retry {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(5),
    max: u32::MAX,
    recheck: Duration::from_secs(5),
};

/// Endpoints, slices and namespaces.
const SOURCES: u32 = 3;

type Meta<K> = PartialObjectMeta<K>;

#[expect(clippy::large_enum_variant, reason = "told and dropped at once, never stored")]
enum Input {
    Endpoint(watch::Event<Slim<CiliumEndpoint>>),
    Slice(watch::Event<Slice>),
    Namespace(watch::Event<Meta<Namespace>>),
    Node(watch::Event<Meta<CiliumNode>>),
}

/// What has to succeed once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// Endpoints and slices can be listed.
    Served,
    /// All slices have been read since this process leads.
    Confirmed,
}

pub(super) struct Pump {
    client: Client,
    /// The steps on the way, with their retries.
    steps: Lanes<Step>,
    reconciler: Arc<Reconciler>,
    budget: Arc<Budget>,
    nodes: HashSet<Key>,
    /// Slices that the watch has told of, with their uids.
    told: HashMap<Arc<str>, String>,
    /// Slices that the watch has not told of, with the upkeep at which they were doubted last.
    untold: HashMap<String, u64>,
    upkeeps: u64,
    /// Of endpoints, slices and namespaces.
    synced: u32,
    leads: bool,
}

impl Pump {
    pub(super) fn new(reconciler: Arc<Reconciler>, budget: Arc<Budget>, context: &Context) -> Self {
        let lane = Lane::new("cilium_endpoint_slice_start");
        Self {
            client: context.slices.clone(),
            steps: Lanes::new(vec![lane], AGAIN, None, &context.workqueues),
            reconciler,
            budget,
            nodes: HashSet::new(),
            told: HashMap::new(),
            untold: HashMap::new(),
            upkeeps: 0,
            synced: 0,
            leads: false,
        }
    }

    /// Runs until `stop`; has slices written once this process leads.
    pub(super) async fn run(mut self, stop: &CancellationToken, leading: Leading) {
        let (steps, served) = (self.steps.clone(), Notify::new());
        let (client, reconciler) = (self.client.clone(), Arc::clone(&self.reconciler));
        let take = async |job: Job<Step>| -> Result<Next, Failure> {
            match job.key {
                Step::Served => match are_served(&client).await {
                    Ok(()) => served.notify_one(),
                    Err(failure) if failure.code() == Some(NOT_FOUND) => {
                        debug!(%failure, "endpoints and slices cannot be followed yet");
                        return Ok(Next::After(AGAIN.cap));
                    }
                    Err(failure) => return Err(failure),
                },
                Step::Confirmed => confirm(&client, &reconciler).await?,
            }
            Ok(Next::Done)
        };
        tokio::join!(steps.run(1, stop, take), self.follow(stop, leading, &served));
    }

    async fn follow(&mut self, stop: &CancellationToken, leading: Leading, served: &Notify) {
        let mut leads = std::pin::pin!(leading.begins());
        self.steps.add(0, Step::Served);
        tokio::select! {
            () = stop.cancelled() => return,
            () = &mut leads => self.leads = true,
            () = served.notified() => {}
        }
        let mut inputs = inputs(&self.client).ready_chunks(BATCH);
        let mut upkeep = tokio::time::interval(UPKEEP);
        let mut started = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut leads, if !self.leads => self.leads = true,
                _ = upkeep.tick() => self.keep_up(),
                Some(batch) = inputs.next() => self.take_in(batch),
            }
            if !started && self.leads && self.synced == SOURCES {
                started = true;
                self.reconciler.start();
                self.steps.add(0, Step::Confirmed);
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
                    Input::Slice(watch::Event::Applied(slice)) => {
                        self.told.insert(slice.name_any().into(), slice.uid().unwrap_or_default());
                        heard(slices, &slice, now);
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
        self.reconciler.nodes(self.nodes.len());
    }

    fn keep_up(&mut self) {
        self.upkeeps += 1;
        self.budget.pass();
        let idle = self.reconciler.is_idle();
        let reconciler = Arc::clone(&self.reconciler);
        let doubtful = reconciler.tell(|slices, _| {
            if idle {
                slices.tidy();
            }
            self.doubtful(slices.names())
        });
        if !doubtful.is_empty() {
            reconciler.doubt(&doubtful);
        }
    }

    /// Slices that the watch should have told of by now: they may have been deleted while it was down.
    /// A few at a time, those first that have not been doubted for longest.
    fn doubtful<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> HashSet<String> {
        let untold = names.filter(|name| !self.told.contains_key(*name));
        let (now, before) = (self.upkeeps, std::mem::take(&mut self.untold));
        self.untold = untold
            .map(|name| (name.to_owned(), before.get(name).copied().unwrap_or(now)))
            .collect();
        let waiting = self.untold.iter().filter(|(_, since)| **since < now);
        let oldest: BTreeSet<(u64, String)> =
            waiting.map(|(name, since)| (*since, name.clone())).collect();
        let doubtful = oldest.into_iter().take(DOUBTS).map(|(_, name)| name);
        let doubtful: HashSet<String> = doubtful.collect();
        self.untold.extend(doubtful.iter().map(|name| (name.clone(), now)));
        doubtful
    }
}

/// Whether endpoints and slices can be listed.
async fn are_served(client: &Client) -> Result<(), Failure> {
    let one = ListParams::default().limit(1);
    let endpoints: Api<Slim<CiliumEndpoint>> = Api::all(client.clone());
    let slices: Api<Slice> = Api::all(client.clone());
    let listed = endpoints.list_metadata(&one).await;
    listed.map_err(Failure::of("list", "CiliumEndpoint", ""))?;
    let listed = slices.list_metadata(&one).await;
    listed.map_err(Failure::of("list", "CiliumEndpointSlice", "")).map(drop)
}

fn inputs(client: &Client) -> impl Stream<Item = Input> + Send + Unpin + use<> {
    let endpoints = watch(Api::<Slim<CiliumEndpoint>>::all(client.clone())).map(Input::Endpoint);
    let slices = watch(Api::<Slice>::all(client.clone())).map(Input::Slice);
    let namespaces = watch(Api::<Meta<Namespace>>::all(client.clone())).map(Input::Namespace);
    let nodes = watch(Api::<Meta<CiliumNode>>::all(client.clone())).map(Input::Node);
    futures::stream::select_all([
        endpoints.boxed(),
        slices.boxed(),
        namespaces.boxed(),
        nodes.boxed(),
    ])
}
