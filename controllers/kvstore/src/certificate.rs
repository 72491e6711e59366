//! Reads whose a client's certificate is and how long it is valid, to say so when a server refuses it.
//!
//! A reader of its own for these three fields of X.509: nothing is trusted because of what it finds.

use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The version of the certificate, if it is told.
const VERSION: u8 = 0xa0;
/// The parts of a name that are shown, by the last byte of 2.5.4.x.
const NAMES: [(u8, &str); 3] = [(3, "CN"), (10, "O"), (11, "OU")];

#[derive(Debug, PartialEq, Eq)]
struct Certificate {
    /// As `CN=root,O=etcd`.
    subject: String,
    from: Timestamp,
    until: Timestamp,
}

/// Why the first certificate of a file can't be used at this time; nothing if it can, as far as is known.
pub(crate) fn fault(path: &Path, now: Timestamp) -> Option<String> {
    let certificate = Certificate::read(path)?;
    let Certificate { subject, from, until } = &certificate;
    let path = path.display();
    if now > *until {
        Some(format!(
            "cert-file {path}: the certificate of {subject} has expired: notAfter {until}"
        ))
    } else if now < *from {
        Some(format!(
            "cert-file {path}: the certificate of {subject} is not valid yet: notBefore {from}"
        ))
    } else {
        None
    }
}

/// The file, and whose certificate is in it.
pub(crate) fn describe(path: &Path) -> String {
    match Certificate::read(path) {
        Some(Certificate { subject, until, .. }) => {
            format!("cert-file {}: certificate of {subject}, notAfter {until}", path.display())
        }
        None => format!("cert-file {}", path.display()),
    }
}

impl Certificate {
    fn read(path: &Path) -> Option<Self> {
        Self::parse(&CertificateDer::from_pem_file(path).ok()?)
    }

    fn parse(der: &[u8]) -> Option<Self> {
        let (certificate, _) = element(der, SEQUENCE)?;
        let (mut rest, _) = element(certificate, SEQUENCE)?;
        if let Some((_, after)) = element(rest, VERSION) {
            rest = after;
        }
        // Serial number, algorithm, issuer.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            rest = element(rest, tag)?.1;
        }
        let (validity, rest) = element(rest, SEQUENCE)?;
        let (from, validity) = time(validity)?;
        let (until, _) = time(validity)?;
        let (subject, _) = element(rest, SEQUENCE)?;
        Some(Self { subject: name(subject), from, until })
    }
}

/// The content of the first element, if it has this tag, and what follows it.
fn element(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = any(input)?;
    (first.0 == tag).then_some((first.1, rest))
}

type Element<'a> = (u8, &'a [u8]);

/// The first element, with its tag, and what follows it.
fn any(input: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = if length < 0x80 {
        (usize::from(length), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
        if bytes.is_empty() || bytes.len() > 4 {
            return None;
        }
        (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(((tag, content), rest))
}

/// `YYMMDDHHMMSSZ` of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn time(input: &[u8]) -> Option<(Timestamp, &[u8])> {
    let ((tag, content), rest) = any(input)?;
    let text = std::str::from_utf8(content).ok().filter(|text| text.is_ascii())?;
    let text = match tag {
        UTC_TIME => {
            let century = if text.get(..1)? < "5" { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let digits = text.strip_suffix('Z').filter(|digits| digits.len() == 14)?;
    let part = |range| digits.get(range);
    let (year, month, day) = (part(0..4)?, part(4..6)?, part(6..8)?);
    let (hour, minute, second) = (part(8..10)?, part(10..12)?, part(12..14)?);
    let time = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z").parse().ok()?;
    Some((time, rest))
}

/// A name in one line; control characters are no part of it.
fn name(mut parts: &[u8]) -> String {
    let mut shown = Vec::new();
    while let Some((part, rest)) = element(parts, SET) {
        parts = rest;
        let found = element(part, SEQUENCE).and_then(|(pair, _)| {
            let (kind, value) = element(pair, OBJECT_IDENTIFIER)?;
            let [0x55, 0x04, last] = kind else { return None };
            let (_, kind) = NAMES.iter().find(|(number, _)| number == last)?;
            let ((_, value), _) = any(value)?;
            let value = String::from_utf8_lossy(value);
            let value: String = value.chars().filter(|letter| !letter.is_control()).collect();
            Some(format!("{kind}={value}"))
        });
        shown.extend(found);
    }
    if shown.is_empty() { "nobody".to_owned() } else { shown.join(",") }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

    use super::{Certificate, describe, fault};

    fn certificate(until: i32) -> rcgen::Certificate {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "root\n");
        params.distinguished_name.push(DnType::OrganizationName, "etcd");
        params.not_before = date_time_ymd(1975, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate")
    }

    #[test]
    fn says_whose_it_is_and_since_when_it_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("client.crt");
        let fault = |until, now: &str| {
            std::fs::write(&path, certificate(until).pem()).expect("write");
            fault(&path, now.parse().expect("a time"))
        };
        let said = fault(2026, "2027-01-01T00:00:00Z").expect("expired");
        let want = "the certificate of CN=root,O=etcd has expired: notAfter 2026-12-31T00:00:00Z";
        assert!(said.ends_with(want) && said.contains("/client.crt"), "{said}");
        let said = fault(2026, "1974-12-31T23:59:59Z").expect("too early");
        assert!(said.ends_with("not valid yet: notBefore 1975-01-01T00:00:00Z"), "{said}");
        // From 2050 on a time is written in another way.
        assert_eq!(fault(2126, "2100-01-01T00:00:00Z"), None);
        assert!(
            describe(&path)
                .ends_with("certificate of CN=root,O=etcd, notAfter 2126-12-31T00:00:00Z")
        );
        std::fs::write(&path, "no certificate").expect("write");
        assert_eq!(describe(&path), format!("cert-file {}", path.display()));
    }

    #[test]
    fn broken_ones_are_read_without_harm() {
        let der = certificate(2026).der().to_vec();
        assert!(Certificate::parse(&der).is_some());
        for end in 0..der.len() {
            let _ = Certificate::parse(&der[..end]);
        }
        for at in 0..der.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut der = der.clone();
                der[at] = byte;
                let _ = Certificate::parse(&der);
            }
        }
    }
}
