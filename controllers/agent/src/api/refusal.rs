//! Decides how refusals read: as Cilium's API writes them.
//!
//! A reason is a text in JSON; what is not there has none; a path or a method that there is not is told by an
//! object. Refusals by the administrator (403) are plain texts. No operation answers HEAD, and paths are read as Go
//! cleans them.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

/// The longest reason that is passed on, in bytes.
const LONGEST: usize = 1 << 16;

/// Operations with their refusals in Cilium's form.
pub fn shaped(operations: Router) -> Router {
    // Outside of all routes: what methods a path has is known only there.
    Router::new().fallback_service(operations).layer(from_fn(shape))
}

async fn shape(mut request: Request, next: Next) -> Response {
    let method = request.method().clone();
    if method == Method::HEAD {
        // Another one that no operation answers, since a router lets GET do for this one.
        *request.method_mut() = Method::TRACE;
    }
    if let Some(uri) = cleaned(request.uri()) {
        *request.uri_mut() = uri;
    }
    let answer = next.run(request).await;
    match answer.status() {
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = allowed(answer.headers());
            let fault = json!({"code": 405, "message":
                format!("method {method} is not allowed, but [{allowed}] are")});
            let (mut parts, _) = answer.into_parts();
            if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                parts.headers.insert(ALLOW, allowed);
            }
            said(Response::from_parts(parts, Body::empty()), &fault)
        }
        StatusCode::FORBIDDEN => answer,
        status if status.is_client_error() || status.is_server_error() => reason(answer).await,
        _ => answer,
    }
}

/// What is asked for if its path is not clean: with empty steps, with steps to where it is or back, with a last slash.
fn cleaned(uri: &Uri) -> Option<Uri> {
    let mut steps = Vec::new();
    for step in uri.path().split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    let path = format!("/{}", steps.join("/"));
    if path == uri.path() {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{path}{query}").parse().ok()
}

/// Methods that read and change; whether one may ask for heads only is not told.
fn allowed(headers: &HeaderMap) -> String {
    let listed = headers.get(ALLOW).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let methods = listed.split(',').map(str::trim).filter(|method| *method != "HEAD");
    methods.collect::<Vec<_>>().join(",")
}

/// A text as JSON; none where something is not there.
async fn reason(answer: Response) -> Response {
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/plain")) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    if parts.status == StatusCode::NOT_FOUND {
        parts.headers.remove(CONTENT_TYPE);
        parts.headers.remove(CONTENT_LENGTH);
        return Response::from_parts(parts, Body::empty());
    }
    let body = to_bytes(body, LONGEST).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&body).trim_end().to_owned();
    said(Response::from_parts(parts, Body::empty()), &text.into())
}

/// An answer by a text where others have none.
pub(super) fn told(status: StatusCode, text: &str) -> Response {
    said(status.into_response(), &text.into())
}

/// `answer` with a value as its body.
pub(super) fn said(answer: Response, value: &Value) -> Response {
    let (mut parts, _) = answer.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(format!("{value}\n")))
}

/// The answer to a path that there is not.
pub(super) fn no_such_path(path: &str) -> Response {
    let fault = json!({"code": 404, "message": format!("path {path} was not found")});
    said(StatusCode::NOT_FOUND.into_response(), &fault)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::{Method, Request, StatusCode};
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::{no_such_path, shaped};

    async fn ask(router: &Router, method: Method, path: &str) -> (u16, Option<String>, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty());
        let answer = router.clone().oneshot(request.expect("a request")).await.expect("an answer");
        let kind = answer.headers().get("content-type").and_then(|value| value.to_str().ok());
        let (status, kind) = (answer.status().as_u16(), kind.map(str::to_owned));
        let body = to_bytes(answer.into_body(), 1 << 16).await.expect("a body");
        (status, kind, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn refusals_have_cilium_s_forms() {
        let fails = |status: u16, text: &'static str| {
            let status = StatusCode::from_u16(status).expect("a status");
            get(move || std::future::ready((status, text)))
        };
        let operations = Router::new()
            .route("/bad", fails(400, "\"x\" is no number\n"))
            .route("/gone", fails(404, "no x\n"))
            .route("/denied", fails(403, "disabled\n"))
            .route("/off", fails(501, "off"))
            .route("/good", fails(200, "fine").put(|| async { "put" }))
            .fallback(|| async { no_such_path("/x") });
        let router = shaped(operations);
        let json = Some("application/json");
        let text = Some("text/plain; charset=utf-8");
        let cases = [
            (Method::GET, "/bad", 400, json, "\"\\\"x\\\" is no number\"\n"),
            (Method::GET, "/gone", 404, None, ""),
            (Method::GET, "/denied", 403, text, "disabled\n"),
            (Method::GET, "/off", 501, json, "\"off\"\n"),
            (Method::GET, "/good", 200, text, "fine"),
            (Method::PUT, "/good", 200, text, "put"),
            (
                Method::DELETE,
                "/good",
                405,
                json,
                "{\"code\":405,\"message\":\"method DELETE is not allowed, but [GET,PUT] are\"}\n",
            ),
            (Method::GET, "/x/..//./bad/", 400, json, "\"\\\"x\\\" is no number\"\n"),
            (
                Method::HEAD,
                "/good",
                405,
                json,
                "{\"code\":405,\"message\":\"method HEAD is not allowed, but [GET,PUT] are\"}\n",
            ),
            (
                Method::GET,
                "/y",
                404,
                json,
                "{\"code\":404,\"message\":\"path /x was not found\"}\n",
            ),
        ];
        for (method, path, status, kind, body) in cases {
            let got = ask(&router, method.clone(), path).await;
            assert_eq!(
                (got.0, got.1.as_deref(), got.2.as_str()),
                (status, kind, body),
                "{method} {path}"
            );
        }
    }
}
