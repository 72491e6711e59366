//! Serves HTTP on addresses written the way Go writes them: `:9963`, `localhost:9234`, `[::1]:80`, or none.

mod tls;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use tls::{Error as TlsError, Files as TlsFiles};
use tls::{Identity, TlsListener};

use crate::metrics::{CONTENT_TYPE, Metrics};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be read or its name not resolved.
    #[error("listen address {address:?}: {cause}")]
    Address {
        /// As configured.
        address: String,
        /// What is wrong with it.
        cause: io::Error,
    },
    /// The port is taken, or the address not ours.
    #[error("listen on {address}: {cause}")]
    Listen {
        /// The resolved address.
        address: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The files for TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Serves `router` on `address` until `stop`; returns the addresses it listens on.
///
/// An empty address means a free port on both loopback addresses.
pub async fn serve(
    address: &str,
    router: Router,
    stop: &CancellationToken,
) -> Result<Vec<SocketAddr>, Error> {
    listen_on(address, |listener, listening| {
        tokio::spawn(run(listener, listening, router.clone(), stop.clone()));
        Ok(())
    })
    .await
}

/// Like [`serve`], over TLS. The files are read again when they change.
pub async fn serve_tls(
    address: &str,
    router: Router,
    files: TlsFiles,
    stop: &CancellationToken,
) -> Result<Vec<SocketAddr>, Error> {
    let identity = Arc::new(Identity::load(files)?);
    listen_on(address, |listener, listening| {
        let listener = TlsListener::new(listener, identity.clone())?;
        tokio::spawn(run(listener, listening, router.clone(), stop.clone()));
        Ok(())
    })
    .await
}

/// Hands each listener of `address` to `start`; the addresses they listen on.
async fn listen_on(
    address: &str,
    start: impl Fn(TcpListener, SocketAddr) -> io::Result<()>,
) -> Result<Vec<SocketAddr>, Error> {
    let candidates = resolve(address)
        .await
        .map_err(|cause| Error::Address { address: address.into(), cause })?;
    let mut listening = Vec::new();
    let mut failure = None;
    for candidate in candidates {
        let started = listen(candidate).and_then(|listener| {
            let own = listener.local_addr().unwrap_or(candidate);
            start(listener, own).map(|()| own)
        });
        match started {
            Ok(own) => listening.push(own),
            Err(cause) => {
                failure.get_or_insert(Error::Listen { address: candidate, cause });
                continue;
            }
        }
        // A name or an empty host stands for one listener; only the empty address for two.
        if !address.is_empty() {
            break;
        }
    }
    match failure {
        Some(failure) if listening.is_empty() => Err(failure),
        _ => Ok(listening),
    }
}

async fn run<L: Listener>(listener: L, address: SocketAddr, router: Router, stop: CancellationToken)
where
    L::Addr: std::fmt::Debug,
{
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        warn!(%error, %address, "HTTP server ended");
    }
}

/// A router that answers `/metrics`.
pub fn metrics_router(metrics: &Metrics) -> Router {
    let metrics = metrics.clone();
    let answer =
        move || std::future::ready(([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render()));
    Router::new().route("/metrics", get(answer))
}

/// The addresses to try, best first.
async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if address.is_empty() {
        return Ok(vec![(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()]);
    }
    if let Some(port) = address.strip_prefix(':') {
        let port = port.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        return Ok(vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ]);
    }
    let mut found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
    found.sort_by_key(|a| matches!(a.ip(), IpAddr::V6(_)));
    Ok(found)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if address.port() != 0 {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::{metrics_router, serve};
    use crate::metrics::Metrics;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn serves_metrics_until_stopped() {
        let stop = CancellationToken::new();
        let router = metrics_router(&Metrics::new("cilium_operator"));
        let listening = serve("localhost:0", router, &stop).await.unwrap();
        let mut stream = tokio::net::TcpStream::connect(listening[0]).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("cilium_operator_version{"), "{answer}");
        stop.cancel();
    }

    #[tokio::test]
    async fn reads_addresses_like_go() {
        let stop = CancellationToken::new();
        for (address, listeners) in [("", 2), (":0", 1), ("127.0.0.1:0", 1)] {
            let listening = serve(address, axum::Router::new(), &stop).await.unwrap();
            assert_eq!(listening.len(), listeners, "{address:?}");
        }
        for address in ["nonsense", ":x", "192.0.2.1:1"] {
            let error = serve(address, axum::Router::new(), &stop).await.unwrap_err().to_string();
            assert!(error.contains(address), "{error}");
        }
    }
}
