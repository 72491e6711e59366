//! Endpoints of a random cluster, and packets with what must become of them.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use rand::rngs::SmallRng;

use super::draw;
use super::oracle::Side;
use super::world::World;
use crate::l4::protocol::{ICMP, SCTP, TCP, UDP};
use crate::map::{EndpointPolicy, Verdict};
use crate::names::NamedPorts;
use crate::repository::Repository;
use crate::rule::Direction;

/// An endpoint, its map, and packets.
#[derive(Debug, Clone)]
pub struct Case {
    /// The endpoint's identity.
    pub subject: NumericIdentity,
    /// How it names its ports.
    pub ports: NamedPorts,
    /// What its map holds.
    pub map: Arc<EndpointPolicy>,
    /// Packets to it and from it.
    pub packets: Vec<Packet>,
}

/// A packet to or from an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// As the endpoint sees it.
    pub direction: Direction,
    /// The other side's identity, as the ipcache has it.
    pub identity: NumericIdentity,
    /// The other side's address.
    pub address: IpAddr,
    /// The block of that address.
    pub block: Option<NumericIdentity>,
    /// The protocol.
    pub proto: u8,
    /// The receiver's port, or the ICMP type.
    pub port: u16,
    /// What must become of it.
    pub want: Want,
}

/// What must become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Just this.
    Exactly(Verdict),
    /// It passes or not; which reason a drop has is left open, for rules with an order.
    Passes(bool),
    /// It may be dropped although it should pass: rules about addresses with others between them.
    AtMost(bool),
}

impl Want {
    /// Whether a verdict is right.
    pub fn admits(self, verdict: Verdict) -> bool {
        let passes = verdict == Verdict::Allowed;
        match self {
            Self::Exactly(wanted) => verdict == wanted,
            Self::Passes(wanted) => passes == wanted,
            Self::AtMost(wanted) => wanted || !passes,
        }
    }
}

impl World {
    /// `most` endpoints with packets from and to everybody, on every port that matters. The maps
    /// and numbers are those of `repository`, which must know the same cluster.
    pub fn cases(&self, rng: &mut SmallRng, repository: &mut Repository, most: usize) -> Vec<Case> {
        let mut sides: Vec<Side> = Vec::new();
        for (number, labels) in &self.identities {
            sides.push(Side::Pod(*number, labels.clone(), draw::address(rng)));
        }
        for number in [NumericIdentity::HOST, NumericIdentity::REMOTE_NODE] {
            let labels = number.reserved_labels().unwrap_or_default();
            sides.push(Side::Pod(number, Arc::new(labels), draw::address(rng)));
        }
        sides.extend((0..12).map(|_| Side::Outside(draw::address(rng))));
        // What one subject's rules name changes the maps of others: all of it first.
        for subject in self.identities.keys().take(most) {
            repository.prepare(*subject);
        }
        let mut cases = Vec::new();
        for (subject, labels) in self.identities.iter().take(most) {
            let ports = draw::names(rng);
            let Some(map) = repository.policy(*subject, &ports) else { continue };
            let mut packets = Vec::new();
            for side in &sides {
                let (identity, address) = match side {
                    Side::Pod(number, _, address) => (*number, *address),
                    Side::Outside(address) => (repository.outside(*address), *address),
                };
                let block = repository.block(address);
                for direction in Direction::BOTH {
                    for (proto, port) in kinds() {
                        let want = self.verdict(labels, &ports, direction, side, (proto, port));
                        packets.push(Packet {
                            direction,
                            identity,
                            address,
                            block,
                            proto,
                            port,
                            want,
                        });
                    }
                }
            }
            cases.push(Case { subject: *subject, ports, map, packets });
        }
        cases
    }
}

/// The protocols and ports that are tried.
fn kinds() -> impl Iterator<Item = (u8, u16)> {
    let ports = || draw::PORTS.into_iter().chain([100, 8081]);
    let with_ports = [TCP, UDP, SCTP].into_iter();
    with_ports.flat_map(move |proto| ports().map(move |port| (proto, port))).chain([
        (ICMP, 0),
        (ICMP, 8),
        (ICMP, 13),
    ])
}
