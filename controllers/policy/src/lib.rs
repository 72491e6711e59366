//! Decides what packets may pass: rules and identities in, entries of policy maps out.
//!
//! [`cilium`], [`clusterwide`] and [`kubernetes`] read the objects into [`rule::Rule`]s, or say
//! what is wrong with them; [`Repository`] holds the rules beside the identities and answers with
//! the map of an endpoint. Nothing here knows a clock, a client or a map in the kernel.
#![forbid(unsafe_code)]

pub mod blocks;
mod cidr;
mod clusterpolicy;
mod cnp;
mod column;
mod columns;
mod compile;
pub mod config;
mod directory;
mod error;
mod explain;
mod fit;
mod half;
mod icmp;
mod item;
mod knp;
pub mod l4;
mod label_syntax;
mod lenient;
mod manifests;
pub mod map;
mod names;
pub mod nodes;
mod origin;
mod parse;
mod plan;
mod repository;
pub mod rule;
pub mod selector;
mod selectors;
#[cfg(feature = "testing")]
pub mod testing;
mod tiers;
mod toports;
mod translate;
mod trie;
mod views;

pub use cidr::SCOPE as CIDR_SCOPE;
pub use clusterpolicy::{
    ClusterNetworkPolicy, ClusterPeer, ClusterPolicySpec, ClusterProtocol, ClusterRule,
    ClusterSubject, NamespacedPods, PolicyPort, PolicyPorts, PortRange, cluster,
};
pub use cnp::{Parsed, cilium, clusterwide};
pub use config::{Config, Mode};
pub use directory::{CIDR_GROUP, CidrGroup, Service, ServiceId};
pub use error::{Error, Note};
pub use explain::{
    Advice, Cut, Explanation, Flow, Near, Part, Party, Reason, cuts, entity, explain, port,
};
pub use fit::Fit;
pub use knp::kubernetes;
pub use label_syntax::is_label_value;
pub use lenient::Lenient;
pub use manifests::{Manifests, PodMeta};
pub use map::{Difference, EndpointPolicy, PolicyEntry, PolicyKey, VIEW_SHIFT, Verdict, WEAK};
pub use names::{ClusterPorts, NamedPorts, PortName};
pub use nodes::Node;
pub use origin::Origin;
pub use parse::read;
pub use repository::{References, Repository};
pub use rule::{Action, Direction, Kind, PolicyId, Tier};
