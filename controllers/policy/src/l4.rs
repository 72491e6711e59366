//! Decides which protocols and ports a rule means, and says it in prefixes that a trie can hold.

use std::fmt;

use crate::error::Error;
use crate::rule::Port;

/// The protocol numbers that policy knows by name.
pub mod protocol {
    /// Every protocol; in a rule with a port: TCP, UDP and SCTP.
    pub const ANY: u8 = 0;
    /// ICMP for IPv4; the port is the type.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6; the port is the type.
    pub const ICMPV6: u8 = 58;
    /// VRRP.
    pub const VRRP: u8 = 112;
    /// SCTP.
    pub const SCTP: u8 = 132;

    /// The protocol's name, as rules and the command line write it.
    pub fn name(number: u8) -> Option<&'static str> {
        Some(match number {
            ANY => "ANY",
            ICMP => "ICMP",
            IGMP => "IGMP",
            TCP => "TCP",
            UDP => "UDP",
            ICMPV6 => "ICMPv6",
            VRRP => "VRRP",
            SCTP => "SCTP",
            _ => return None,
        })
    }
}

/// A protocol and an aligned block of ports: the part of a policy key that is matched by prefix.
///
/// Protocol 0 means every packet, and a prefix of 0 bits every port of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct L4 {
    /// The protocol's number, 0 for every one.
    pub proto: u8,
    /// The first port of the block.
    pub port: u16,
    /// How many leading bits of the port count.
    pub prefix: u8,
}

impl L4 {
    /// Every packet.
    pub const ALL: Self = Self { proto: protocol::ANY, port: 0, prefix: 0 };

    /// Every port of a protocol.
    pub const fn proto(proto: u8) -> Self {
        Self { proto, port: 0, prefix: 0 }
    }

    /// One port of a protocol.
    pub const fn port(proto: u8, port: u16) -> Self {
        Self { proto, port, prefix: 16 }
    }

    /// Whether every packet of `other` is one of this too.
    pub fn covers(self, other: Self) -> bool {
        if self.proto == protocol::ANY {
            return true;
        }
        self.proto == other.proto
            && self.prefix <= other.prefix
            && self.port == other.port & mask(self.prefix)
    }

    /// This and every key that is broader, from the narrowest to [`L4::ALL`].
    pub fn broader(self) -> impl Iterator<Item = Self> {
        let blocks = (self.proto != protocol::ANY).then_some((0..=self.prefix).rev());
        let narrowed = move |prefix| Self { port: self.port & mask(prefix), prefix, ..self };
        blocks.into_iter().flatten().map(narrowed).chain([Self::ALL])
    }

    /// How many bits of protocol and port are compared: what the kernel's entry says of itself.
    pub fn lpm_bits(self) -> u8 {
        if self.proto == protocol::ANY { 0 } else { 8 + self.prefix }
    }

    /// The last port of the block.
    pub fn last(self) -> u16 {
        self.port | !mask(self.prefix)
    }
}

impl fmt::Display for L4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named =
            protocol::name(self.proto).map_or_else(|| self.proto.to_string(), str::to_owned);
        match (self.prefix, self.last()) {
            (0, _) => write!(f, "{named}"),
            (16, _) => write!(f, "{}/{named}", self.port),
            (_, last) => write!(f, "{}-{last}/{named}", self.port),
        }
    }
}

/// The port bits that a prefix of `bits` compares.
const fn mask(bits: u8) -> u16 {
    match bits {
        0 => 0,
        bits => u16::MAX << (16 - bits),
    }
}

/// The aligned blocks that make up the ports `first..=last` of `proto`, in order; at most 30.
///
/// From 0 to 0 or to 65535 is every port.
pub fn blocks(proto: u8, first: u16, last: u16) -> Vec<L4> {
    if first == 0 && (last == 0 || last == u16::MAX) {
        return vec![L4::proto(proto)];
    }
    let mut found = Vec::new();
    let (mut next, end) = (u32::from(first), u32::from(last.max(first)));
    while next <= end {
        // The largest block that starts here and doesn't reach past the end.
        let mut bits = next.trailing_zeros().min(16);
        while next + (1 << bits) - 1 > end {
            bits -= 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "next <= end <= 65535 and bits <= 16")]
        found.push(L4 { proto, port: next as u16, prefix: 16 - bits as u8 });
        next += 1 << bits;
    }
    found
}

/// A port as users write it: a number, in Go's notations too, or a service name (RFC 6335).
///
/// An end before the first port means the first port alone.
pub(crate) fn port_or_name(
    proto: u8,
    text: &str,
    end: Option<u16>,
    field: &str,
) -> Result<Port, Error> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits) = match lower.split_at_checked(2) {
        Some(("0x", rest)) => (16, rest),
        Some(("0o", rest)) => (8, rest),
        Some(("0b", rest)) => (2, rest),
        // As in C and Go: 010 is 8.
        Some(_) if lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, &*lower),
    };
    if !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)) {
        // Too many digits overflow: too large as well.
        let first = u16::from_str_radix(digits, radix)
            .map_err(|_| Error::new(field, format!("port {text} is not between 0 and 65535")))?;
        return Ok(Port::Range { proto, first, last: end.unwrap_or(first).max(first) });
    }
    let fine = lower.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && lower.bytes().any(|b| b.is_ascii_alphabetic())
        && (1..=15).contains(&lower.len())
        && !lower.starts_with('-')
        && !lower.ends_with('-')
        && !lower.contains("--");
    if !fine {
        let fault = format!(
            "{text:?} is neither a port number nor a service name (at most 15 letters, digits and single dashes)"
        );
        return Err(Error::new(field, fault));
    }
    Ok(Port::Named { proto, name: lower.into() })
}

#[cfg(test)]
mod tests {
    use super::{L4, blocks, port_or_name, protocol::TCP};
    use crate::rule::Port;

    #[test]
    fn ports_are_read_as_go_reads_them() {
        let number = |text: &str| match port_or_name(TCP, text, None, "ports[0].port") {
            Ok(Port::Range { first, .. }) => Ok(first),
            Ok(Port::Named { name, .. }) => Err(name.to_string()),
            Err(error) => Err(error.to_string()),
        };
        for (text, want) in [
            ("80", 80),
            ("0", 0),
            ("0x50", 80),
            ("0X50", 80),
            ("0o120", 80),
            ("0120", 80),
            ("0b1010000", 80),
            ("00", 0),
            ("65535", 65535),
            ("0177777", 65535),
        ] {
            assert_eq!(number(text), Ok(want), "{text}");
        }
        for (text, want) in [
            ("65536", "is not between 0 and 65535"),
            ("0200000", "is not between 0 and 65535"),
            ("99999999999999999999", "is not between 0 and 65535"),
            ("080", "\"080\" is neither a port number nor a service name"),
            ("+80", "is neither a port number"),
            ("", "is neither a port number"),
        ] {
            assert!(number(text).is_err_and(|error| error.contains(want)), "{text}");
        }
        // Not hexadecimal, but names.
        assert_eq!(
            [number("http"), number("0xyz"), number("0b2")],
            ["http", "0xyz", "0b2"].map(|n| Err(n.into()))
        );
    }

    #[test]
    fn blocks_are_the_range_exactly() {
        let cases = [
            (80, 80, 1),
            (80, 81, 1),
            (64, 127, 1),
            (1, 65535, 16),
            (0, 65535, 1),
            (0, 0, 1),
            (1, 65534, 30),
            (7, 3, 1),
        ];
        for (first, last, count) in cases {
            let found = blocks(TCP, first, last);
            assert_eq!(found.len(), count, "{first}-{last}");
            let whole = first == 0;
            for port in 0..=u16::MAX {
                let inside = whole || (port >= first && port <= last.max(first));
                let held = found.iter().filter(|b| b.covers(L4::port(TCP, port))).count();
                assert_eq!(held, usize::from(inside), "{first}-{last}: {port}");
            }
        }
    }

    #[test]
    fn broader_is_what_covers() {
        let key = L4 { proto: TCP, port: 0x1230, prefix: 12 };
        let all: Vec<L4> = key.broader().collect();
        assert_eq!((all.len(), all[0], all[12], all[13]), (14, key, L4::proto(TCP), L4::ALL));
        assert!(all.iter().all(|broad| broad.covers(key)));
        assert_eq!(L4::ALL.broader().collect::<Vec<_>>(), [L4::ALL]);
    }

    #[test]
    fn reads_like_a_port() {
        let shown =
            [L4::ALL, L4::proto(TCP), L4::port(TCP, 80), L4 { proto: TCP, port: 64, prefix: 10 }];
        assert_eq!(shown.map(|key| key.to_string()), ["ANY", "TCP", "80/TCP", "64-127/TCP"]);
    }
}
