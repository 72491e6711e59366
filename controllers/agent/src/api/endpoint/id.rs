//! Decides which endpoint a path means: a number, or what it is known by with a prefix.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::query::LONGEST_NAME;
use crate::endpoint::LocalEndpoint;

/// What an endpoint is asked for by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Id {
    Number(u16),
    Pod(String),
    Container(String),
    Attachment(String),
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
    /// A name that endpoints here never have.
    Nobody,
}

impl Id {
    /// Reads a path's part; an error says what is wrong with it.
    pub(in super::super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST_NAME {
            return Err(format!("an endpoint's name has at most {LONGEST_NAME} bytes"));
        }
        let number = |text: &str| {
            text.parse().map(Self::Number).map_err(|_| {
                format!("{text:?} is not the number of an endpoint: those go up to {}", u16::MAX)
            })
        };
        let Some((prefix, name)) = text.split_once(':') else { return number(text) };
        let pod = |name: &str| match name.split_once('/') {
            Some((namespace, pod)) if !namespace.is_empty() && !pod.is_empty() => {
                Ok(Self::Pod(name.to_owned()))
            }
            _ => Err(format!("{prefix}:{name}: use {prefix}:NAMESPACE/NAME")),
        };
        let address = |family: &str| format!("{name:?} is no {family} address");
        match prefix {
            "cilium-local" => number(name),
            "pod-name" | "cep-name" => pod(name),
            "container-id" => Ok(Self::Container(name.to_owned())),
            "cni-attachment-id" => Ok(Self::Attachment(name.to_owned())),
            "ipv4" => name.parse().map(Self::Ipv4).map_err(|_| address("IPv4")),
            "ipv6" => name.parse().map(Self::Ipv6).map_err(|_| address("IPv6")),
            "cilium-global" | "container-name" | "docker-endpoint" => Ok(Self::Nobody),
            _ => Err(format!(
                "{prefix:?} is no prefix of endpoints' names: use cilium-local, cni-attachment-id, \
                 container-id, pod-name, cep-name, ipv4 or ipv6"
            )),
        }
    }

    /// Whether this endpoint is meant.
    pub(in super::super) fn is(&self, endpoint: &LocalEndpoint) -> bool {
        match self {
            Self::Number(number) => *number == endpoint.id,
            Self::Pod(pod) => pod.split_once('/') == Some((&endpoint.namespace, &endpoint.pod)),
            Self::Container(id) => *id == endpoint.container_id,
            // Without its interface an attachment is the container's first.
            Self::Attachment(id) => *id == endpoint.attachment() || *id == endpoint.container_id,
            Self::Ipv4(address) => endpoint.ipv4 == Some(*address),
            Self::Ipv6(address) => endpoint.ipv6 == Some(*address),
            Self::Nobody => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Id;
    use crate::endpoint::testing::endpoint;

    #[test]
    fn endpoints_have_many_names() {
        let web = endpoint(7, "c1", "web");
        let meant = [
            "7",
            "cilium-local:7",
            "pod-name:default/web",
            "cep-name:default/web",
            "container-id:c1",
            "cni-attachment-id:c1:eth0",
            "cni-attachment-id:c1",
            "ipv4:10.0.0.2",
            "ipv6:fd00::2",
        ];
        for name in meant {
            assert!(Id::parse(name).expect(name).is(&web), "{name}");
        }
        for other in
            ["8", "pod-name:shop/web", "container-name:web", "docker-endpoint:x", "ipv4:10.0.0.3"]
        {
            assert!(!Id::parse(other).expect(other).is(&web), "{other}");
        }
        let long = "1".repeat(600);
        for wrong in
            ["", "web", "65536", "-1", "7.0", "pod-name:web", "ipv4:fd00::2", "moon:7", &long]
        {
            assert!(Id::parse(wrong).is_err(), "{wrong}");
        }
    }
}
