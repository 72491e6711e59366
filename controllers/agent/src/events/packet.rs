//! Reads a packet's addresses, ports and flags out of its first bytes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::icmp;

/// A packet in a line. Ports are 0 where the protocol has none; ICMP has type and code there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Source address.
    pub source: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port; the type of ICMP.
    pub destination_port: u16,
    /// The protocol's number.
    pub protocol: u8,
    /// TCP flags; the code of ICMP.
    pub flags: u8,
    /// A fragment other than the first: it has no ports.
    pub fragment: bool,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;

/// The summary of an event's packet; nothing if it is no IP packet or cut off before its addresses.
pub(super) fn summary(event: &cilia_loader::Event) -> Option<Summary> {
    use cilia_loader::Event::{Drop, Trace, Verdict};
    let packet = match event {
        Drop(event) => &event.packet,
        Trace(event) => &event.packet,
        Verdict(event) => &event.packet,
    };
    parse(&packet.bytes)
}

/// Reads from the Ethernet head on.
fn parse(bytes: &[u8]) -> Option<Summary> {
    let kind = be16(bytes, 12)?;
    let ip = bytes.get(ETHERNET..)?;
    let (source, destination, protocol, fragment, at): (IpAddr, IpAddr, u8, bool, usize) =
        match kind {
            0x0800 => {
                let address = |at: usize| {
                    Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?))
                };
                let fragment = be16(ip, 6)? & 0x1fff != 0;
                let length = usize::from(ip.first()? & 0x0f) * 4;
                (address(12)?.into(), address(16)?.into(), *ip.get(9)?, fragment, length)
            }
            0x86dd => {
                let address = |at: usize| {
                    Some(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?))
                };
                let (protocol, at, fragment) = skip_extensions(ip, *ip.get(6)?);
                (address(8)?.into(), address(24)?.into(), protocol, fragment, at)
            }
            _ => return None,
        };
    let mut summary = Summary {
        source,
        source_port: 0,
        destination,
        destination_port: 0,
        protocol,
        flags: 0,
        fragment,
    };
    let l4 = ip.get(at..).unwrap_or_default();
    match protocol {
        _ if fragment => {}
        TCP | UDP | SCTP => {
            summary.source_port = be16(l4, 0).unwrap_or(0);
            summary.destination_port = be16(l4, 2).unwrap_or(0);
            if protocol == TCP {
                summary.flags = l4.get(13).copied().unwrap_or(0);
            }
        }
        ICMP | ICMPV6 => {
            summary.destination_port = l4.first().copied().unwrap_or(0).into();
            summary.flags = l4.get(1).copied().unwrap_or(0);
        }
        _ => {}
    }
    Some(summary)
}

/// The protocol after IPv6's extension headers, where it begins, and whether it is a later fragment.
fn skip_extensions(ip: &[u8], mut next: u8) -> (u8, usize, bool) {
    let (mut at, mut fragment) = (IPV6_HEADER, false);
    for _ in 0..8 {
        let Some(&following) = ip.get(at) else { break };
        let length = usize::from(ip.get(at + 1).copied().unwrap_or(0));
        match next {
            0 | 43 | 60 => at += 8 + length * 8,
            51 => at += 8 + length * 4,
            44 => {
                fragment |= be16(ip, at + 2).unwrap_or(0) & 0xfff8 != 0;
                at += 8;
            }
            _ => break,
        }
        next = following;
    }
    (next, at, fragment)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(<[u8; 2]>::try_from(bytes.get(at..at + 2)?).ok()?))
}

impl fmt::Display for Summary {
    /// `10.0.0.1:4711 -> 10.0.0.2:80 tcp SYN`, as Cilium's monitor writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: IpAddr, port: u16| match (address, self.protocol) {
            (address, _) if self.fragment => address.to_string(),
            (IpAddr::V6(address), TCP | UDP | SCTP) => format!("[{address}]:{port}"),
            (address, TCP | UDP | SCTP) => format!("{address}:{port}"),
            (address, _) => address.to_string(),
        };
        let (source, destination) =
            (end(self.source, self.source_port), end(self.destination, self.destination_port));
        write!(f, "{source} -> {destination} ")?;
        match self.protocol {
            TCP => {
                write!(f, "tcp")?;
                // The four that Cilium's monitor names, in its order.
                let names = [("SYN", 1), ("ACK", 4), ("RST", 2), ("FIN", 0)];
                let set = names.iter().filter(|(_, bit)| self.flags >> bit & 1 == 1);
                let set: Vec<&str> = set.map(|(name, _)| *name).collect();
                if set.is_empty() { Ok(()) } else { write!(f, " {}", set.join(", ")) }
            }
            UDP => f.write_str("udp"),
            SCTP => f.write_str("sctp"),
            ICMP | ICMPV6 => {
                let v6 = self.protocol == ICMPV6;
                write!(f, "icmp {}", icmp::name(v6, self.destination_port, self.flags))
            }
            other => write!(f, "protocol {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn ethernet(kind: u16, rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        bytes.extend(kind.to_be_bytes());
        for part in rest {
            bytes.extend(*part);
        }
        bytes
    }

    #[test]
    fn reads_like_the_monitor() {
        let v4 = |protocol: u8, offset: u16| {
            let mut head =
                [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 1, 2];
            head[6..8].copy_from_slice(&offset.to_be_bytes());
            head
        };
        let mut v6 = [0; 40];
        (v6[0], v6[6], v6[8], v6[23], v6[24], v6[39]) = (0x60, 44, 0xfd, 1, 0xfd, 2);
        let tcp = [0x12, 0x67, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12];
        let cases: [(Vec<u8>, &str); 5] = [
            (ethernet(0x0800, &[&v4(6, 0), &tcp]), "10.0.0.1:4711 -> 10.0.1.2:80 tcp SYN, ACK"),
            (ethernet(0x0800, &[&v4(1, 0), &[8, 0]]), "10.0.0.1 -> 10.0.1.2 icmp EchoRequest"),
            (ethernet(0x0800, &[&v4(17, 185), &tcp]), "10.0.0.1 -> 10.0.1.2 udp"),
            (
                ethernet(0x86dd, &[&v6, &[6, 0, 0, 1, 0, 0, 0, 0], &tcp]),
                "[fd00::1]:4711 -> [fd00::2]:80 tcp SYN, ACK",
            ),
            (ethernet(0x0800, &[&v4(6, 0)]), "10.0.0.1:0 -> 10.0.1.2:0 tcp"),
        ];
        for (bytes, want) in cases {
            assert_eq!(parse(&bytes).expect(want).to_string(), want);
        }
        assert_eq!(parse(&ethernet(0x0806, &[&[0; 28]])), None, "ARP");
    }

    #[test]
    fn cut_packets_are_no_problem() {
        let whole = ethernet(0x86dd, &[&[0x60, 0, 0, 0, 0, 8, 0, 64], &[0xff; 64]]);
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
        }
    }
}
