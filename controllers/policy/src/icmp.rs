//! Decides which ICMP messages a rule means: a type of one family.

use cilia_crds::policy::{IcmpFamily, IcmpRule};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::error::Error;
use crate::l4::protocol;
use crate::rule::Port;

/// Types by name; what a family doesn't have is not here.
const V4: &[(&str, u8)] = &[
    ("EchoReply", 0),
    ("DestinationUnreachable", 3),
    ("Redirect", 5),
    ("Echo", 8),
    ("EchoRequest", 8),
    ("RouterAdvertisement", 9),
    ("RouterSelection", 10),
    ("TimeExceeded", 11),
    ("ParameterProblem", 12),
    ("Timestamp", 13),
    ("TimestampReply", 14),
    ("Photuris", 40),
    ("ExtendedEchoRequest", 42),
    ("ExtendedEcho Reply", 43),
    ("ExtendedEchoReply", 43),
];

const V6: &[(&str, u8)] = &[
    ("DestinationUnreachable", 1),
    ("PacketTooBig", 2),
    ("TimeExceeded", 3),
    ("ParameterProblem", 4),
    ("EchoRequest", 128),
    ("EchoReply", 129),
    ("MulticastListenerQuery", 130),
    ("MulticastListenerReport", 131),
    ("MulticastListenerDone", 132),
    ("RouterSolicitation", 133),
    ("RouterAdvertisement", 134),
    ("NeighborSolicitation", 135),
    ("NeighborAdvertisement", 136),
    ("RedirectMessage", 137),
    ("RouterRenumbering", 138),
    ("ICMPNodeInformationQuery", 139),
    ("ICMPNodeInformationResponse", 140),
    ("InverseNeighborDiscoverySolicitation", 141),
    ("InverseNeighborDiscoveryAdvertisement", 142),
    ("HomeAgentAddressDiscoveryRequest", 144),
    ("HomeAgentAddressDiscoveryReply", 145),
    ("MobilePrefixSolicitation", 146),
    ("MobilePrefixAdvertisement", 147),
    ("DuplicateAddressRequestCodeSuffix", 157),
    ("DuplicateAddressConfirmationCodeSuffix", 158),
    ("ExtendedEchoRequest", 160),
    ("ExtendedEcho Reply", 161),
    ("ExtendedEchoReply", 161),
];

/// A type of message by its number or name.
pub(crate) fn type_of(proto: u8, text: &str) -> Option<u8> {
    let names = if proto == protocol::ICMPV6 { V6 } else { V4 };
    let known = names.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    known.or_else(|| text.parse().ok())
}

/// The messages of an item.
pub(crate) fn read(rules: &[IcmpRule], field: &str) -> Result<Vec<Port>, Error> {
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{field}[{index}].fields");
        if rule.fields.len() > 40 {
            return Err(Error::new(
                field,
                format!("{} messages are given, at most 40 are possible", rule.fields.len()),
            ));
        }
        for (index, message) in rule.fields.iter().enumerate() {
            let proto = match message.family {
                IcmpFamily::Ipv4 => protocol::ICMP,
                IcmpFamily::Ipv6 => protocol::ICMPV6,
            };
            let number = match &message.icmp_type {
                IntOrString::Int(number) => u8::try_from(*number).ok(),
                IntOrString::String(text) => type_of(proto, text),
            };
            let Some(number) = number else {
                let family = protocol::name(proto).unwrap_or_default();
                return Err(Error::new(
                    format_args!("{field}[{index}].type"),
                    format!(
                        "{} is not a type of {family}: a number from 0 to 255 or a name such as EchoRequest",
                        shown(&message.icmp_type)
                    ),
                ));
            };
            found.push(Port::Range { proto, first: number.into(), last: number.into() });
        }
    }
    Ok(found)
}

fn shown(text: &IntOrString) -> String {
    match text {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => format!("{text:?}"),
    }
}
