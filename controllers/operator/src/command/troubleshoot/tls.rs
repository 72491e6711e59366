//! Reads the certificates of an etcd client.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{EtcdConfig, Report};

const INDENT: &str = "   ";

/// How to connect over TLS; nothing if the files cannot be used.
pub(super) fn client(config: &EtcdConfig, report: &mut Report) -> Option<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match &config.trusted_ca_file {
        None => report.note(INDENT, "No trusted-ca-file: no server certificate is trusted"),
        Some(path) => match certificates(path) {
            Ok(found) => {
                report.good(
                    INDENT,
                    &format!("TLS Root CA certificates: {} in {}", found.len(), path.display()),
                );
                let (_, ignored) = roots.add_parsable_certificates(found);
                if ignored > 0 {
                    report.bad(INDENT, &format!("{ignored} of them cannot be used"));
                }
            }
            Err(error) => report
                .bad(INDENT, &format!("TLS Root CA certificates: {}: {error}", path.display())),
        },
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().ok()?.with_root_certificates(roots);
    let (Some(certificate), Some(key)) = (&config.cert_file, &config.key_file) else {
        report.note(INDENT, "No cert-file and key-file: we do not introduce ourselves");
        return Some(Arc::new(builder.with_no_client_auth()));
    };
    let read = certificates(certificate).and_then(|chain| {
        let key = PrivateKeyDer::from_pem_file(key);
        Ok((chain, key.map_err(|error| error.to_string())?))
    });
    let loaded = read.and_then(|(chain, key)| {
        builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())
    });
    let files = format!("{} with {}", certificate.display(), key.display());
    match loaded {
        Ok(client) => {
            report.good(INDENT, &format!("TLS client certificate: {files}"));
            Some(Arc::new(client))
        }
        Err(error) => {
            report.bad(INDENT, &format!("TLS client certificate: {files}: {error}"));
            None
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let found: Result<Vec<_>, _> = found.collect();
    match found.map_err(|error| error.to_string())? {
        found if found.is_empty() => Err("no certificate in it".to_owned()),
        found => Ok(found),
    }
}
