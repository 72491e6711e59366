//! What can go wrong with the kvstore.

use std::path::PathBuf;

/// An operation on the kvstore failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// etcd refused, or no member answered in time.
    #[error("{operation} {object}: {cause}")]
    Rpc {
        /// What was tried.
        operation: &'static str,
        /// With which key, lease or endpoint.
        object: String,
        /// What was answered, without its wrapping.
        cause: String,
        /// The gRPC code.
        code: tonic::Code,
    },
    /// A lock could not be had in time.
    #[error("lock {path}: still held by {holder} after {seconds} s")]
    LockTimeout {
        /// What was to be locked.
        path: String,
        /// The key of the one who holds it.
        holder: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The lock was lost before the write that it should guard.
    #[error("write under lock {0}: transaction did not succeed: lock lease expired")]
    LockLost(String),
    /// The lease is gone; what hung on it is written again with the next.
    #[error("write {0}: its lease has expired")]
    LeaseLost(String),
    /// A setting cannot work.
    #[error("kvstore-opt: {option}: {reason}")]
    Option {
        /// The option.
        option: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// A file that a setting names cannot be used.
    #[error("read {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key has a value that means nothing.
    #[error("read value of {key}: {reason}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// There is no number left.
    #[error("allocate identity of {0}: every number of this cluster is taken")]
    Exhausted(String),
    /// Others were faster every time.
    #[error("allocate identity of {labels}: {attempts} attempts were in vain: {last}")]
    Contended {
        /// The label set.
        labels: String,
        /// How often it was tried.
        attempts: u32,
        /// Why the last attempt failed.
        last: String,
    },
}

impl Error {
    pub(crate) fn rpc(
        operation: &'static str,
        object: impl Into<String>,
        status: &tonic::Status,
    ) -> Self {
        let cause = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        Self::Rpc { operation, object: object.into(), cause: cause.into(), code: status.code() }
    }

    /// Whether etcd does not know the lease that was to be used.
    pub fn is_lease_lost(&self) -> bool {
        match self {
            Self::LeaseLost(_) => true,
            Self::Rpc { code, cause, .. } => {
                *code == tonic::Code::NotFound && cause.contains("lease not found")
            }
            _ => false,
        }
    }

    /// Whether etcd has a lease of this number already.
    pub(crate) fn is_lease_there(&self) -> bool {
        matches!(self, Self::Rpc { code: tonic::Code::FailedPrecondition, cause, .. } if cause.contains("lease already exists"))
    }

    /// Whether etcd has refused to do it: then it has not been done, and will not be.
    pub(crate) fn is_refusal(&self) -> bool {
        use tonic::Code;
        let refusals = [
            Code::ResourceExhausted,
            Code::PermissionDenied,
            Code::Unauthenticated,
            Code::NotFound,
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::OutOfRange,
        ];
        matches!(self, Self::Rpc { code, .. } if refusals.contains(code))
    }

    /// Whether the answer was longer than can be taken.
    pub(crate) fn is_too_long(&self) -> bool {
        matches!(self, Self::Rpc { code: tonic::Code::OutOfRange, cause, .. } if cause.contains("message length"))
    }

    /// Whether etcd has forgotten the revision that was asked for.
    pub(crate) fn is_compacted(&self) -> bool {
        matches!(self, Self::Rpc { code: tonic::Code::OutOfRange, cause, .. } if cause.contains("compacted"))
    }

    /// Whether etcd has no room left for writes (the NOSPACE alarm).
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Rpc { code: tonic::Code::ResourceExhausted, .. })
    }
}
