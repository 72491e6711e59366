//! Why leadership ended, and why one request about the Lease failed.

use std::time::Duration;

/// Why leadership ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another replica has the Lease.
    #[error("Leader election lost: lease {lease} is now held by {holder:?}")]
    Taken {
        /// Namespace and name.
        lease: String,
        /// The other one's identity.
        holder: String,
    },
    /// The Lease could not be renewed in time.
    #[error(
        "Leader election lost: lease {lease} was not renewed for {deadline:?}, last failure: {cause}"
    )]
    NotRenewed {
        /// Namespace and name.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
        /// The last failure.
        cause: String,
    },
}

/// Why one request about the Lease did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer in time")]
    Timeout,
    #[error("changed meanwhile")]
    Conflict,
    #[error("{0}")]
    Request(kube::Error),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            error => Self::Request(error),
        }
    }
}

impl Failure {
    /// Whether somebody must hear of it: missing rights stay missing, and what has lasted longer than a
    /// Lease keeps this replica from ever leading.
    pub(super) fn is_grave(&self, lasting: Duration, lease_duration: Duration) -> bool {
        let refused = matches!(
            self,
            Self::Request(kube::Error::Api(status)) if matches!(status.code, 401 | 403)
        );
        refused || lasting > lease_duration
    }
}

/// Why a renewal failed.
pub(super) enum Lost {
    /// For good: somebody else leads.
    Taken(String),
    /// For now.
    NotNow(Failure),
}
