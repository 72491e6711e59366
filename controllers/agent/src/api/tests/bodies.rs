//! Bodies of requests, as Cilium's clients send them and as nobody should.

use axum::Router;
use axum::body::Body;
use cilia_loader::testing::BpfFs;
use http::{Method, Request};
use tower::ServiceExt as _;

use super::super::{router, shaped};
use super::parts;
use crate::endpoint::testing::endpoint;

async fn send(
    router: &Router,
    method: Method,
    path: &str,
    kind: &str,
    body: &str,
) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 24).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn bodies_are_read_as_cilium_reads_them() {
    let bpf = BpfFs::mount();
    let router = shaped(router(parts(&bpf, &[], vec![endpoint(7, "c1", "web")])));
    let (json, patch, get) = ("application/json", Method::PATCH, Method::GET);
    let labels = "/v1/endpoint/7/labels";
    let cases = [
        (
            &patch,
            labels,
            "text/plain",
            "{}",
            415,
            r#"unsupported media type \"text/plain\", only [application/json] are allowed"#,
        ),
        (
            &patch,
            labels,
            json,
            "{",
            400,
            r#"parsing configuration body from \"\" failed, because unexpected EOF"#,
        ),
        (
            &patch,
            labels,
            json,
            "x=1",
            400,
            "because invalid character 'x' looking for beginning of value",
        ),
        (&patch, labels, json, r#"{"user":7}"#, 400, "parsing configuration body"),
        (&patch, labels, json, "{}", 503, r#""api not ready""#),
        (&patch, "/v1/endpoint/8/labels", json, "{}", 404, ""),
        (&patch, "/v1/config", json, r#"{"moon":1}"#, 200, ""),
        (&patch, "/v1/config", json, r#"{"options":{"Moon":"1"}}"#, 400, "Moon"),
        (
            &patch,
            "/v1/prefilter",
            json,
            r#"{"deny":["ten"]}"#,
            500,
            "prefilter is not enabled in daemon",
        ),
        (&get, "/v1/endpoint", json, r#"["k8s:app=web"]"#, 200, r#""id":7"#),
        (&get, "/v1/endpoint", json, r#"["k8s:app=db"]"#, 404, ""),
        (&get, "/v1/endpoint", json, "{}", 400, "parsing labels body"),
        (&get, "/v1/identity", json, r#"["reserved:host"]"#, 200, r#""id":1,"#),
        (&get, "/v1/identity", json, r#"["reserved:none"]"#, 404, ""),
        (&get, "/v1/ip", json, r#"["reserved:none"]"#, 404, ""),
    ];
    for (method, path, kind, body, status, text) in cases {
        let got = send(&router, method.clone(), path, kind, body).await;
        assert_eq!(got.0, status, "{method} {path} {body}: {}", got.1);
        assert!(got.1.contains(text), "{method} {path} {body} lacks {text}: {}", got.1);
    }
}
