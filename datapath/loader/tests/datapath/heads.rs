//! Heads that few packets have: protocols without ports, extension heads in fragments.

use cilia_loader::maps::reason;
use cilia_loader::{Hook, NodeConfig, PolicyKey};

use crate::bench::{A, A4, A6, B, B4, B6, Bench, ID_B, REDIRECT};
use crate::packet::{Packet, UDP};

const OSPF: u8 = 89;
const GRE: u8 = 47;

#[test]
fn protocols_without_ports_pass_if_asked_for() {
    let bench = Bench::new();
    bench.rule(A, PolicyKey { proto: OSPF, ..PolicyKey::all(ID_B, true) }, false);
    bench.rule(B, PolicyKey::all(0, false), false);
    for (a, b) in [(A4, B4), (A6, B6)] {
        bench.set_node(&NodeConfig::default());
        let (ask, other) = (Packet::new(OSPF, a, b), Packet::new(GRE, a, b));
        assert_eq!(bench.verdict(&ask), Err(reason::CT_UNKNOWN_PROTO));
        bench.set_node(&NodeConfig { extended_protocols: true, ..NodeConfig::default() });
        assert_eq!(bench.verdict(&ask.reply()), Err(reason::POLICY), "an answer to nothing");
        assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
        assert_eq!(bench.verdict(&ask.reply()), Ok(REDIRECT));
        assert_eq!(bench.verdict(&other), Err(reason::POLICY));
        let first = Packet { fragment: Some((0, true)), ..ask.clone() };
        let later = Packet { fragment: Some((1480, false)), ..ask };
        assert_eq!(bench.verdict(&first), Ok(REDIRECT));
        assert_eq!(bench.verdict(&later), Ok(REDIRECT));
    }
}

/// A fragment of a datagram that has destination options before its protocol's head.
fn with_options(packet: &Packet) -> Vec<u8> {
    const LENGTH: usize = 18;
    const FRAGMENT: usize = 54;
    const DESTINATION_OPTIONS: u8 = 60;
    let mut frame = packet.frame();
    let proto = std::mem::replace(&mut frame[FRAGMENT], DESTINATION_OPTIONS);
    if packet.fragment.is_some_and(|(offset, _)| offset == 0) {
        frame.splice(FRAGMENT + 8..FRAGMENT + 8, [proto, 0, 1, 4, 0, 0, 0, 0]);
        let len = u16::from_be_bytes([frame[LENGTH], frame[LENGTH + 1]]) + 8;
        frame[LENGTH..LENGTH + 2].copy_from_slice(&len.to_be_bytes());
    }
    frame
}

#[test]
fn fragments_of_a_datagram_with_options_find_its_ports() {
    let bench = Bench::new();
    bench.rule(A, PolicyKey::port(ID_B, true, UDP, 80), false);
    bench.rule(B, PolicyKey::port(0, false, UDP, 80), false);
    let through = |fragment, dport| {
        let packet = Packet { fragment: Some(fragment), dport, ..Packet::new(UDP, A6, B6) };
        bench.through(Hook::FromContainer, &with_options(&packet)).map(|(code, _)| code)
    };
    assert_eq!(through((1480, false), 80), Err(reason::FRAG_NOT_FOUND));
    assert_eq!(through((0, true), 80), Ok(REDIRECT));
    assert_eq!(through((1480, false), 80), Ok(REDIRECT));
    assert_eq!(through((0, true), 81), Err(reason::POLICY));
    assert_eq!(through((1480, false), 81), Err(reason::POLICY));
}
