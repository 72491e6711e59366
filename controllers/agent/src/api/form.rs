//! Decides whether a request has the form that Cilium's API reads, before anybody looks at what it says: JSON bodies
//! where there are bodies, one where one is needed, an answer that whoever asks can read.
//!
//! What is wrong is told as that API tells it, by an object with a code; codes from 600 on have the status 422.

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::json;

use super::query::bad_request;
use super::refusal::said;

const JSON: &str = "application/json";
/// go-openapi's codes for values of a wrong type, that are missing, and that are none of a choice.
const INVALID_TYPE: u16 = 601;
const REQUIRED: u16 = 602;
const NO_CHOICE: u16 = 606;
/// The first code that is no status.
const NO_STATUS: u16 = 600;

/// What an operation needs of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Form {
    /// The name of the body that it needs.
    pub(super) body: Option<&'static str>,
    /// Whether its answer is something else than JSON.
    pub(super) other_answer: bool,
}

impl Form {
    /// That of an operation, by its name in `enable-cilium-api-server-access`.
    pub(super) fn of(operation: &str) -> Self {
        let body = match operation {
            "PatchConfig" | "PatchEndpointIDLabels" => Some("configuration"),
            "PatchEndpointIDConfig" => Some("endpoint-configuration"),
            "PutEndpointID" | "PatchEndpointID" | "DeleteEndpoint" => Some("endpoint"),
            "PatchPrefilter" | "DeletePrefilter" => Some("prefilter-spec"),
            _ => None,
        };
        let other = ["GetMapNameEvents", "GetMetrics", "GetMonitor"];
        Self { body, other_answer: other.contains(&operation) }
    }

    /// What is wrong with a request of these headers.
    fn fault(self, headers: &HeaderMap, has_body: bool) -> Option<Fault> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let kind = text(CONTENT_TYPE).unwrap_or("application/octet-stream");
        if has_body && !is(kind, JSON) {
            let why = format!("unsupported media type {kind:?}, only [{JSON}] are allowed");
            return Some(Fault::Object(StatusCode::UNSUPPORTED_MEDIA_TYPE.as_u16(), why));
        }
        if !self.other_answer && text(ACCEPT).is_some_and(|accepted| !accepts(accepted)) {
            let why = format!("unsupported media type requested, only [{JSON}] are available");
            return Some(Fault::Object(StatusCode::NOT_ACCEPTABLE.as_u16(), why));
        }
        self.body.filter(|_| !has_body).map(|name| required(name, "body"))
    }
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It has not the form of one: told by an object with this code.
    Object(u16, String),
    /// It asks for what can't be: told by a text, with status 400.
    Text(String),
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let (code, message) = match self {
            Self::Object(code, message) => (code, message),
            Self::Text(why) => return bad_request(why),
        };
        let status =
            if code < NO_STATUS { code } else { StatusCode::UNPROCESSABLE_ENTITY.as_u16() };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
        said(status.into_response(), &json!({"code": code, "message": message}))
    }
}

/// Lets a request through if it has the form that its operation needs.
pub(super) async fn checked(State(form): State<Form>, request: Request, next: Next) -> Response {
    let has_body = has_body(request.headers(), request.body());
    match form.fault(request.headers(), has_body) {
        Some(fault) => fault.into_response(),
        None => next.run(request).await,
    }
}

/// A length tells; without one, whether anything comes.
fn has_body(headers: &HeaderMap, body: &Body) -> bool {
    match headers.get(CONTENT_LENGTH) {
        Some(length) => length != "0",
        None => !body.is_end_stream(),
    }
}

fn is(kind: &str, wanted: &str) -> bool {
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}

/// Whether a list of media types has JSON in it.
fn accepts(list: &str) -> bool {
    let refused = |kind: &&str| {
        let weight = kind.split(';').find_map(|part| part.trim().strip_prefix("q="));
        weight.is_some_and(|weight| weight.parse() == Ok(0.0f32))
    };
    let mut kinds = list.split(',').filter(|kind| !refused(kind));
    list.trim().is_empty()
        || kinds.any(|kind| ["*/*", "application/*", JSON].iter().any(|one| is(kind, one)))
}

/// Reads a body of this name.
pub(super) fn read<T: DeserializeOwned>(name: &str, body: &[u8]) -> Result<T, Fault> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(required(name, "body"));
    }
    serde_json::from_slice(body).map_err(|error| {
        let why = cause(&error, body);
        let why = format!("parsing {name} body from \"\" failed, because {why}");
        Fault::Object(StatusCode::BAD_REQUEST.as_u16(), why)
    })
}

/// What is wrong with a text that should be JSON: as Go says it where it is not JSON from the start, or ends too soon.
fn cause(error: &serde_json::Error, body: &[u8]) -> String {
    let start = String::from_utf8_lossy(body).trim_start().chars().next();
    match (error.classify(), start) {
        (Category::Eof, _) => "unexpected EOF".to_owned(),
        (Category::Syntax, Some(start)) if !"{[\"-0123456789tfn".contains(start) => {
            format!("invalid character {start:?} looking for beginning of value")
        }
        _ => error.to_string(),
    }
}

/// What is said of a request that lacks something.
pub(super) fn required(name: &str, place: &str) -> Fault {
    Fault::Object(REQUIRED, format!("{name} in {place} is required"))
}

/// What is said of a value that is not of the type that it should be of.
pub(super) fn no_type(name: &str, place: &str, kind: &str, value: &str) -> Fault {
    let why = format!("{name} in {place} must be of type {kind}: {value:?}");
    Fault::Object(INVALID_TYPE, why)
}

/// What is said of a value that is none of a choice.
pub(super) fn no_choice(name: &str, place: &str, choice: &[&str]) -> Fault {
    let why = format!("{name} in {place} should be one of [{}]", choice.join(" "));
    Fault::Object(NO_CHOICE, why)
}

/// A value of a query or a header that is on or off, as Cilium reads it: what is not known is off.
pub(super) fn on(value: &str) -> bool {
    let yes = ["true", "1", "yes", "ok", "y", "on", "selected", "checked", "t", "enabled"];
    yes.iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};
    use axum::response::IntoResponse as _;

    use super::{Form, accepts, on};

    #[test]
    fn requests_have_the_form_that_their_operation_needs() {
        let json = Some("application/json");
        let cases = [
            ("GetHealthz", None, None, false, None),
            ("GetHealthz", None, Some("*/*"), false, None),
            ("GetHealthz", None, Some("text/html"), false, Some(406)),
            ("GetMetrics", None, Some("text/html"), false, None),
            ("PatchConfig", json, json, true, None),
            ("PatchConfig", Some("Application/JSON; charset=utf-8"), None, true, None),
            ("PatchConfig", None, None, true, Some(415)),
            ("PatchConfig", Some("text/plain"), None, true, Some(415)),
            ("PatchConfig", json, Some("text/html"), true, Some(406)),
            ("PatchConfig", None, None, false, Some(422)),
            ("GetEndpoint", None, None, true, Some(415)),
            ("GetEndpoint", json, None, true, None),
        ];
        for (operation, kind, accept, has_body, status) in cases {
            let mut headers = HeaderMap::new();
            for (name, value) in [("content-type", kind), ("accept", accept)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            let fault = Form::of(operation).fault(&headers, has_body);
            let got = fault.map(|fault| fault.into_response().status().as_u16());
            assert_eq!(got, status, "{operation} {kind:?} {accept:?} {has_body}");
        }
    }

    #[test]
    fn lists_of_media_types_have_json_or_not() {
        for list in ["", "*/*", "text/html, application/*;q=0.5", "application/json;q=1"] {
            assert!(accepts(list), "{list}");
        }
        for list in ["text/html", "application/json;q=0", "application/xml, text/*"] {
            assert!(!accepts(list), "{list}");
        }
        assert!(on("True") && on("checked") && !on("maybe") && !on(""));
    }
}
