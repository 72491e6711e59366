//! Cilium's API as Rust types: one file per kind, and the vocabulary they share.
#![forbid(unsafe_code)]

pub mod ciliumcidrgroup;
pub mod ciliumclusterwidenetworkpolicy;
pub mod ciliumendpoint;
pub mod ciliumendpointslice;
pub mod ciliumidentity;
pub mod ciliumnetworkpolicy;
pub mod ciliumnode;
pub mod ciliumnodeconfig;
pub mod ciliumpodippool;
pub mod identity_number;
mod integer;
pub mod kind;
pub mod labels;
mod manifest;
pub mod policy;
mod resource;
mod schema;
pub mod selector;

pub use ciliumcidrgroup::CiliumCidrGroup;
pub use ciliumclusterwidenetworkpolicy::CiliumClusterwideNetworkPolicy;
pub use ciliumendpoint::CiliumEndpoint;
pub use ciliumendpointslice::{CiliumEndpointSlice, CoreCiliumEndpoint};
pub use ciliumidentity::CiliumIdentity;
pub use ciliumnetworkpolicy::CiliumNetworkPolicy;
pub use ciliumnode::CiliumNode;
pub use ciliumnodeconfig::CiliumNodeConfig;
pub use ciliumpodippool::CiliumPodIpPool;
pub use identity_number::NumericIdentity;
pub use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
pub use labels::{LabelKey, Labels};
pub use manifest::manifests;
pub use selector::{LabelSelector, LabelSelectorOperator, LabelSelectorRequirement};

/// The definitions of every kind, as the operator registers them.
pub fn all() -> Vec<CustomResourceDefinition> {
    use kube::CustomResourceExt as _;

    vec![
        CiliumCidrGroup::crd(),
        CiliumClusterwideNetworkPolicy::crd(),
        CiliumEndpoint::crd(),
        CiliumEndpointSlice::crd(),
        CiliumIdentity::crd(),
        CiliumNetworkPolicy::crd(),
        CiliumNode::crd(),
        CiliumNodeConfig::crd(),
        CiliumPodIpPool::crd(),
    ]
}
