//! Why this node's `CiliumNode`, devices or routes could not be made right.

use crate::device;

/// A failed operation on a node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("{operation} CiliumNode {name}: {cause}")]
    Kubernetes {
        /// What was tried.
        operation: &'static str,
        /// The node.
        name: String,
        /// What the API server said.
        cause: Box<kube::Error>,
    },
    /// The kernel refused.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// What is being given back could not be written down.
    #[error("write down the ranges that are given back: {0}")]
    Notes(std::io::Error),
    /// The addresses could not be set aside.
    #[error(transparent)]
    Address(#[from] cilia_ipam::AddressError),
    /// The datapath refused.
    #[error("tell the datapath about its node: {0}")]
    Datapath(String),
}
