//! Decides who may scrape over TLS, and with which certificate: the files as they are at each connection.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

/// How long a client may take to introduce itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that are set up and wait to be served.
const WAITING: usize = 16;

/// Where the certificate, its key and the authorities of clients are.
#[derive(Debug, Clone)]
pub struct Files {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Certificates of those who vouch for clients, PEM; if there are none, everyone is served.
    pub client_authorities: Vec<PathBuf>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read, or is not PEM.
    #[error("read {path}: {cause}")]
    Read {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: pem::Error,
    },
    /// The certificate and the key don't fit, or are of an unknown kind.
    #[error("use {certificate} with {key}: {cause}")]
    Use {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
        /// What is wrong with them.
        cause: rustls::Error,
    },
    /// The authorities of clients cannot be used.
    #[error("use the authorities of clients: {0}")]
    Authorities(VerifierBuilderError),
    /// A certificate of an authority is malformed.
    #[error("use the authority of clients {path}: {cause}")]
    Authority {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: rustls::Error,
    },
}

/// Files and what was read from them last.
#[derive(Debug)]
pub(super) struct Identity {
    files: Files,
    loaded: Mutex<(Vec<Option<SystemTime>>, Arc<ServerConfig>)>,
}

impl Identity {
    /// Reads the files for the first time.
    pub(super) fn load(files: Files) -> Result<Self, Error> {
        // Asked before reading: what is written in between is read again.
        let loaded = (files.changed(), Arc::new(files.read()?));
        Ok(Self { files, loaded: Mutex::new(loaded) })
    }

    /// What the files say now; what they said before while they are broken, as in the midst of a rotation.
    fn current(&self) -> Arc<ServerConfig> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.files.changed();
        if changed != loaded.0 {
            match self.files.read() {
                Ok(config) => {
                    info!(certificate = %self.files.certificate.display(), "certificate read anew");
                    *loaded = (changed, Arc::new(config));
                }
                Err(error) => warn!(%error, "the former certificate stays in use"),
            }
        }
        loaded.1.clone()
    }
}

impl Files {
    fn changed(&self) -> Vec<Option<SystemTime>> {
        let all = [&self.certificate, &self.key].into_iter().chain(&self.client_authorities);
        all.map(|path| path.metadata().and_then(|file| file.modified()).ok()).collect()
    }

    fn read(&self) -> Result<ServerConfig, Error> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(failed(&self.key))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(self.unusable())?;
        let builder = if self.client_authorities.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for path in &self.client_authorities {
                for certificate in certificates(path)? {
                    let failed =
                        |cause| Error::Authority { path: path.display().to_string(), cause };
                    roots.add(certificate).map_err(failed)?;
                }
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(Error::Authorities)?)
        };
        builder.with_single_cert(chain, key).map_err(self.unusable())
    }

    fn unusable(&self) -> impl FnOnce(rustls::Error) -> Error {
        let (certificate, key) = (self.certificate.display(), self.key.display());
        let (certificate, key) = (certificate.to_string(), key.to_string());
        move |cause| Error::Use { certificate, key, cause }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).map_err(failed(path))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(failed(path))?;
    if found.is_empty() { Err(failed(path)(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn failed(path: &Path) -> impl Fn(pem::Error) -> Error {
    move |cause| Error::Read { path: path.display().to_string(), cause }
}

/// Accepts connections over TLS. A client that is slow to introduce itself keeps nobody else waiting.
pub(super) struct TlsListener {
    address: SocketAddr,
    streams: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Takes over a listener. Must be called inside a Tokio runtime.
    pub(super) fn new(listener: TcpListener, identity: Arc<Identity>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, streams) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            while let Ok(permit) = sender.clone().reserve_owned().await {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = sender.closed() => return,
                };
                let Ok((stream, peer)) = accepted else {
                    // Out of files, most likely: the connections that are open have to end first.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let acceptor = TlsAcceptor::from(identity.current());
                tokio::spawn(async move {
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => drop(permit.send((stream, peer))),
                        Ok(Err(error)) => debug!(%peer, %error, "TLS connection refused"),
                        Err(_) => debug!(%peer, "TLS connection not set up in time"),
                    }
                });
            }
        });
        Ok(Self { address, streams })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.streams.recv().await {
            Some(accepted) => accepted,
            // The acceptor ends only with this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    use tokio_util::sync::CancellationToken;

    use super::Files;
    use crate::http::{metrics_router, serve_tls};
    use crate::metrics::Metrics;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn authority(name: &str) -> Issuer {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A certificate for `localhost` and its key.
    fn issue(authority: &Issuer) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
    }

    /// The answer to a scrape by a client who trusts an authority, and introduces itself by another.
    async fn scrape(
        address: SocketAddr,
        trusted: &Issuer,
        own: Option<&Issuer>,
    ) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let (certificate, key) = issue(authority);
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let stream = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await?;
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn serves_whom_it_may_with_the_certificate_of_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (old, new, clients) = (authority("old"), authority("new"), authority("clients"));
        let install = |authority: &Issuer| {
            let (certificate, key) = issue(authority);
            std::fs::write(path("tls.crt"), certificate).unwrap();
            std::fs::write(path("tls.key"), key).unwrap();
        };
        let mut files = Files {
            certificate: path("tls.crt"),
            key: path("tls.key"),
            client_authorities: Vec::new(),
        };
        let stop = CancellationToken::new();
        let router = metrics_router(&Metrics::new("cilium_operator"));
        let start = async |files: &Files| {
            let listening = serve_tls("127.0.0.1:0", router.clone(), files.clone(), &stop).await;
            listening.map(|addresses| addresses[0]).map_err(|error| error.to_string())
        };
        let error = start(&files).await.unwrap_err();
        assert!(error.starts_with(&format!("read {}: ", path("tls.crt").display())), "{error}");

        install(&old);
        let address = start(&files).await.unwrap();
        // Who connects and says nothing keeps nobody waiting.
        let _silent = TcpStream::connect(address).await.unwrap();
        assert!(scrape(address, &old, None).await.unwrap().contains("cilium_operator_version{"));
        assert!(scrape(address, &new, None).await.is_err(), "a certificate of another");

        // Another certificate; and while it is only half written, the former.
        std::fs::write(path("tls.crt"), "half").unwrap();
        assert!(scrape(address, &old, None).await.is_ok());
        install(&new);
        assert!(scrape(address, &new, None).await.is_ok());

        std::fs::write(path("ca.crt"), clients.pem()).unwrap();
        files.client_authorities.push(path("ca.crt"));
        let address = start(&files).await.unwrap();
        assert!(scrape(address, &new, None).await.is_err(), "a client without a certificate");
        assert!(scrape(address, &new, Some(&old)).await.is_err(), "a client of another");
        assert!(scrape(address, &new, Some(&clients)).await.is_ok());
    }
}
