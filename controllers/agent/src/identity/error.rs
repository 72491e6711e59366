//! Why a label set has no number.

use cilia_crds::NumericIdentity;

/// An identity could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("{operation} CiliumIdentity {number}: {cause}")]
    Kubernetes {
        /// What was tried.
        operation: &'static str,
        /// With which identity.
        number: NumericIdentity,
        /// What the API server said.
        cause: Box<kube::Error>,
    },
    /// The kvstore refused or could not be reached.
    #[error(transparent)]
    Kvstore(#[from] cilia_kvstore::Error),
    /// There is no number left.
    #[error(
        "allocate identity of {labels}: all {numbers} identity numbers of this cluster are taken, \
         until the operator has collected unused ones; {advice}"
    )]
    Exhausted {
        /// The label set.
        labels: String,
        /// How many numbers there are.
        numbers: u32,
        /// Which labels cost most of them.
        advice: String,
    },
    /// Every number that was drawn had been taken by others.
    #[error("allocate identity of {labels}: {attempts} numbers were taken by others first")]
    Contended {
        /// The label set.
        labels: String,
        /// How many numbers were tried.
        attempts: u32,
    },
    /// It took too long.
    #[error("allocate identity of {labels}: not within {within:?} (identity-allocation-timeout)")]
    Late {
        /// The label set.
        labels: String,
        /// How long it may take.
        within: std::time::Duration,
    },
    /// The operator is to make identities, and has not.
    #[error(
        "find identity of {0}: the operator has not made it yet (identity-management-mode is operator)"
    )]
    NotMade(String),
}
