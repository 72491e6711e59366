//! Decides what this node's `CiliumNode` says, which ranges it has, and how to put right what differs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cilia_crds::CiliumNode;
use cilia_crds::ciliumnode::ipam::IpamSpec;
use cilia_crds::ciliumnode::{NodeAddress, NodeSpec};
use cilia_ipam::Wish;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::{CILIUM_INTERNAL_IP, Config, INTERNAL_IP, IpamMode, supply};

const EXTERNAL_IP: &str = "ExternalIP";

/// What Kubernetes says about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) uid: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Its annotations that are Cilium's.
    pub(super) annotations: BTreeMap<String, String>,
    /// Type and address.
    pub(super) addresses: Vec<(String, IpAddr)>,
    pub(super) pod_cidrs: Vec<String>,
}

/// What to write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Write {
    /// There is no object yet.
    Create(Box<CiliumNode>),
    /// A merge patch, guarded by the resource version.
    Patch(Value),
}

impl From<&Node> for Facts {
    fn from(node: &Node) -> Self {
        let status = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let spec = node.spec.as_ref();
        let annotations = node.metadata.annotations.iter().flatten();
        Self {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
            annotations: annotations
                .filter(|(key, _)| is_ciliums(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            addresses: status
                .filter(|address| matches!(address.type_.as_str(), INTERNAL_IP | EXTERNAL_IP))
                .filter_map(|address| Some((address.type_.clone(), address.address.parse().ok()?)))
                .collect(),
            pod_cidrs: spec
                .and_then(|spec| {
                    spec.pod_cidrs.clone().or_else(|| Some(vec![spec.pod_cidr.clone()?]))
                })
                .unwrap_or_default(),
        }
    }
}

impl Facts {
    /// The first address of a family that other nodes send to.
    pub(super) fn internal(&self, ipv4: bool) -> Option<IpAddr> {
        let of_family =
            |(kind, address): &&(String, IpAddr)| kind == INTERNAL_IP && address.is_ipv4() == ipv4;
        self.addresses.iter().find(of_family).map(|(_, address)| *address)
    }
}

/// The node's ranges, one family's first one after the other, of the families that are on; or what
/// is missing, in words for the person who waits for it.
pub(super) fn ranges(
    config: &Config,
    facts: &Facts,
    own: Option<&CiliumNode>,
) -> Result<Vec<IpNet>, String> {
    let name = &config.name;
    let of_object =
        own.and_then(|own| own.spec.ipam.as_ref()).map(|ipam| ipam.pod_cidrs.as_slice());
    let (texts, place) = match &config.ipam {
        IpamMode::Kubernetes => (facts.pod_cidrs.clone(), format!("Node {name}: spec.podCIDRs")),
        IpamMode::ClusterPool => (
            of_object.unwrap_or_default().to_vec(),
            format!("CiliumNode {name}: spec.ipam.podCIDRs"),
        ),
        IpamMode::MultiPool { default_pool, .. } => (
            supply::of_pools(own, default_pool),
            format!("CiliumNode {name}: pool {default_pool} of spec.ipam.pools.allocated"),
        ),
        IpamMode::Crd => (
            supply::offered(own).iter().map(ToString::to_string).collect(),
            format!("CiliumNode {name}: spec.ipam.pool"),
        ),
    };
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let range = text.parse::<IpNet>().map_err(|_| {
            format!("{place}[{index}]: {text:?} is no CIDR; allowed is an address with a prefix length, such as 10.0.0.0/24")
        })?;
        ranges.push(range.trunc());
    }
    ranges.retain(|range| config.has_family(range));
    let has = |ipv4: bool| ranges.iter().any(|range| range.addr().is_ipv4() == ipv4);
    for (on, ipv4, family) in [(config.ipv4, true, "IPv4"), (config.ipv6, false, "IPv6")] {
        if on && !has(ipv4) {
            let giver = match config.ipam {
                IpamMode::Kubernetes => "kube-controller-manager (allocate-node-cidrs)",
                IpamMode::ClusterPool | IpamMode::MultiPool { .. } => "cilium-operator",
                IpamMode::Crd => "whoever lists this node's addresses",
            };
            let mut reason =
                format!("{place} has no {family} range yet; waiting for {giver} to give one");
            if let Some(error) = own.and_then(operator_error) {
                reason = format!("{reason}, which says: {error}");
            }
            return Err(reason);
        }
    }
    Ok(ranges)
}

fn operator_error(own: &CiliumNode) -> Option<&str> {
    let status = own.status.as_ref()?.ipam.as_ref()?.operator_status.as_ref()?;
    status.error.as_deref().filter(|error| !error.is_empty())
}

/// The router's addresses: the first usable one of each family's first range.
pub(super) fn routers(ranges: &[IpNet]) -> Vec<IpAddr> {
    let first = |ipv4: bool| ranges.iter().find(|range| range.addr().is_ipv4() == ipv4);
    [true, false]
        .into_iter()
        .filter_map(first)
        .filter_map(|range| {
            range.hosts().find(|host| {
                *host != range.network() || range.prefix_len() >= range.max_prefix_len() - 1
            })
        })
        .collect()
}

/// What to write so that the node's object is right; nothing if it is. An object that somebody
/// has deleted comes back with the ranges that the node's pods have their addresses from.
pub(super) fn write(
    config: &Config,
    facts: &Facts,
    routers: &[IpAddr],
    boot_id: &str,
    former: &[IpNet],
    present: Option<&CiliumNode>,
    wish: Option<&Wish>,
) -> Option<Write> {
    let addresses = facts.addresses.iter().map(|(kind, address)| node_address(kind, *address));
    let routers_of = |router: &IpAddr| node_address(CILIUM_INTERNAL_IP, *router);
    let wanted = Wanted {
        facts,
        addresses: addresses.chain(routers.iter().map(routers_of)).collect(),
        owner: OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: config.name.clone(),
            uid: facts.uid.clone(),
            ..OwnerReference::default()
        },
        boot_id,
        pod_cidrs: (config.ipam == IpamMode::Kubernetes).then(|| facts.pod_cidrs.clone()),
        wish,
    };
    if let Some(present) = present {
        // Until the ranges are known, the router that a former agent published stays.
        wanted.patch(present, routers.is_empty()).map(Write::Patch)
    } else {
        let former: &[IpNet] = if config.ipam == IpamMode::ClusterPool { former } else { &[] };
        Some(Write::Create(Box::new(wanted.object(config.name.clone(), former))))
    }
}

/// What the object is to say.
struct Wanted<'a> {
    facts: &'a Facts,
    addresses: Vec<NodeAddress>,
    owner: OwnerReference,
    boot_id: &'a str,
    /// Where Kubernetes gives nodes their ranges.
    pod_cidrs: Option<Vec<String>>,
    wish: Option<&'a Wish>,
}

impl Wanted<'_> {
    /// An object for a node that has none; `former` ranges are its own again.
    fn object(self, name: String, former: &[IpNet]) -> CiliumNode {
        let former = || former.iter().map(ToString::to_string).collect();
        CiliumNode {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(self.facts.labels.clone().into_iter().collect()),
                annotations: Some(self.facts.annotations.clone().into_iter().collect()),
                owner_references: Some(vec![self.owner]),
                ..ObjectMeta::default()
            },
            spec: NodeSpec {
                addresses: self.addresses,
                bootid: Some(self.boot_id.to_owned()),
                ipam: Some(IpamSpec {
                    pod_cidrs: self.pod_cidrs.unwrap_or_else(former),
                    pools: self.wish.map(supply::pools),
                    ..IpamSpec::default()
                }),
                ..NodeSpec::default()
            },
            status: None,
        }
    }

    /// What to merge into the object that there is, if anything.
    fn patch(mut self, present: &CiliumNode, keeps_routers: bool) -> Option<Value> {
        let (mut metadata, mut spec) = (json!({}), json!({}));
        // As in Cilium: the Node's labels and no others, so that none stays that went while no agent ran.
        let labels = differences(&self.facts.labels, present.metadata.labels.as_ref(), |_| true);
        if let Some(labels) = labels {
            metadata["labels"] = labels;
        }
        let annotations = present.metadata.annotations.as_ref();
        if let Some(annotations) = differences(&self.facts.annotations, annotations, is_ciliums) {
            metadata["annotations"] = annotations;
        }
        let mut owners = present.metadata.owner_references.clone().unwrap_or_default();
        if !owners.iter().any(|present| present.kind == "Node" && present.uid == self.owner.uid) {
            owners.retain(|present| present.kind != "Node");
            owners.push(self.owner);
            metadata["ownerReferences"] = json!(owners);
        }
        let keep = |address: &&NodeAddress| {
            keeps_routers && address.address_type.as_deref() == Some(CILIUM_INTERNAL_IP)
        };
        self.addresses.extend(present.spec.addresses.iter().filter(keep).cloned());
        if !same_addresses(&present.spec.addresses, &self.addresses) {
            spec["addresses"] = json!(self.addresses);
        }
        if present.spec.bootid.as_deref() != Some(self.boot_id) {
            spec["bootid"] = json!(self.boot_id);
        }
        let present_cidrs =
            present.spec.ipam.as_ref().map(|ipam| ipam.pod_cidrs.as_slice()).unwrap_or_default();
        if let Some(cidrs) = self.pod_cidrs.filter(|cidrs| cidrs != present_cidrs) {
            spec["ipam"] = json!({"podCIDRs": cidrs});
        }
        if let Some(pools) = self.wish.and_then(|wish| supply::changed(present, wish)) {
            spec["ipam"] = json!({"pools": pools});
        }
        let mut patch = json!({});
        if spec != json!({}) {
            patch["spec"] = spec;
        }
        if metadata == json!({}) && patch == json!({}) {
            return None;
        }
        metadata["resourceVersion"] = json!(present.metadata.resource_version);
        patch["metadata"] = metadata;
        Some(patch)
    }
}

/// Whether an annotation is Cilium's: its prefix is `cilium.io` or a domain below that.
fn is_ciliums(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| domain == "cilium.io" || domain.ends_with(".cilium.io"))
}

/// What to merge into `present` so that it says what is `wanted`, and nothing else among keys that are `ours`.
fn differences(
    wanted: &BTreeMap<String, String>,
    present: Option<&BTreeMap<String, String>>,
    ours: impl Fn(&str) -> bool,
) -> Option<Value> {
    let present = || present.into_iter().flatten();
    let has = |pair: (&String, &String)| present().any(|one| one == pair);
    let wrong = wanted.iter().filter(|pair| !has(*pair)).map(|(key, value)| (key, json!(value)));
    let gone = present().filter(|(key, _)| ours(key) && !wanted.contains_key(*key));
    let all: BTreeMap<&String, Value> =
        wrong.chain(gone.map(|(key, _)| (key, Value::Null))).collect();
    (!all.is_empty()).then(|| json!(all))
}

fn node_address(kind: &str, address: IpAddr) -> NodeAddress {
    NodeAddress { address_type: Some(kind.to_owned()), ip: Some(address.to_string()) }
}

/// The order of addresses of different kinds says nothing.
fn same_addresses(present: &[NodeAddress], wanted: &[NodeAddress]) -> bool {
    let sorted = |addresses: &[NodeAddress]| {
        let mut pairs: Vec<_> = addresses
            .iter()
            .map(|address| (address.address_type.clone(), address.ip.clone()))
            .collect();
        pairs.sort();
        pairs
    };
    sorted(present) == sorted(wanted)
}

#[cfg(test)]
#[path = "own_tests.rs"]
pub(crate) mod tests;
