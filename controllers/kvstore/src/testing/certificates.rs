//! Certificates of a test's etcd: an authority, the server, and users.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The users that a cluster mesh has.
const USERS: &[&str] = &["root", "admin-east", "local-east", "remote"];

/// Writes `<name>.crt` and `<name>.key` for everybody, and `ca.crt`.
pub(super) fn write(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("make a key");
    let authority = params.self_signed(&key).expect("sign an authority");
    let save = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).expect("write a certificate");
    };
    save("ca.crt", authority.pem());
    let issuer = Issuer::new(params, key);
    for name in USERS.iter().chain(&["server"]) {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, *name);
        let key = KeyPair::generate().expect("make a key");
        let certificate = params.signed_by(&key, &issuer).expect("sign a certificate");
        save(&format!("{name}.crt"), certificate.pem());
        save(&format!("{name}.key"), key.serialize_pem());
    }
}
