//! Decides which endpoint a request is about: one of a pod, or the node's own.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request;
use axum::response::{IntoResponse, Response};
use cilia_crds::{Labels, NumericIdentity};

use super::super::query::bad_request;
use super::super::{Parts, not_found};
use super::{Id, labels};
use crate::endpoint::{EndpointState, LocalEndpoint};

/// The endpoint that the path means; who asks for none is answered at once.
pub(in super::super) enum Found {
    Pod(Arc<LocalEndpoint>),
    Host(Host),
}

impl Found {
    pub(in super::super) fn id(&self) -> u16 {
        match self {
            Self::Pod(endpoint) => endpoint.id,
            Self::Host(host) => host.id,
        }
    }

    pub(super) fn state(&self) -> EndpointState {
        match self {
            Self::Pod(endpoint) => endpoint.state,
            Self::Host(host) => host.state,
        }
    }
}

impl FromRequestParts<Arc<Parts>> for Found {
    type Rejection = Response;

    async fn from_request_parts(
        request: &mut request::Parts,
        parts: &Arc<Parts>,
    ) -> Result<Self, Response> {
        let path = Path::<String>::from_request_parts(request, parts).await;
        let Path(id) = path.map_err(IntoResponse::into_response)?;
        let wanted = Id::parse(&id).map_err(bad_request)?;
        if let Some(host) = Host::of(parts).filter(|host| wanted == Id::Number(host.id)) {
            return Ok(Self::Host(host));
        }
        let found = parts.endpoints.list().into_iter().find(|endpoint| wanted.is(endpoint));
        found.map(Self::Pod).ok_or_else(|| not_found(format!("no endpoint {id} on this node")))
    }
}

/// The node itself, if it has policy.
pub(in super::super) struct Host {
    pub(in super::super) id: u16,
    pub(super) labels: Vec<String>,
    pub(in super::super) set: Labels,
    pub(super) state: EndpointState,
}

impl Host {
    pub(in super::super) fn of(parts: &Parts) -> Option<Self> {
        let id = parts.enforcer.host()?;
        let view = parts.enforcer.view().borrow().clone();
        let known = view.local.get(&NumericIdentity::HOST);
        let mut set = known.map_or_else(|| Labels::reserved("host"), |set| Labels::clone(set));
        let node = parts.nodes.local();
        for (key, value) in node.iter().flat_map(|node| &node.labels) {
            set.insert("k8s", key, value);
        }
        let known = view.endpoints.iter().any(|policy| policy.id == id);
        let state = if known { EndpointState::Ready } else { EndpointState::WaitingToRegenerate };
        Some(Self { id, labels: labels(&set), set, state })
    }
}
