//! Connects pods: every step of it, in order.
//!
//! An attachment (container and interface) is worked on by one at a time, so that a DEL that comes
//! while its ADD is still under way waits for it, and undoes all of it. Different attachments
//! don't wait for each other.

use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::Labels;
use cilia_identity::PodLabels;
use cilia_ipam::{Candidate, Family};

use super::lifecycle::Inner;
use super::pods::PodFacts;
use super::{EndpointState, Error, Lifecycle, LocalEndpoint, OwnLabels, PodKey, Wanted};
use crate::device::name::{Mac, pod_device};
use crate::device::netns::Netns;
use crate::device::pod;
use crate::ipam;
use crate::node::LocalNode;

/// How long a pod may take to be found at the API server.
const FIND_POD: Duration = Duration::from_secs(15);
/// How long an identity may take.
const IDENTIFY: Duration = Duration::from_secs(30);
/// How long the policy of a new endpoint may take.
const REALIZE: Duration = Duration::from_secs(30);

/// A pod that wants to be connected.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The container.
    pub container_id: String,
    /// Its network namespace.
    pub netns: String,
    /// The device's name inside.
    pub ifname: String,
    /// The pod; what is no pod gets the identity `init`.
    pub pod: Option<PodKey>,
    /// The pod's uid, if the runtime says it.
    pub pod_uid: Option<String>,
    /// An MTU other than the node's.
    pub mtu: Option<u32>,
    /// The device, if whoever asks has made it.
    pub wired: Option<Wired>,
    /// Labels beside those of the pod.
    pub labels: Wanted,
}

/// A device that somebody else has made and set up inside of the pod, with its addresses.
#[derive(Debug, Clone)]
pub struct Wired {
    /// The number of the node's end; 0 if it was not said.
    pub ifindex: u32,
    /// The pod's link-layer address.
    pub mac: Mac,
    /// Its addresses, one of a family, each with whom it is lent to, if it is.
    pub addresses: Vec<(IpAddr, Option<String>)>,
}

/// A connected pod.
#[derive(Debug, Clone)]
pub struct Attached {
    /// Its endpoint.
    pub endpoint: Arc<LocalEndpoint>,
    /// Its device.
    pub device: pod::Attachment,
}

impl Lifecycle {
    /// Connects a pod. Whatever fails undoes everything.
    ///
    /// The work goes on when the caller goes away: half a pod would be left otherwise.
    pub async fn attach(&self, request: Request) -> Result<Attached, Error> {
        let this = self.clone();
        let work = tokio::spawn(async move { this.attach_in_turn(request).await });
        work.await
            .unwrap_or_else(|_| Err(Error::NotReady("connecting the pod broke off".to_owned())))
    }

    async fn attach_in_turn(&self, request: Request) -> Result<Attached, Error> {
        let Inner { parts, turns, .. } = &*self.0;
        let attachment = format!("{}:{}", request.container_id, request.ifname);
        let _turn = turns.take(attachment.clone()).await;
        let node = parts
            .nodes
            .local()
            .ok_or_else(|| Error::NotReady("it does not know its own node yet".to_owned()))?;
        if let Some(endpoint) = parts.endpoints.of_attachment(&attachment) {
            if request.wired.is_some() {
                let fault = format!("endpoint {} has it", endpoint.id);
                return Err(Error::Attached { attachment, fault });
            }
            return self.again(endpoint, &request, &node).await;
        }
        let facts = match &request.pod {
            Some(key) => {
                let found = parts.pods.find(key, request.pod_uid.as_deref());
                Some(in_time("find", &key.to_string(), FIND_POD, found).await??)
            }
            None => None,
        };
        let id = parts.endpoints.claim().ok_or(Error::NoId(attachment))?;
        let mut endpoint = LocalEndpoint {
            sequence: parts.endpoints.next_sequence(),
            ..blank(id, &request, facts.as_deref())
        };
        parts.endpoints.note(id, EndpointState::WaitingForIdentity);
        let built = Box::pin(self.build(&mut endpoint, &request, facts.as_deref(), &node)).await;
        match built {
            Ok(device) => {
                endpoint.state = EndpointState::Ready;
                let endpoint = parts.endpoints.put(endpoint);
                tracing::info!(id, pod = %endpoint.key(), identity = ?endpoint.identity, "endpoint connected");
                self.0.queue.add(endpoint.key());
                Ok(Attached { endpoint, device })
            }
            Err(error) => {
                match self.erase(&endpoint).await {
                    Ok(()) => parts.endpoints.abandon(id),
                    Err(left) => {
                        tracing::warn!(id, %left, "could not undo everything of a pod that could not be connected");
                        // The runtime's DEL goes on with it.
                        endpoint.state = EndpointState::Disconnecting;
                        parts.endpoints.put(endpoint);
                    }
                }
                Err(error)
            }
        }
    }

    /// The same request once more: fine if what is there is what is asked for.
    async fn again(
        &self,
        endpoint: Arc<LocalEndpoint>,
        request: &Request,
        node: &LocalNode,
    ) -> Result<Attached, Error> {
        let device = self.device(&endpoint, node, request.mtu);
        let faults = match Netns::open(Path::new(&request.netns)) {
            Ok(netns) => pod::faults(&netns, &device).await?,
            Err(error) => vec![error.to_string()],
        };
        match faults.into_iter().next() {
            None => Ok(Attached { endpoint, device }),
            Some(fault) => Err(Error::Attached { attachment: endpoint.attachment(), fault }),
        }
    }

    async fn build(
        &self,
        endpoint: &mut LocalEndpoint,
        request: &Request,
        facts: Option<&PodFacts>,
        node: &LocalNode,
    ) -> Result<pod::Attachment, Error> {
        let parts = &self.0.parts;
        if let Some(wired) = &request.wired {
            self.claim(endpoint, wired)?;
        } else {
            // Before anything is taken.
            Netns::open(Path::new(&request.netns))?;
            let wanted = self.wanted(endpoint, facts).await?;
            let owner = endpoint.owner();
            let pod = if facts.is_some() { endpoint.key().to_string() } else { owner.clone() };
            let pair = parts.ipam.allocate_out_of(&wanted, &owner, &pod).await?;
            (endpoint.ipv4, endpoint.ipv6) = (pair.ipv4, pair.ipv6);
        }
        let device = self.device(endpoint, node, request.mtu);
        let pod = endpoint.key().to_string();
        let identified = async {
            let pods = self.labels(&endpoint.namespace, facts).await?;
            let mut own = OwnLabels::default();
            own.set(&request.labels, &pods, |label| parts.config.filter.accepts(label))?;
            let labels = own.over(&pods);
            let number = parts.identities.allocate(&labels).await?;
            Ok::<_, Error>((labels, own, number))
        };
        let connected = self.connect(request, &device);
        let (connected, identified) =
            tokio::join!(connected, in_time("identify", &pod, IDENTIFY, identified));
        let connected = connected?;
        let (labels, own, number) = identified??;
        (endpoint.ifindex, endpoint.mac, endpoint.node_mac) =
            (connected.ifindex, connected.mac, connected.node_mac);
        (endpoint.labels, endpoint.own, endpoint.identity) = (labels, own, Some(number));
        parts.files.write(endpoint)?;
        parts.endpoints.note(endpoint.id, EndpointState::Regenerating);
        // Neither lets a packet pass before the map knows the endpoint's addresses.
        let (realized, attached) =
            tokio::join!(self.realize(endpoint), self.attach_programs(endpoint));
        realized.and(attached)?;
        parts.map.put(endpoint)?;
        Ok(device)
    }

    /// Gives an endpoint the addresses that its device has.
    fn claim(&self, endpoint: &mut LocalEndpoint, wired: &Wired) -> Result<(), Error> {
        let (ipam, owner) = (&self.0.parts.ipam, endpoint.owner());
        for (address, lent) in &wired.addresses {
            match lent {
                Some(borrower) => ipam.pass(*address, borrower, &owner)?,
                None => ipam.claim(*address, &owner)?,
            }
            match address {
                IpAddr::V4(address) => endpoint.ipv4 = Some(*address),
                IpAddr::V6(address) => endpoint.ipv6 = Some(*address),
            }
        }
        Ok(())
    }

    /// Makes the device, or takes the one that is there.
    async fn connect(
        &self,
        request: &Request,
        device: &pod::Attachment,
    ) -> Result<pod::Attached, Error> {
        let parts = &self.0.parts;
        let Some(wired) = &request.wired else {
            let netns = Netns::open(Path::new(&request.netns))?;
            return Ok(pod::attach(&parts.netlink, &parts.sysctl, &netns, device).await?);
        };
        let wrong = |field, reason| Err(Error::Request { field, reason });
        let name = &device.host_device;
        let Some(link) = parts.netlink.link(name).await? else {
            return wrong("interface-name", format!("there is no device {name} on this node"));
        };
        if ![0, link.index].contains(&wired.ifindex) {
            return wrong("interface-index", format!("{name} has number {}", link.index));
        }
        let device = pod::Attachment { mtu: link.mtu, ..device.clone() };
        let ifindex =
            pod::configure_node_end(&parts.netlink, &parts.sysctl, &device, wired.mac).await?;
        Ok(pod::Attached { ifindex, mac: wired.mac, node_mac: link.mac })
    }

    /// Out of which pool an endpoint gets an address of each family.
    async fn wanted(
        &self,
        endpoint: &LocalEndpoint,
        facts: Option<&PodFacts>,
    ) -> Result<ipam::Wanted, Error> {
        let parts = &self.0.parts;
        let on = [(parts.config.ipv4, Family::V4), (parts.config.ipv6, Family::V6)];
        let families = on.into_iter().filter_map(|(on, family)| on.then_some(family));
        let pools = parts.ipam.pools();
        let Some(facts) = facts.filter(|_| parts.ipam.has_pools()) else {
            return Ok(pools.choose(families, None)?);
        };
        in_time("choose the pool", &endpoint.key().to_string(), FIND_POD, pools.wait_synced())
            .await?;
        let namespace_labels = parts.pods.namespace_labels(&endpoint.namespace).await?;
        let candidate = Candidate {
            namespace: &endpoint.namespace,
            name: &endpoint.pod,
            labels: &facts.labels,
            annotations: &facts.annotations,
            namespace_labels: &namespace_labels,
            namespace_annotations: &parts.pods.namespace_annotations(&endpoint.namespace),
        };
        Ok(pools.choose(families, Some(candidate))?)
    }

    /// The labels that make the identity of a pod's endpoint, without those of its own.
    pub(super) async fn labels(
        &self,
        namespace: &str,
        facts: Option<&PodFacts>,
    ) -> Result<Labels, Error> {
        let Some(facts) = facts else { return Ok(Labels::reserved("init")) };
        let config = &self.0.parts.config;
        let namespace_labels = self.0.parts.pods.namespace_labels(namespace).await?;
        let labels = PodLabels {
            namespace,
            service_account: &facts.service_account,
            cluster: &config.cluster,
            pod: &facts.labels,
            namespace_labels: &namespace_labels,
        };
        Ok(self.0.parts.identities.of_endpoint(labels.identity(&config.filter)))
    }

    /// Puts an endpoint's policy into its map.
    pub(super) async fn realize(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        let pod = endpoint.key().to_string();
        let realized = self.0.parts.enforcer.realize(endpoint);
        Ok(in_time("realize the policy", &pod, REALIZE, realized).await??)
    }

    /// Puts the programs on an endpoint's device.
    pub(super) async fn attach_programs(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        let (ifindex, name) = (endpoint.ifindex, endpoint.host_device.clone());
        self.on_datapath("attach programs", endpoint.id, move |datapath| {
            datapath.attach_endpoint(ifindex, &name)
        })
        .await
    }
}

/// An endpoint that has nothing but a number yet.
fn blank(id: u16, request: &Request, facts: Option<&PodFacts>) -> LocalEndpoint {
    let pod =
        request.pod.clone().unwrap_or(PodKey { namespace: String::new(), name: String::new() });
    LocalEndpoint {
        id,
        pod_uid: facts.map(|facts| facts.uid.clone()).unwrap_or_default(),
        object_uid: facts.map(|facts| facts.object_uid.clone()).unwrap_or_default(),
        container_id: request.container_id.clone(),
        ifname: request.ifname.clone(),
        netns: request.netns.clone(),
        host_device: pod_device(&request.container_id, &request.ifname),
        ifindex: 0,
        mac: Mac::default(),
        node_mac: Mac::default(),
        ipv4: None,
        ipv6: None,
        identity: None,
        labels: Labels::new(),
        own: OwnLabels::default(),
        pod_labels: facts.map(|facts| facts.labels.clone()).unwrap_or_default(),
        service_account: facts.map(|facts| facts.service_account.clone()).unwrap_or_default(),
        named_ports: facts.map(|facts| facts.named_ports.clone()).unwrap_or_default(),
        sequence: 0,
        state: EndpointState::WaitingForIdentity,
        published_uid: None,
        namespace: pod.namespace,
        pod: pod.name,
    }
}

/// Gives up on a step that takes too long.
async fn in_time<T>(
    step: &'static str,
    pod: &str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let late = |_| Error::Late { step, pod: pod.to_owned(), seconds: limit.as_secs() };
    tokio::time::timeout(limit, work).await.map_err(late)
}
