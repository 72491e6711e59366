//! Says which request to the API server failed, on what, and why.

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {cause}")]
pub(crate) struct Failure {
    operation: &'static str,
    object: String,
    cause: Box<kube::Error>,
}

impl Failure {
    /// Makes the failure of `operation` on an object of what the client says.
    pub(crate) fn of(
        operation: &'static str,
        kind: &'static str,
        name: &str,
    ) -> impl FnOnce(kube::Error) -> Self {
        move |cause| {
            let object = if name.is_empty() { kind.to_owned() } else { format!("{kind} {name}") };
            Self { operation, object, cause: Box::new(cause) }
        }
    }

    /// The HTTP status of the answer, if there was one.
    pub(crate) fn code(&self) -> Option<u16> {
        code(&self.cause)
    }

    /// Whether the object is not what it was when it was last read, so that a new look helps.
    ///
    /// The API server says 422 both if a test of a JSON patch failed and if the result would be invalid;
    /// only the latter names the object.
    pub(crate) fn is_stale(&self) -> bool {
        let kube::Error::Api(status) = &*self.cause else { return false };
        let details = status.details.as_ref();
        let invalid =
            details.is_some_and(|about| !about.causes.is_empty() || !about.kind.is_empty());
        match status.code {
            CONFLICT => true,
            INVALID => !invalid,
            _ => false,
        }
    }
}

/// The HTTP status that an error carries, if the API server answered.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The object is not what it was when it was last read.
pub(crate) const CONFLICT: u16 = 409;
/// There is no such object.
pub(crate) const NOT_FOUND: u16 = 404;
/// A test of a JSON patch failed, or the object is not valid.
const INVALID: u16 = 422;
