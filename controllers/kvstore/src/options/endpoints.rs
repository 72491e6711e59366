//! Decides where etcd's members are and how to talk to them, by the etcd client's YAML file or one address.
//!
//! As etcd's own client reads it: an endpoint of the file that does not say `http://` is reached by TLS, unless
//! `insecure-transport` is set; without `trusted-ca-file` the authorities of the machine vouch for servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Source;
use crate::Error;
use crate::value::or_empty;

/// The longest file that is read.
const LONGEST: u64 = 1 << 20;
/// Where machines keep the authorities that they trust.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where etcd's members are, and how to talk to them: the etcd client's YAML file.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Endpoints {
    /// URLs.
    #[serde(deserialize_with = "or_empty")]
    pub endpoints: Vec<String>,
    /// The authority of the servers' certificates; nothing for those of the machine.
    pub trusted_ca_file: Option<PathBuf>,
    /// The client's certificate, whose name is its user.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// A user with a password, in place of a certificate's.
    #[serde(deserialize_with = "or_empty")]
    pub username: String,
    /// The password.
    #[serde(deserialize_with = "or_empty")]
    pub password: String,
    /// Endpoints without a scheme are reached without TLS.
    #[serde(deserialize_with = "or_empty")]
    pub insecure_transport: bool,
    /// Not supported: a server that nobody vouches for.
    #[serde(deserialize_with = "or_empty")]
    pub insecure_skip_tls_verify: bool,
    /// Keys of the file that mean nothing here.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// The keys of the file that do.
const READ: &[&str] = &[
    "endpoints",
    "trusted-ca-file",
    "cert-file",
    "key-file",
    "username",
    "password",
    "insecure-transport",
    "insecure-skip-tls-verify",
];

/// Without the password.
impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { endpoints, username, .. } = self;
        let mut shown = f.debug_struct("Endpoints");
        shown.field("endpoints", endpoints).field("username", username).finish_non_exhaustive()
    }
}

impl Endpoints {
    /// Reads what the source says now.
    pub fn read(source: &Source) -> Result<Self, Error> {
        let path = match source {
            Source::Address(address) => {
                let address = url(address, false)
                    .map_err(|reason| Error::Option { option: super::ADDRESS.into(), reason })?;
                return Ok(Self { endpoints: vec![address], ..Self::default() });
            }
            Source::File(path) => path,
        };
        let bad = |reason: String| Error::File { path: path.clone(), reason };
        let size = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
        if size > LONGEST {
            return Err(bad(format!("it has {size} bytes, {LONGEST} are allowed")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        // The first line says what is wrong; the others show the text around it, with the password.
        let first = |error: serde_saphyr::Error| {
            error.to_string().lines().next().unwrap_or_default().to_owned()
        };
        let mut endpoints: Self = serde_saphyr::from_str(text).map_err(first)?;
        let keys: BTreeMap<String, serde_json::Value> =
            serde_saphyr::from_str(text).map_err(first)?;
        endpoints.ignored = keys.into_keys().filter(|key| !READ.contains(&key.as_str())).collect();
        for file in
            [&mut endpoints.trusted_ca_file, &mut endpoints.cert_file, &mut endpoints.key_file]
        {
            // As with no such key.
            *file = file.take().filter(|path| !path.as_os_str().is_empty());
        }
        if endpoints.endpoints.is_empty() {
            return Err("endpoints: at least one URL is needed".into());
        }
        if endpoints.insecure_skip_tls_verify {
            return Err("insecure-skip-tls-verify: is not supported; set trusted-ca-file".into());
        }
        if endpoints.cert_file.is_some() != endpoints.key_file.is_some() {
            return Err("cert-file and key-file: both or neither must be set".into());
        }
        let tls = !endpoints.insecure_transport;
        for endpoint in &mut endpoints.endpoints {
            *endpoint = url(endpoint, tls).map_err(|reason| format!("endpoints: {reason}"))?;
        }
        Ok(endpoints)
    }
}

/// The URL of an endpoint; by TLS or not, where it does not say.
fn url(endpoint: &str, tls: bool) -> Result<String, String> {
    // etcd's own client takes no user from a URL either; nor may a password get into logs.
    let said = match endpoint.trim().rsplit_once('@') {
        Some((user, host)) => match user.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://{host}"),
            None => host.to_owned(),
        },
        None => endpoint.trim().to_owned(),
    };
    let url = match said.split_once("://") {
        Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
        None => format!("{}://{said}", if tls { "https" } else { "http" }),
    };
    let known = url.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
    });
    if known { Ok(url) } else { Err(format!("{said:?} is no URL such as https://etcd-0:2379")) }
}

/// The file of the authorities that this machine trusts.
pub(crate) fn authorities() -> Result<&'static Path, String> {
    let there = AUTHORITIES.iter().map(Path::new).find(|path| path.is_file());
    there.ok_or_else(|| {
        format!("trusted-ca-file must be set: this machine has no {}", AUTHORITIES.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::{Endpoints, Source};

    #[test]
    fn files_are_read_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.config");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Endpoints::read(&Source::File(path.clone())).map_err(|error| error.to_string())
        };
        let files = "trusted-ca-file: /ca\ncert-file: /c\nkey-file: /k\n";
        let good =
            read(&format!("---\nendpoints:\n  - https://a:2379\n  - b:2379\n{files}")).unwrap();
        assert_eq!(good.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(good.ignored, [""; 0]);
        let user = read("endpoints: ['https://u:hunter2@a:1', 'u:hun/t@er2@b:2']\n").unwrap();
        assert_eq!(user.endpoints, ["https://a:1", "https://b:2"]);
        let more = read("endpoints: [a:1]\ndial-timeout: 5s\nmax-call-send-msg-size: 1\n").unwrap();
        assert_eq!(more.ignored, ["dial-timeout", "max-call-send-msg-size"]);
        let long = "x".repeat(1 << 20);
        for (text, want) in [
            ("endpoints: []\n", "at least one URL"),
            ("endpoints: [http://a:1]\ncert-file: /c\n", "both or neither"),
            ("endpoints: [http://a:1]\ninsecure-skip-tls-verify: true\n", "not supported"),
            ("endpoints: [http://fd00::1:2379]\n", "\"http://fd00::1:2379\" is no URL such as"),
            ("endpoints: ['ftp://a:1']\n", "\"ftp://a:1\" is no URL such as"),
            ("endpoints: ['']\n", "\"\" is no URL"),
            (&format!("endpoints: [a:1]\nusername: {long}"), "bytes, 1048576 are allowed"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(want), "{error} lacks {want}");
        }
        for text in ["password: [hunter2]", "password: \"hunter2", "password: hunter2: x"] {
            let error = read(&format!("endpoints: [a:1]\nusername: u\n{text}\n")).unwrap_err();
            assert!(error.contains("line 3") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_does_not_say_is_reached_by_tls_unless_that_is_switched_off() {
        let of = |text: &str| Endpoints::parse(text).unwrap();
        for (text, want) in [
            (
                "endpoints: [a:1, 'Http://b:1', 'HTTPS://c:1']",
                ["https://a:1", "http://b:1", "https://c:1"],
            ),
            (
                "endpoints: [a:1, '[fd00::1]:2379', 'https://[fd00::2]:2379']\ninsecure-transport: true",
                ["http://a:1", "http://[fd00::1]:2379", "https://[fd00::2]:2379"],
            ),
        ] {
            assert_eq!(of(text).endpoints, want, "{text}");
        }
        let bare = of("endpoints: [a:1]\ntrusted-ca-file: ''\ncert-file: ''\nkey-file: ''\n");
        assert_eq!((bare.trusted_ca_file, bare.cert_file, bare.key_file), (None, None, None));
        // As with no such key, too.
        let nulls = "trusted-ca-file:\ncert-file: ~\nkey-file: null\nusername:\npassword:\n";
        let nulls = format!("{nulls}insecure-transport:\ninsecure-skip-tls-verify: null\n");
        let bare = of(&format!("endpoints: [a:1]\n{nulls}"));
        assert_eq!(bare, of("endpoints: [a:1]"));
        let user = of("endpoints: [a:1]\nusername: me\npassword: secret\n");
        assert!(!format!("{user:?}").contains("secret"), "{user:?}");
        // One address says by itself.
        for (address, want) in [("a:1", "http://a:1"), ("https://a:1", "https://a:1")] {
            let read = Endpoints::read(&Source::Address(address.into())).unwrap();
            assert_eq!(read.endpoints, [want]);
        }
        let error = Endpoints::read(&Source::Address("a b".into())).unwrap_err().to_string();
        assert!(error.starts_with("kvstore-opt: etcd.address: \"a b\" is no URL"), "{error}");
    }
}
