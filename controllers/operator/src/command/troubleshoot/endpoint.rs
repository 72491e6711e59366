//! Tries to reach one etcd: its name, its port, TLS, its version.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Report;

const INDENT: &str = "     ";
const PORT: u16 = 2379;
/// The longest answer about a version, in bytes.
const LONGEST: usize = 4096;

/// Tries to reach `url`.
pub(super) async fn check(
    url: &str,
    client: Option<&Arc<ClientConfig>>,
    timeout: Duration,
    report: &mut Report,
) {
    if let Err(error) = steps(url, client, timeout, report).await {
        report.bad(INDENT, &error);
    }
}

async fn steps(
    url: &str,
    client: Option<&Arc<ClientConfig>>,
    timeout: Duration,
    report: &mut Report,
) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("Not a URL: {error}"))?;
    let host = uri.host().ok_or("The URL names no host")?.trim_matches(['[', ']']).to_owned();
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err("The URL begins with neither https:// nor http://".to_owned()),
    };
    let place = (host.as_str(), uri.port_u16().unwrap_or(PORT));
    let resolved = within(timeout, tokio::net::lookup_host(place)).await;
    let addresses: Vec<SocketAddr> =
        resolved.map_err(|error| format!("Cannot resolve hostname: {error}"))?.collect();
    let shown: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    report.good(INDENT, &format!("Hostname resolved to: {}", shown.join(", ")));
    let connected = within(timeout, TcpStream::connect(&addresses[..])).await;
    let stream = connected.map_err(|error| format!("Cannot establish TCP connection: {error}"))?;
    let peer = stream.peer_addr().map_err(|error| error.to_string())?;
    report.good(INDENT, &format!("TCP connection successfully established to {peer}"));
    let version = if tls {
        let client = client.ok_or("Without certificates there is no TLS")?;
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(client.clone());
        let shaken = within(timeout, connector.connect(name, stream)).await;
        let stream = shaken.map_err(|error| format!("Cannot establish TLS connection: {error}"))?;
        report.good(INDENT, &format!("TLS connection successfully established to {peer}"));
        let (_, connection) = stream.get_ref();
        if let (Some(version), Some(suite)) =
            (connection.protocol_version(), connection.negotiated_cipher_suite())
        {
            let (version, suite) = (format!("{version:?}"), suite.suite());
            report
                .note(INDENT, &format!("Negotiated TLS version: {version}, ciphersuite {suite:?}"));
        }
        within(timeout, version(&uri, stream)).await
    } else {
        within(timeout, version(&uri, stream)).await
    };
    let version = version.map_err(|error| format!("Cannot ask for the version: {error}"))?;
    report.note(INDENT, &format!("Etcd server version: {version}"));
    Ok(())
}

/// What an etcd says of its version.
async fn version(
    uri: &Uri,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let request = http::Request::get("/version")
        .header(http::header::HOST, host)
        .body(Empty::<bytes::Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST).collect().await?.to_bytes();
    let answer: Value = serde_json::from_slice(&body)
        .map_err(|_| format!("{status}, and not what an etcd answers"))?;
    let version = answer["etcdserver"].as_str();
    Ok(version.ok_or("not an etcd: it does not tell its version")?.to_owned())
}

async fn within<T, E: std::fmt::Display>(
    timeout: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, step).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {timeout:?}")),
    }
}
