//! Builds packets byte by byte, and checks the checksums of what comes out.

use std::net::IpAddr;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;
pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;
pub(crate) const RST: u8 = 4;

/// A packet to be.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) proto: u8,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) tcp_flags: u8,
    pub(crate) ttl: u8,
    pub(crate) icmp: (u8, u8),
    /// Offset in bytes, and whether more follow.
    pub(crate) fragment: Option<(u16, bool)>,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(proto: u8, from: &str, to: &str) -> Self {
        Self {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            proto,
            sport: 40_000,
            dport: 80,
            tcp_flags: SYN,
            ttl: 64,
            icmp: (8, 0),
            fragment: None,
            payload: b"some payload".to_vec(),
        }
    }

    /// The packet that answers this one.
    pub(crate) fn reply(&self) -> Self {
        // An echo keeps its identifier, which is where a source port would be.
        let echo = matches!(self.proto, ICMP | ICMPV6);
        let (sport, dport) = if echo { (self.sport, self.dport) } else { (self.dport, self.sport) };
        Self {
            from: self.to,
            to: self.from,
            sport,
            dport,
            tcp_flags: SYN | ACK,
            icmp: (if self.proto == ICMPV6 { 129 } else { 0 }, 0),
            ..self.clone()
        }
    }

    /// An ICMP error by somebody about this packet.
    pub(crate) fn error(&self, by: &str, kind: u8, code: u8) -> Self {
        let proto = if self.from.is_ipv4() { ICMP } else { ICMPV6 };
        let mut quote = self.ip();
        quote.truncate(if self.from.is_ipv4() { 28 } else { 48 });
        Self {
            from: by.parse().unwrap(),
            to: self.from,
            proto,
            icmp: (kind, code),
            sport: 0,
            dport: 0,
            payload: quote,
            ..Self::new(proto, by, by)
        }
    }

    /// The whole frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let kind: u16 = if self.from.is_ipv4() { 0x0800 } else { 0x86dd };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(kind.to_be_bytes());
        frame.extend(self.ip());
        frame
    }

    fn ip(&self) -> Vec<u8> {
        let mut l4 = self.l4();
        if self.fragment.is_none_or(|(offset, more)| offset == 0 && !more) {
            set_checksum(&mut l4, self.proto, self.from, self.to);
        }
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let len = u16::try_from(20 + l4.len()).unwrap();
                let mut head = vec![0x45, 0];
                head.extend(len.to_be_bytes());
                head.extend([0, 7]);
                let place = self
                    .fragment
                    .map_or(0, |(offset, more)| (offset / 8) | if more { 0x2000 } else { 0 });
                head.extend(place.to_be_bytes());
                head.extend([self.ttl, self.proto, 0, 0]);
                head.extend(from.octets());
                head.extend(to.octets());
                let sum = fold(&head).to_be_bytes();
                head[10..12].copy_from_slice(&sum);
                head.extend(l4);
                head
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let extension = if self.fragment.is_some() { 8 } else { 0 };
                let len = u16::try_from(extension + l4.len()).unwrap();
                let mut head = vec![0x60, 0, 0, 0];
                head.extend(len.to_be_bytes());
                head.extend([if extension == 0 { self.proto } else { 44 }, self.ttl]);
                head.extend(from.octets());
                head.extend(to.octets());
                if let Some((offset, more)) = self.fragment {
                    head.extend([self.proto, 0]);
                    head.extend((offset | u16::from(more)).to_be_bytes());
                    head.extend([0, 0, 0, 7]);
                }
                head.extend(l4);
                head
            }
            _ => panic!("two families in one packet"),
        }
    }

    fn l4(&self) -> Vec<u8> {
        if self.fragment.is_some_and(|(offset, _)| offset > 0) {
            return self.payload.clone();
        }
        let mut l4 = Vec::new();
        match self.proto {
            TCP => {
                l4.extend(self.sport.to_be_bytes());
                l4.extend(self.dport.to_be_bytes());
                l4.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, self.tcp_flags, 1, 0, 0, 0, 0, 0]);
            }
            UDP => {
                l4.extend(self.sport.to_be_bytes());
                l4.extend(self.dport.to_be_bytes());
                l4.extend(u16::try_from(8 + self.payload.len()).unwrap().to_be_bytes());
                l4.extend([0, 0]);
            }
            SCTP => {
                l4.extend(self.sport.to_be_bytes());
                l4.extend(self.dport.to_be_bytes());
                l4.extend([0; 8]);
            }
            ICMP | ICMPV6 => {
                l4.extend([self.icmp.0, self.icmp.1, 0, 0]);
                l4.extend(self.sport.to_be_bytes());
                l4.extend([0, 1]);
            }
            _ => l4.extend([0; 8]),
        }
        l4.extend(&self.payload);
        l4
    }
}

fn check_offset(proto: u8) -> Option<usize> {
    match proto {
        TCP => Some(16),
        UDP => Some(6),
        ICMP | ICMPV6 => Some(2),
        _ => None,
    }
}

fn set_checksum(l4: &mut [u8], proto: u8, from: IpAddr, to: IpAddr) {
    if let Some(at) = check_offset(proto) {
        let sum = l4_sum(l4, proto, from, to);
        l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

fn l4_sum(l4: &[u8], proto: u8, from: IpAddr, to: IpAddr) -> u16 {
    let mut bytes = Vec::new();
    if proto != ICMP {
        for ip in [from, to] {
            match ip {
                IpAddr::V4(ip) => bytes.extend(ip.octets()),
                IpAddr::V6(ip) => bytes.extend(ip.octets()),
            }
        }
        bytes.extend(u32::try_from(l4.len()).unwrap().to_be_bytes());
        bytes.extend([0, 0, 0, proto]);
    }
    bytes.extend(l4);
    fold(&bytes)
}

/// The internet checksum of bytes: 0 for bytes that hold their own.
fn fold(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// What is in a frame that a program let go; panics if a checksum in it is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) macs: [u8; 12],
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) ttl: u8,
    pub(crate) proto: u8,
    pub(crate) ports: (u16, u16),
    pub(crate) l4: Vec<u8>,
}

/// Reads a whole, unfragmented packet from its IP head on, which is at `at`.
pub(crate) fn see(frame: &[u8]) -> Seen {
    let v4 = frame[12..14] == [8, 0];
    let ip = &frame[14..];
    let (from, to, ttl, proto, at): (IpAddr, IpAddr, u8, u8, usize) = if v4 {
        assert_eq!(fold(&ip[..20]), 0, "the IP head's checksum");
        let quad = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap();
        (quad(12).into(), quad(16).into(), ip[8], ip[9], 20)
    } else {
        let octets = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap();
        (octets(8).into(), octets(24).into(), ip[7], ip[6], 40)
    };
    let l4 = ip[at..].to_vec();
    assert_eq!(l4_sum(&l4, proto, from, to), 0, "the L4 checksum");
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    Seen {
        macs: frame[..12].try_into().unwrap(),
        from,
        to,
        ttl,
        proto,
        ports: (port(0), port(2)),
        l4,
    }
}
