//! Keeps endpoints right while they live: their identity follows the labels of pod and namespace,
//! their object follows them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::lifecycle::Inner;
use super::pods::{Change, PodFacts};
use super::publish::Place;
use super::{EndpointState, Error, Lifecycle, LocalEndpoint, PodKey};
use crate::policy::Trouble;

/// Endpoints that are looked at at the same time.
const WORKERS: usize = 16;

/// The pods whose endpoints are to be looked at.
#[derive(Debug)]
pub(super) struct Queue(Lanes<PodKey>);

impl Queue {
    pub(super) fn new(workqueues: &Workqueues) -> Self {
        let retry = Retry {
            base: Duration::from_millis(200),
            cap: Duration::from_secs(10),
            max: u32::MAX,
            ..Retry::default()
        };
        Self(Lanes::new(vec![Lane::new("endpoint")], retry, None, workqueues))
    }

    /// Looks at a pod's endpoint soon. What is no pod has no object to keep.
    pub(super) fn add(&self, pod: PodKey) {
        if !pod.name.is_empty() {
            self.0.add(0, pod);
        }
    }
}

/// What became of bringing an endpoint up to date.
pub(super) enum Refreshed {
    /// It is so now.
    Now(Arc<LocalEndpoint>),
    /// It went away meanwhile, or is another's to bring up to date.
    Gone,
    /// It has to wait for others.
    Later(Duration),
}

impl Lifecycle {
    /// Follows pods, namespaces and identities until the token is cancelled.
    pub async fn run(&self, mut told: UnboundedReceiver<Change>, token: CancellationToken) {
        let Inner { parts, queue, .. } = &*self.0;
        let mut identities = parts.identities.subscribe();
        let mut unlisted = parts.ipcache.unlisted();
        let mut nodes = parts.nodes.subscribe();
        let address = || parts.nodes.local().and_then(|local| local.address());
        let mut published = address();
        let mut policies = parts.enforcer.view();
        let mut troubled = HashMap::new();
        let follow = async {
            loop {
                tokio::select! {
                    change = told.recv() => match change {
                        None => return,
                        Some(Change::Pod(pod)) => queue.add(pod),
                        Some(Change::Namespace(name)) => {
                            let of_namespace = |endpoint: &Arc<LocalEndpoint>| endpoint.namespace == name;
                            self.look_at(of_namespace);
                        }
                    },
                    changed = identities.changed() => match changed {
                        Err(_) => return,
                        Ok(()) => self.look_at(|endpoint| !self.identity_is_current(endpoint)),
                    },
                    Ok(()) = policies.changed() => {
                        let now = self.troubled();
                        if now != troubled {
                            self.look_at(|endpoint| now.get(&endpoint.id) != troubled.get(&endpoint.id));
                            troubled = now;
                        }
                    }
                    changed = nodes.changed() => match changed {
                        Err(_) => return,
                        // Others send to the node's address that objects name.
                        Ok(()) => if std::mem::replace(&mut published, address()) != published {
                            self.look_at(|_| true);
                        },
                    },
                    address = unlisted.recv() => match address {
                        Err(RecvError::Closed) => return,
                        Err(RecvError::Lagged(_)) => self.publish_again(|_| true),
                        Ok(address) => self.publish_again(|endpoint| {
                            endpoint.addresses().any(|own| own == address)
                        }),
                    },
                }
            }
        };
        let work = queue.0.run(WORKERS, &token, async |job| self.reconcile(&job.key).await);
        tokio::select! {
            () = token.cancelled() => {}
            () = follow => {}
            () = work => {}
        }
    }

    /// Looks at every endpoint for which `concerns` is true.
    pub(super) fn look_at(&self, concerns: impl Fn(&Arc<LocalEndpoint>) -> bool) {
        let endpoints = self.0.parts.endpoints.list();
        endpoints
            .iter()
            .filter(|endpoint| concerns(endpoint))
            .for_each(|endpoint| self.0.queue.add(endpoint.key()));
    }

    /// Somebody may have deleted the objects of these endpoints.
    fn publish_again(&self, concerns: impl Fn(&Arc<LocalEndpoint>) -> bool) {
        for endpoint in self.0.parts.endpoints.list().iter().filter(|one| concerns(one)) {
            self.0.publisher.doubt(&endpoint.key());
            self.0.queue.add(endpoint.key());
        }
    }

    /// The endpoints whose policy is in trouble.
    fn troubled(&self) -> HashMap<u16, Trouble> {
        let view = self.0.parts.enforcer.view().borrow().clone();
        view.endpoints.iter().filter_map(|one| Some((one.id, one.trouble()?))).collect()
    }

    fn identity_is_current(&self, endpoint: &LocalEndpoint) -> bool {
        let identities = &self.0.parts.identities;
        endpoint.identity.is_some_and(|identity| identities.is_current(&endpoint.labels, identity))
    }

    async fn reconcile(&self, pod: &PodKey) -> Result<Next, Error> {
        let Inner { parts, publisher, .. } = &*self.0;
        parts.pods.wait_synced().await;
        let endpoint = parts.endpoints.of_pod(pod);
        let facts = parts.pods.get(pod);
        if facts.is_none() {
            parts.ipam.forget(&pod.to_string());
        }
        let (Some(endpoint), Some(facts)) = (endpoint, facts) else {
            return publisher.withdraw(pod).await.map(|()| Next::Done);
        };
        if facts.uid != endpoint.pod_uid {
            // The pod has gone and another one of its name is on its way.
            return publisher.withdraw(pod).await.map(|()| Next::Done);
        }
        let endpoint = match self.refresh(endpoint, Some(&facts)).await? {
            Refreshed::Now(endpoint) => endpoint,
            Refreshed::Gone => return Ok(Next::Done),
            Refreshed::Later(wait) => return Ok(Next::After(wait)),
        };
        let node = parts
            .nodes
            .local()
            .ok_or_else(|| Error::NotReady("it does not know its own node yet".to_owned()))?;
        let place = Place {
            node: &node.address().map(|address| address.to_string()).unwrap_or_default(),
            addresses: &node.addresses().map(|address| address.to_string()).collect::<Vec<_>>(),
            trouble: parts.enforcer.view().borrow().trouble(endpoint.id),
            pod_host: facts.host_ip.as_deref(),
        };
        let uid = publisher.publish(&endpoint, &place).await?;
        self.update(&endpoint, |endpoint| endpoint.published_uid = Some(uid.clone())).await?;
        Ok(Next::Done)
    }

    /// Brings an endpoint up to date with its pod, if it is one's, and with its own labels.
    pub(super) async fn refresh(
        &self,
        endpoint: Arc<LocalEndpoint>,
        facts: Option<&PodFacts>,
    ) -> Result<Refreshed, Error> {
        let parts = &self.0.parts;
        let present = || {
            let present = parts.endpoints.get(endpoint.id)?;
            let here = present.attachment() == endpoint.attachment()
                && present.state != EndpointState::Disconnecting;
            // Whoever has given it other labels meanwhile brings it up to date with them.
            (here && present.own == endpoint.own).then_some(present)
        };
        if present().is_none() {
            return Ok(Refreshed::Gone);
        }
        let labels = endpoint.own.over(&self.labels(&endpoint.namespace, facts).await?);
        let former = endpoint.identity.filter(|_| labels == endpoint.labels);
        let identity = match former {
            Some(identity) if parts.identities.is_current(&labels, identity) => identity,
            former => {
                parts.endpoints.mark(&endpoint, EndpointState::WaitingForIdentity);
                parts.identities.allocate_like(&labels, former).await?
            }
        };
        let moved = endpoint.identity != Some(identity);
        // Nobody is to get packets from an identity that he has not heard of. Meanwhile an older one of the same
        // labels may turn up: then that one is taken on, and this one never.
        if moved && let Some(wait) = parts.identities.grace(identity) {
            return Ok(Refreshed::Later(wait));
        }
        let _turn = self.0.turns.take(endpoint.attachment()).await;
        let Some(present) = present() else { return Ok(Refreshed::Gone) };
        let mut wanted = LocalEndpoint::clone(&present);
        (wanted.labels, wanted.identity) = (labels, Some(identity));
        if let Some(facts) = facts {
            wanted.object_uid.clone_from(&facts.object_uid);
            wanted.pod_labels.clone_from(&facts.labels);
            wanted.service_account.clone_from(&facts.service_account);
            wanted.named_ports.clone_from(&facts.named_ports);
        }
        wanted.state = EndpointState::Ready;
        if wanted == *present {
            return Ok(Refreshed::Now(present));
        }
        parts.endpoints.mark(&present, EndpointState::Regenerating);
        // The policy of the new identity has to be there before the first packet under it.
        self.realize(&wanted).await?;
        if moved {
            parts.map.put(&wanted)?;
            tracing::info!(id = wanted.id, pod = %wanted.key(), %identity, "endpoint changed its identity");
        }
        parts.files.write(&wanted)?;
        Ok(Refreshed::Now(parts.endpoints.put(wanted)))
    }

    /// Notes something about an endpoint, if it is still there.
    async fn update(
        &self,
        endpoint: &LocalEndpoint,
        change: impl Fn(&mut LocalEndpoint),
    ) -> Result<(), Error> {
        let _turn = self.0.turns.take(endpoint.attachment()).await;
        let parts = &self.0.parts;
        let Some(present) = parts.endpoints.get(endpoint.id) else { return Ok(()) };
        let mut wanted = LocalEndpoint::clone(&present);
        change(&mut wanted);
        if present.attachment() == endpoint.attachment() && wanted != *present {
            parts.files.write(&wanted)?;
            parts.endpoints.put(wanted);
        }
        Ok(())
    }
}
