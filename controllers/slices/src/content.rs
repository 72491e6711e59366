//! What a slice says of an endpoint, in the smallest form that gives it back unchanged.
//!
//! Two contents are equal if agents could not tell them apart: an identity of 0 is none, an empty
//! service account is none, a key of 0 is none.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::EndpointStatus;
use cilia_crds::ciliumendpoint::networking::{
    AddressPair, EncryptionSpec, EndpointNetworking, NamedPort,
};

use crate::text::{Text, Texts};

/// Names, a port or two: what is part of any entry.
const SHORT: usize = 512;

/// About 90 bytes for an endpoint with one address of each family and no named ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Content {
    identity: i64,
    networking: Option<Networking>,
    encryption_key: u32,
    named_ports: Option<Arc<[NamedPort]>>,
    service_account: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Networking {
    pairs: Pairs,
    node: Option<Text>,
}

/// One pair of addresses is all that there ever is; anything else is kept as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Pairs {
    One { v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr> },
    Other(Box<[AddressPair]>),
}

impl Content {
    /// What the slice should say of an endpoint with this status.
    pub(crate) fn of_status(status: &EndpointStatus, texts: &mut Texts) -> Self {
        Self {
            identity: status.identity.as_ref().and_then(|identity| identity.id).unwrap_or(0),
            networking: status.networking.as_ref().map(|n| Networking::new(n, texts)),
            encryption_key: key(status.encryption.as_ref()),
            named_ports: ports(&status.named_ports),
            service_account: texts.intern_some(status.service_account.as_deref()),
        }
    }

    /// What a slice does say.
    pub(crate) fn of_entry(entry: &CoreCiliumEndpoint, texts: &mut Texts) -> Self {
        Self {
            identity: entry.id.unwrap_or(0),
            networking: entry.networking.as_ref().map(|n| Networking::new(n, texts)),
            encryption_key: key(entry.encryption.as_ref()),
            named_ports: ports(&entry.named_ports),
            service_account: texts.intern_some(entry.service_account.as_deref()),
        }
    }

    /// The entry to write for the endpoint of this name.
    pub(crate) fn entry(&self, name: &str) -> CoreCiliumEndpoint {
        CoreCiliumEndpoint {
            name: Some(name.to_owned()),
            id: (self.identity != 0).then_some(self.identity),
            networking: self.networking.as_ref().map(Networking::written),
            encryption: Some(EncryptionSpec {
                key: (self.encryption_key != 0).then_some(self.encryption_key),
            }),
            named_ports: self.named_ports.as_deref().unwrap_or_default().to_vec(),
            service_account: self.service_account.as_deref().map(str::to_owned),
        }
    }

    /// About how many bytes more than usual its entry has when it is written.
    pub(crate) fn excess(&self, name: &str) -> usize {
        // Quotes, keys and numbers of a named port.
        const PORT: usize = 60;
        const PAIR: usize = 40;
        let ports = self.named_ports.as_deref().unwrap_or_default().iter().map(|port| {
            let texts = [&port.name, &port.protocol].into_iter().flatten().map(String::len);
            PORT + texts.sum::<usize>()
        });
        let pairs = match self.networking.as_ref().map(|networking| &networking.pairs) {
            Some(Pairs::Other(pairs)) => pairs
                .iter()
                .map(|pair| {
                    let texts = [&pair.ipv4, &pair.ipv6].into_iter().flatten().map(String::len);
                    PAIR + texts.sum::<usize>()
                })
                .sum(),
            _ => 0,
        };
        let node = self.networking.as_ref().and_then(|networking| networking.node.as_ref());
        let texts = node.into_iter().chain(&self.service_account).map(|text| text.len());
        let texts = texts.sum::<usize>() + name.len();
        (ports.sum::<usize>() + pairs + texts).saturating_sub(SHORT)
    }

    /// A number that equal contents share, and no others as far as anybody will ever see.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl Networking {
    fn new(networking: &EndpointNetworking, texts: &mut Texts) -> Self {
        let pairs = match &networking.addressing[..] {
            [pair] => Pairs::one(pair),
            _ => None,
        };
        let pairs = pairs.unwrap_or_else(|| Pairs::Other(networking.addressing.clone().into()));
        Self { pairs, node: texts.intern_some(networking.node.as_deref()) }
    }

    fn written(&self) -> EndpointNetworking {
        let addressing = match &self.pairs {
            Pairs::One { v4, v6 } => vec![AddressPair {
                ipv4: v4.map(|address| address.to_string()),
                ipv6: v6.map(|address| address.to_string()),
            }],
            Pairs::Other(pairs) => pairs.to_vec(),
        };
        EndpointNetworking { addressing, node: self.node.as_deref().map(str::to_owned) }
    }
}

impl Pairs {
    /// The pair, if nothing of how it is spelled would be lost.
    fn one(pair: &AddressPair) -> Option<Self> {
        Some(Self::One { v4: exact(pair.ipv4.as_deref())?, v6: exact(pair.ipv6.as_deref())? })
    }
}

#[expect(clippy::option_option, reason = "no address, and an address that cannot be kept so")]
fn exact<A: std::str::FromStr + ToString>(text: Option<&str>) -> Option<Option<A>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Some(None) };
    let address: A = text.parse().ok()?;
    (address.to_string() == text).then_some(Some(address))
}

fn key(encryption: Option<&EncryptionSpec>) -> u32 {
    encryption.and_then(|encryption| encryption.key).unwrap_or(0)
}

fn ports(ports: &[NamedPort]) -> Option<Arc<[NamedPort]>> {
    (!ports.is_empty()).then(|| ports.into())
}

#[cfg(test)]
mod tests {
    use cilia_crds::CoreCiliumEndpoint;
    use cilia_crds::ciliumendpoint::networking::{
        AddressPair, EncryptionSpec, EndpointNetworking, NamedPort,
    };

    use super::Content;
    use crate::text::Texts;

    fn pair(ipv4: Option<&str>, ipv6: Option<&str>) -> AddressPair {
        AddressPair { ipv4: ipv4.map(str::to_owned), ipv6: ipv6.map(str::to_owned) }
    }

    #[test]
    fn gives_back_what_it_was_given() {
        let addressings = [
            vec![],
            vec![pair(Some("10.0.0.1"), Some("fd00::1"))],
            vec![pair(Some("10.0.0.1"), None)],
            vec![pair(None, Some("FD00::1"))],
            vec![pair(Some("not an address"), None)],
            vec![pair(Some("10.0.0.1"), None), pair(Some("10.0.0.2"), None)],
        ];
        for addressing in addressings {
            let networking = EndpointNetworking { addressing, node: Some("192.0.2.1".to_owned()) };
            let port = NamedPort { name: Some("http".to_owned()), port: Some(80), protocol: None };
            let entry = CoreCiliumEndpoint {
                name: Some("pod".to_owned()),
                id: Some(1234),
                networking: Some(networking),
                encryption: Some(EncryptionSpec { key: Some(3) }),
                named_ports: vec![port],
                service_account: Some("default".to_owned()),
            };
            let mut texts = Texts::default();
            assert_eq!(Content::of_entry(&entry, &mut texts).entry("pod"), entry);
        }
    }

    #[test]
    fn nothing_is_nothing_however_it_is_said() {
        let mut texts = Texts::default();
        let bare = Content::of_entry(&CoreCiliumEndpoint::default(), &mut texts);
        let said = CoreCiliumEndpoint {
            id: Some(0),
            encryption: Some(EncryptionSpec { key: Some(0) }),
            service_account: Some(String::new()),
            ..Default::default()
        };
        assert_eq!(bare.digest(), Content::of_entry(&said, &mut texts).digest());
    }
}
