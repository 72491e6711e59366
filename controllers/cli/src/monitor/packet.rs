//! Decides what is said of each part of a packet, as far as its first bytes go.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A line for each part: link, network, transport.
pub(super) fn parts(bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(head) = bytes.get(..14) else { return lines };
    let mac = |at: usize| {
        let digits: Vec<String> =
            head[at..at + 6].iter().map(|byte| format!("{byte:02x}")).collect();
        digits.join(":")
    };
    let kind = be16(head, 12).unwrap_or(0);
    lines.push(format!("Ethernet\t{} -> {} type {kind:#06x}", mac(6), mac(0)));
    let rest = &bytes[14..];
    let transport = match kind {
        0x0800 => ipv4(rest, &mut lines),
        0x86dd => ipv6(rest, &mut lines),
        _ => None,
    };
    if let Some((protocol, rest)) = transport {
        lines.extend(layer4(protocol, rest));
    }
    lines
}

fn ipv4<'a>(bytes: &'a [u8], lines: &mut Vec<String>) -> Option<(u8, &'a [u8])> {
    let head = bytes.get(..20)?;
    let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
    let fragment = be16(head, 6)?;
    lines.push(format!(
        "IPv4\t{} -> {} protocol {} ttl {} length {} id {} tos {:#04x} fragment {}{}",
        address(12),
        address(16),
        head[9],
        head[8],
        be16(head, 2)?,
        be16(head, 4)?,
        head[1],
        (fragment & 0x1fff) * 8,
        if fragment & 0x2000 == 0 { "" } else { " more" },
    ));
    let length = usize::from(head[0] & 0x0f) * 4;
    let offset = fragment & 0x1fff;
    (offset == 0).then(|| (head[9], bytes.get(length..).unwrap_or_default()))
}

fn ipv6<'a>(bytes: &'a [u8], lines: &mut Vec<String>) -> Option<(u8, &'a [u8])> {
    let head = bytes.get(..40)?;
    let address = |at: usize| {
        <[u8; 16]>::try_from(&head[at..at + 16]).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from)
    };
    lines.push(format!(
        "IPv6\t{} -> {} next {} hops {} length {}",
        address(8),
        address(24),
        head[6],
        head[7],
        be16(head, 4)?,
    ));
    Some((head[6], &bytes[40..]))
}

fn layer4(protocol: u8, bytes: &[u8]) -> Option<String> {
    Some(match protocol {
        6 => {
            let head = bytes.get(..20)?;
            let be32 = |at: usize| {
                u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            format!(
                "TCP\t{} -> {} seq {} ack {} flags {:#04x} window {}",
                be16(head, 0)?,
                be16(head, 2)?,
                be32(4),
                be32(8),
                head[13],
                be16(head, 14)?,
            )
        }
        17 => format!("UDP\t{} -> {} length {}", be16(bytes, 0)?, be16(bytes, 2)?, be16(bytes, 4)?),
        132 => format!("SCTP\t{} -> {}", be16(bytes, 0)?, be16(bytes, 2)?),
        1 => format!("ICMPv4\ttype {} code {}", bytes.first()?, bytes.get(1)?),
        58 => format!("ICMPv6\ttype {} code {}", bytes.first()?, bytes.get(1)?),
        _ => return None,
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::parts;

    fn packet() -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        packet.extend([0x45, 0, 0, 40, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0x12, 0x67, 0, 80, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        packet
    }

    #[test]
    fn a_line_for_each_part() {
        let want = [
            "Ethernet\t02:00:00:00:00:01 -> 02:00:00:00:00:02 type 0x0800",
            "IPv4\t10.0.0.1 -> 10.0.0.2 protocol 6 ttl 64 length 40 id 9 tos 0x00 fragment 0",
            "TCP\t4711 -> 80 seq 7 ack 0 flags 0x02 window 65535",
        ];
        assert_eq!(parts(&packet()), want);
    }

    #[test]
    fn cut_packets_are_no_problem() {
        let whole = packet();
        for length in 0..whole.len() {
            assert!(parts(&whole[..length]).len() <= 3);
        }
        let mut six = whole.clone();
        (six[12], six[13]) = (0x86, 0xdd);
        for length in 0..six.len() {
            let _ = parts(&six[..length]);
        }
    }
}
