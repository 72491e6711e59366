//! What [`Slices`](crate::Slices) hears: the world as it is now, and how its own writes went.

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::EndpointStatus;

/// Something as it is now. Hearing the same again, or an older slice, changes nothing.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A `CiliumEndpoint`.
    Endpoint {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// Its status, if it has one.
        status: Option<&'a EndpointStatus>,
    },
    /// A `CiliumEndpoint` is gone.
    EndpointGone {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A `CiliumEndpointSlice`.
    Slice(SliceObject<'a>),
    /// A `CiliumEndpointSlice` is gone.
    SliceGone {
        /// Its name.
        name: &'a str,
        /// The uid of the object that is gone; `None` if it is known that there is none of that
        /// name at all.
        uid: Option<&'a str>,
    },
    /// Whether endpoints of a namespace come before others.
    Namespace {
        /// Its name.
        name: &'a str,
        /// It has the annotation `cilium.io/ces-namespace: priority`.
        priority: bool,
    },
}

/// A slice as the API server has it.
#[derive(Debug, Clone, Copy)]
pub struct SliceObject<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.resourceVersion`.
    pub resource_version: &'a str,
    /// The slice's `namespace`; empty when it has none.
    pub namespace: &'a str,
    /// The slice's entries.
    pub endpoints: &'a [CoreCiliumEndpoint],
}

/// How a write went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Created or updated.
    Stored {
        /// The object's uid.
        uid: String,
        /// Its new resource version.
        resource_version: String,
    },
    /// Deleted.
    Deleted,
    /// It was certainly not done, and says nothing about the object: not allowed, too many
    /// requests, no connection.
    Refused,
    /// It may have been done, or the object is not what it was taken for: an answer that got
    /// lost, a conflict, an object that should not or should be there. Read it and say so.
    Unknown,
}
