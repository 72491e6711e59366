//! Certificates of a test's etcd: an authority, the server, and users.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

/// The users that a cluster mesh has.
const USERS: &[&str] = &["root", "admin-east", "local-east", "remote"];
/// The name of files with a certificate of root that has expired.
const EXPIRED: &str = "expired";

/// Writes `<name>.crt` and `<name>.key` for the server, on loopback and at these addresses, and for every
/// user; and `ca.crt`.
///
/// # Panics
/// If that is not possible.
pub fn certify(folder: &Path, addresses: &[&str]) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("make a key");
    let authority = params.self_signed(&key).expect("sign an authority");
    let save = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).expect("write a certificate");
    };
    save("ca.crt", authority.pem());
    let issuer = Issuer::new(params, key);
    for name in USERS.iter().chain(&["server", EXPIRED]) {
        let names = ["127.0.0.1", "localhost"].iter().chain(addresses);
        let names: Vec<String> = names.map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        let user = if *name == EXPIRED { "root" } else { name };
        params.distinguished_name.push(DnType::CommonName, user);
        if *name == EXPIRED {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().expect("make a key");
        let certificate = params.signed_by(&key, &issuer).expect("sign a certificate");
        save(&format!("{name}.crt"), certificate.pem());
        save(&format!("{name}.key"), key.serialize_pem());
    }
}
