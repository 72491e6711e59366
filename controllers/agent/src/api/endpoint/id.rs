//! Decides which endpoint a path means: a number, or what it is known by with a prefix.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::query::{LONGEST_NAME, number as go_number};
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
        let Some((prefix, name)) = text.split_once(':') else { return number(text) };
        match prefix {
            "cilium-local" => number(name),
            "pod-name" | "cep-name" => Ok(Self::Pod(name.to_owned())),
            "container-id" => Ok(Self::Container(name.to_owned())),
            "cni-attachment-id" => Ok(Self::Attachment(name.to_owned())),
            "ipv4" => Ok(name.parse().map_or(Self::Nobody, Self::Ipv4)),
            "ipv6" => Ok(name.parse().map_or(Self::Nobody, Self::Ipv6)),
            "container-name" | "docker-endpoint" => Ok(Self::Nobody),
            "cilium-global" => Err("unsupported IP address format".to_owned()),
            _ => Err(format!("unknown endpoint ID prefix \"{prefix}\"")),
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

/// The number of an endpoint, as Go reads numbers.
fn number(text: &str) -> Result<Id, String> {
    let below = text.strip_prefix('-').is_some_and(|rest| go_number(rest, "ParseInt").is_ok());
    if below {
        return Err(format!("invalid numeric cilium id: {text}"));
    }
    let number = go_number(text, "ParseInt");
    let number = number.map_err(|why| format!("invalid numeric cilium id: {why}"))?;
    let large = |_| format!("endpoint id too large: {number}");
    number.try_into().map(Id::Number).map_err(large)
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
            "0x7",
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
        for other in [
            "8",
            "pod-name:shop/web",
            "pod-name:web",
            "container-name:web",
            "docker-endpoint:x",
            "ipv4:10.0.0.3",
            "ipv4:fd00::2",
        ] {
            assert!(!Id::parse(other).expect(other).is(&web), "{other}");
        }
        let long = "1".repeat(600);
        let cases = [
            ("", r#"invalid numeric cilium id: strconv.ParseInt: parsing "": invalid syntax"#),
            (
                "7.0",
                r#"invalid numeric cilium id: strconv.ParseInt: parsing "7.0": invalid syntax"#,
            ),
            ("65536", "endpoint id too large: 65536"),
            ("-1", "invalid numeric cilium id: -1"),
            (
                "99999999999999999999",
                r#"invalid numeric cilium id: strconv.ParseInt: parsing "99999999999999999999": value out of range"#,
            ),
            ("cilium-global:x:7", "unsupported IP address format"),
            ("moon:7", r#"unknown endpoint ID prefix "moon""#),
            (&long, "an endpoint's name has at most 512 bytes"),
        ];
        for (wrong, why) in cases {
            assert_eq!(Id::parse(wrong), Err(why.to_owned()), "{wrong}");
        }
    }
}
