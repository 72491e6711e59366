//! Remembers which flows policy has judged, counted together, as many as there is room for.
//!
//! A flow is what a rule can tell apart: an endpoint, a direction, a peer with its address, a protocol
//! and the receiver's port, and the verdict. The one that was seen last of all makes room for a new
//! one. About 200 bytes each, 8192 at most.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::SystemTime;

use cilia_loader::Direction;
use cilia_loader::event::VerdictEvent;

use super::Summary;

/// How many are remembered.
const MOST: usize = 8192;

/// What makes a flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The endpoint whose policy was asked.
    pub endpoint: u16,
    /// Towards it, or from it.
    pub direction: Direction,
    /// The peer's identity.
    pub peer: u32,
    /// The peer's address.
    pub address: Option<IpAddr>,
    /// IP protocol.
    pub proto: u8,
    /// The receiver's port; the type for ICMP.
    pub port: u16,
    /// Why not; none if it is allowed.
    pub denied: Option<u8>,
    /// What was denied passed all the same.
    pub audited: bool,
}

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Connections that were allowed, packets that were denied.
    pub count: u64,
    /// The cookie of the entry that decided last.
    pub cookie: u32,
    /// When it was seen first.
    pub first: SystemTime,
    /// When it was seen last.
    pub last: SystemTime,
}

/// Flows, and which of them was seen how long ago.
#[derive(Debug, Default)]
pub(super) struct Flows {
    seen: HashMap<Flow, (u64, Seen)>,
    by_age: BTreeMap<u64, Flow>,
    turn: u64,
}

impl Flows {
    /// Takes in a verdict.
    pub(super) fn record(
        &mut self,
        verdict: &VerdictEvent,
        summary: Option<&Summary>,
        now: SystemTime,
    ) {
        let address = summary.map(|summary| match verdict.direction {
            Direction::Ingress => summary.source,
            Direction::Egress => summary.destination,
        });
        let flow = Flow {
            endpoint: verdict.packet.endpoint,
            direction: verdict.direction,
            peer: verdict.remote_identity,
            address,
            proto: verdict.proto,
            port: verdict.port,
            denied: verdict.denied,
            audited: verdict.audited,
        };
        self.turn += 1;
        let turn = self.turn;
        let fresh = Seen { count: 0, cookie: 0, first: now, last: now };
        let (age, seen) = self.seen.entry(flow.clone()).or_insert((turn, fresh));
        self.by_age.remove(age);
        *age = turn;
        seen.count += 1;
        (seen.cookie, seen.last) = (verdict.cookie, now);
        self.by_age.insert(turn, flow);
        if self.seen.len() > MOST
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.seen.remove(&oldest);
        }
    }

    /// Every flow, in order.
    pub(super) fn list(&self) -> Vec<(Flow, Seen)> {
        let flows = self.seen.iter();
        let mut all: Vec<_> = flows.map(|(flow, (_, seen))| (flow.clone(), *seen)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use cilia_loader::Direction;
    use cilia_loader::event::{Matched, Packet, VerdictEvent};

    use super::{Flows, MOST};

    fn verdict(endpoint: u16, port: u16, denied: Option<u8>) -> VerdictEvent {
        let packet = Packet { endpoint, hash: 0, length: 60, ipv6: false, bytes: Vec::new() };
        VerdictEvent {
            packet,
            remote_identity: 300,
            denied,
            direction: Direction::Egress,
            port,
            proto: 6,
            matched: Matched::Identity,
            audited: false,
            cookie: 7,
        }
    }

    #[test]
    fn the_same_flow_is_counted_and_the_oldest_makes_room() {
        let (mut flows, start) = (Flows::default(), SystemTime::UNIX_EPOCH);
        let at = |second| start + Duration::from_secs(second);
        flows.record(&verdict(1, 80, None), None, at(0));
        flows.record(&verdict(1, 80, Some(133)), None, at(1));
        flows.record(&verdict(1, 80, None), None, at(2));
        let all = flows.list();
        let counts: Vec<_> = all.iter().map(|(flow, seen)| (flow.denied, seen.count)).collect();
        assert_eq!(counts, [(None, 2), (Some(133), 1)]);
        assert_eq!((all[0].1.first, all[0].1.last, all[0].1.cookie), (at(0), at(2), 7));
        // As many others as there is room for, while the allowed one goes on.
        for port in 0..u16::try_from(MOST).unwrap() {
            flows.record(&verdict(2, port, None), None, at(3));
            flows.record(&verdict(1, 80, None), None, at(3));
        }
        let all = flows.list();
        assert_eq!(all.len(), MOST);
        assert!(all.iter().all(|(flow, _)| flow.denied.is_none()), "the oldest is gone");
        assert_eq!((all[0].0.endpoint, all[0].1.count), (1, 2 + MOST as u64));
        assert_eq!(flows.by_age.len(), flows.seen.len());
    }
}
