//! Why a pod could not be connected, or an endpoint not be kept right.

use std::path::PathBuf;

use cilia_ipam::AddressError;

use crate::{device, identity, policy};

/// A failed operation on an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request lacks something, or says it wrong.
    #[error("{field}: {reason}")]
    Request {
        /// What is wrong.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// It can't have such labels.
    #[error(transparent)]
    Labels(#[from] super::Fault),
    /// The agent is not far enough.
    #[error("the agent is not ready: {0}")]
    NotReady(String),
    /// The attachment exists, and not as it was asked for.
    #[error("attach {attachment}: it is attached already: {fault}")]
    Attached {
        /// Container and interface.
        attachment: String,
        /// What differs.
        fault: String,
    },
    /// There is no such pod.
    #[error("find pod {pod}: {reason}")]
    NoPod {
        /// Namespace and name.
        pod: String,
        /// Why not.
        reason: String,
    },
    /// The API server refused or could not be reached.
    #[error("{operation} {object}: {cause}")]
    Kubernetes {
        /// What was tried.
        operation: &'static str,
        /// With what.
        object: String,
        /// What the API server said.
        cause: Box<kube::Error>,
    },
    /// A `CiliumEndpoint` of that name belongs to another node.
    #[error("take over CiliumEndpoint {name}: {reason}")]
    Foreign {
        /// Namespace and name.
        name: String,
        /// Why it can't be taken over.
        reason: String,
    },
    /// A step took too long.
    #[error("{step} of pod {pod}: not done within {seconds} s")]
    Late {
        /// What was waited for.
        step: &'static str,
        /// Namespace and name.
        pod: String,
        /// How long.
        seconds: u64,
    },
    /// There is no pool for an address.
    #[error(transparent)]
    Pool(#[from] cilia_ipam::ChoiceError),
    /// There is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The kernel refused.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// There is no identity.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// The datapath refused.
    #[error("{operation} of endpoint {id}: {cause}")]
    Datapath {
        /// What was tried.
        operation: &'static str,
        /// The endpoint.
        id: u16,
        /// What the loader said.
        cause: String,
    },
    /// Its policy could not be realized.
    #[error(transparent)]
    Policy(#[from] policy::Error),
    /// Its state could not be kept on disk.
    #[error("{operation} {}: {cause}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        cause: std::io::Error,
    },
    /// Every number is taken.
    #[error("attach {0}: every endpoint id of this node is taken")]
    NoId(String),
}
