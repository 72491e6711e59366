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
pub(crate) const INVALID: u16 = 422;
