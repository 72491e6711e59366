//! Decides who a client is to etcd, by a token for its name and password, and says what it may not do.

use std::sync::{Mutex, PoisonError};

use http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::members::At;
use crate::messages::{AuthenticateRequest, AuthenticateResponse};
use crate::options::Endpoints;

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// What etcd says of a token that has expired, after a change of users or roles, and once it asks for users.
const OLD: [&str; 3] =
    ["invalid auth token", "revision of auth store is old", "user name is empty"];
/// What it says while it does not.
const NOT_ASKED: &str = "authentication is not enabled";

/// What a client shows with each request.
#[derive(Debug, Default)]
pub(super) struct Token(Mutex<Known>);

#[derive(Debug, Clone, Default)]
enum Known {
    #[default]
    Nothing,
    /// etcd asks for no user, whatever the configuration says.
    NotAsked,
    Is(MetadataValue<Ascii>),
}

impl Token {
    /// The token, asked for if it is not known; nothing for a client without a password, and of an etcd
    /// without users.
    pub(super) async fn of(&self, member: &At) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Endpoints { username, password, .. } = &member.members.endpoints;
        if username.is_empty() || password.is_empty() {
            return Ok(None);
        }
        match self.known() {
            Known::Nothing => {}
            Known::NotAsked => return Ok(None),
            Known::Is(token) => return Ok(Some(token)),
        }
        let request = AuthenticateRequest { name: username.clone(), password: password.clone() };
        let mut grpc = member.grpc()?;
        grpc.ready().await.map_err(super::unready)?;
        let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
        let path = PathAndQuery::from_static(AUTHENTICATE);
        let answer = match grpc.unary(Request::new(request), path, codec).await {
            Err(status) if status.message().contains(NOT_ASKED) => {
                self.know(Known::NotAsked);
                return Ok(None);
            }
            answer => answer?.into_inner(),
        };
        let mut token: MetadataValue<Ascii> =
            answer.token.parse().map_err(|_| Status::internal("the token is no header value"))?;
        // Not to be printed.
        token.set_sensitive(true);
        self.know(Known::Is(token.clone()));
        Ok(Some(token))
    }

    pub(super) fn forget(&self) {
        self.know(Known::Nothing);
    }

    fn known(&self) -> Known {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

/// Whether what was shown means nothing any more: a new token may do.
pub(super) fn is_old(reason: &str) -> bool {
    OLD.iter().any(|old| reason.contains(old))
}

/// Says which right is missing, where one is: for keys, who asks must have it by a role.
pub(super) fn explain(status: Status, operation: &str, object: &str) -> Status {
    let said = status.message();
    if said.contains("user name is empty") {
        let need = "set cert-file and key-file, or username and password, in etcd.config";
        return Status::new(status.code(), format!("{said}: it asks for a user: {need}"));
    }
    if status.code() != Code::PermissionDenied || !object.contains('/') {
        return status;
    }
    let (right, prefix) = match operation {
        "get" => ("read", ""),
        "list" => ("read", " --prefix"),
        "delete all" => ("readwrite", " --prefix"),
        _ => ("readwrite", ""),
    };
    let grant = format!("etcdctl role grant-permission ROLE{prefix} {right} '{object}'");
    Status::permission_denied(format!("{said}: its user needs a role with this right: {grant}"))
}
