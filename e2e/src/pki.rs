//! Decides who is who in a cluster: one authority, a certificate per component.

use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

use crate::Error;
use crate::place::write;

/// A certificate and its key, PEM.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// The cluster's certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    pub fn new() -> Result<Self, Error> {
        let name = "cilia-cluster-ca";
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let issuer = CertifiedIssuer::self_signed(params, key(name)?).map_err(failed(name))?;
        Ok(Self { issuer })
    }

    /// The authority's own certificate and key.
    pub fn credentials(&self) -> Credentials {
        Credentials { certificate: self.issuer.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// A client certificate of `user` in `group`.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Credentials, Error> {
        self.issue(user, group, ExtendedKeyUsagePurpose::ClientAuth, Vec::new())
    }

    /// A server certificate for names and addresses.
    pub fn server(
        &self,
        name: &str,
        dns: &[&str],
        addresses: &[IpAddr],
    ) -> Result<Credentials, Error> {
        let mut names: Vec<_> = addresses.iter().map(|&ip| SanType::IpAddress(ip)).collect();
        for &host in dns {
            names.push(SanType::DnsName(host.try_into().map_err(failed(name))?));
        }
        self.issue(name, None, ExtendedKeyUsagePurpose::ServerAuth, names)
    }

    fn issue(
        &self,
        name: &str,
        group: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
        alternatives: Vec<SanType>,
    ) -> Result<Credentials, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = alternatives;
        let key = key(name)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed(name))?;
        Ok(Credentials { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// A kubeconfig with everything inside.
    pub fn kubeconfig(&self, server: &str, user: &Credentials) -> Value {
        let data = |pem: &str| ByteString(pem.as_bytes().to_vec());
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cilia",
            "clusters": [{"name": "cilia", "cluster": {
                "server": server,
                "certificate-authority-data": data(&self.issuer.pem()),
            }}],
            "users": [{"name": "cilia", "user": {
                "client-certificate-data": data(&user.certificate),
                "client-key-data": data(&user.key),
            }}],
            "contexts": [{"name": "cilia", "context": {"cluster": "cilia", "user": "cilia"}}],
        })
    }
}

impl Credentials {
    /// The key pair that signs service account tokens; the "certificate" is its public key.
    pub fn service_accounts() -> Result<Self, Error> {
        let pair = key("service accounts")?;
        Ok(Self { certificate: pair.public_key_pem(), key: pair.serialize_pem() })
    }

    /// Writes `NAME.crt` and `NAME.key` into `dir`.
    pub(crate) fn write(&self, dir: &Path, name: &str) -> Result<(), Error> {
        write(&dir.join(format!("{name}.crt")), &self.certificate)?;
        write(&dir.join(format!("{name}.key")), &self.key)
    }
}

fn key(name: &str) -> Result<KeyPair, Error> {
    KeyPair::generate().map_err(failed(name))
}

fn failed(name: &str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate { name: name.to_owned(), source }
}
