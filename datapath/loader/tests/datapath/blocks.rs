//! ipBlocks on pods, counters of entries, audit of single endpoints, and SCTP.

use std::collections::BTreeMap;

use cilia_loader::event::Matched;
use cilia_loader::maps::policy::{VIEW_SHIFT, WEAK};
use cilia_loader::maps::reason;
use cilia_loader::{EndpointOptions, Hook, NodeConfig, PolicyEntry, PolicyKey, PolicyStats};

use crate::bench::{
    A, A4, A6, B, B4, B6, Bench, ID_A, ID_B, ID_REMOTE, PASS, REDIRECT, REMOTE4, VIP4, WORLD4,
    WORLD6, ip,
};
use crate::packet::{Packet, SCTP, TCP, UDP};

const BLOCK: u32 = 0x0100_0b01;
const OTHER: u32 = 0x0100_0b02;

#[test]
fn an_ip_block_lets_pods_in_by_their_address() {
    let bench = Bench::new();
    let table = bench.datapath.blocks();
    for (net, bits, block) in [
        ("10.0.0.0", 24, BLOCK),
        ("10.0.0.10", 31, OTHER),
        ("fd00::", 64, BLOCK),
        ("fd00::10", 127, OTHER),
    ] {
        table.upsert(&(ip(net), bits), &block).unwrap();
    }
    assert_eq!(table.get(&(ip("10.0.0.11"), 32)).unwrap(), Some(OTHER));
    assert_eq!(table.entries().unwrap().len(), 4);
    for (a, b) in [(A4, B4), (A6, B6)] {
        let (ask, back) = (Packet::new(TCP, a, b), Packet { sport: 9, ..Packet::new(TCP, b, a) });
        // The longest prefix counts: what is excepted has another block.
        bench.rule(A, PolicyKey::port(BLOCK, true, TCP, 80), false);
        assert_eq!(bench.verdict(&ask), Err(reason::POLICY));
        bench.rule(A, PolicyKey::port(OTHER, true, TCP, 80), false);
        assert_eq!(bench.verdict(&ask), Err(reason::POLICY), "the receiver's policy");
        bench.rule(B, PolicyKey::port(OTHER, false, TCP, 80), false);
        assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
        assert_eq!(bench.verdict(&ask.reply()), Ok(REDIRECT));
        assert_eq!(bench.verdict(&Packet { dport: 81, ..ask.clone() }), Err(reason::POLICY));
        // The other way is another question.
        assert_eq!(bench.verdict(&back), Err(reason::POLICY));
        // A denial by identity, or of everybody, comes first.
        bench.rule(A, PolicyKey::all(ID_B, true), true);
        assert_eq!(bench.verdict(&ask), Err(reason::POLICY_DENY));
        bench.datapath.policy(A).unwrap().remove(&PolicyKey::all(ID_B, true)).unwrap();
        bench.rule(A, PolicyKey::all(0, true), true);
        assert_eq!(bench.verdict(&ask), Err(reason::POLICY_DENY));
        bench.datapath.policy(A).unwrap().remove(&PolicyKey::all(0, true)).unwrap();
        for (endpoint, egress) in [(A, true), (B, false)] {
            let key = PolicyKey::port(OTHER, egress, TCP, 80);
            bench.datapath.policy(endpoint).unwrap().remove(&key).unwrap();
        }
        bench.datapath.policy(A).unwrap().remove(&PolicyKey::port(BLOCK, true, TCP, 80)).unwrap();
    }
}

#[test]
fn an_ip_block_means_addresses_whoever_has_them() {
    let bench = Bench::new();
    let table = bench.datapath.blocks();
    table.upsert(&(ip("0.0.0.0"), 0), &BLOCK).unwrap();
    bench.rule(A, PolicyKey::all(BLOCK, true), false);
    let to = |to: &str| bench.verdict(&Packet::new(TCP, A4, to));
    assert_eq!(to(REMOTE4), Ok(PASS), "a pod elsewhere");
    assert_eq!(to(WORLD4), Ok(PASS), "the world");
    let node = cilia_loader::RemoteEndpoint { identity: 6, ..Default::default() };
    bench.datapath.ipcache().upsert(&(ip("192.168.0.2"), 32), &node).unwrap();
    assert_eq!(to("192.168.0.2"), Ok(PASS), "a node");
    assert_eq!(bench.verdict(&Packet::new(TCP, A6, WORLD6)), Err(reason::POLICY));
}

#[test]
fn who_is_sent_on_sees_blocks_through_a_view() {
    let bench = Bench::new();
    bench.datapath.blocks().upsert(&(ip(REMOTE4), 32), &BLOCK).unwrap();
    let to = |dport| bench.verdict(&Packet { dport, ..Packet::new(TCP, A4, REMOTE4) });
    let policy = bench.datapath.policy(A).unwrap();
    let send_on = |port, view| {
        let entry = PolicyEntry { view, ..PolicyEntry::default() };
        policy.upsert(&PolicyKey::port(ID_REMOTE, true, TCP, port), &entry).unwrap();
    };
    bench.rule(A, PolicyKey::all(0, true), false);
    bench.rule(A, PolicyKey::all(BLOCK | 31 << VIEW_SHIFT, true), true);
    bench.rule(A, PolicyKey::port(BLOCK | 30 << VIEW_SHIFT, true, TCP, 82), false);
    assert_eq!([to(80), to(81)], [Ok(PASS); 2], "everybody may");
    send_on(80, 32);
    assert_eq!([to(80), to(81)], [Err(reason::POLICY_DENY), Ok(PASS)]);
    // Where the block says nothing, everybody's word doesn't count any more, but what comes after.
    send_on(81, 1);
    assert_eq!(to(81), Err(reason::POLICY));
    bench.rule(A, PolicyKey::port(ID_REMOTE | WEAK, true, TCP, 81), false);
    assert_eq!(to(81), Ok(PASS));
    send_on(82, 31);
    assert_eq!(to(82), Ok(PASS));
}

#[test]
fn what_counts_after_blocks_is_asked_last() {
    let bench = Bench::new();
    bench.datapath.blocks().upsert(&(ip(REMOTE4), 32), &BLOCK).unwrap();
    let port = |identity, port| PolicyKey::port(identity, true, TCP, port);
    bench.rule(A, port(ID_REMOTE | WEAK, 80), true);
    bench.rule(A, port(WEAK, 81), false);
    bench.rule(A, PolicyKey::all(ID_REMOTE | WEAK, true), false);
    let to = |dport| bench.verdict(&Packet { dport, ..Packet::new(TCP, A4, REMOTE4) });
    assert_eq!((to(80), to(81), to(82)), (Err(reason::POLICY_DENY), Ok(PASS), Ok(PASS)));
    // The block's own word comes first, whichever it is.
    bench.rule(A, port(BLOCK, 80), false);
    bench.rule(A, port(BLOCK, 82), true);
    assert_eq!((to(80), to(81), to(82)), (Ok(PASS), Ok(PASS), Err(reason::POLICY_DENY)));
    // And before that, what is said of the identity, or of everybody.
    bench.rule(A, PolicyKey { proto: TCP, ..PolicyKey::all(ID_REMOTE, true) }, false);
    assert_eq!((to(80), to(82)), (Ok(PASS), Ok(PASS)));
    bench.rule(A, port(0, 80), true);
    assert_eq!(to(80), Err(reason::POLICY_DENY));
}

#[test]
fn packets_are_counted_by_the_entry_that_decided() {
    let bench = Bench::new();
    bench.datapath.blocks().upsert(&(ip(REMOTE4), 32), &BLOCK).unwrap();
    let range = PolicyKey { proto: TCP, port: 64, port_prefix: 10, ..PolicyKey::all(ID_B, true) };
    let keys = [
        range,
        PolicyKey { proto: UDP, ..PolicyKey::all(0, true) },
        PolicyKey::port(ID_B, true, TCP, 100),
        PolicyKey::all(BLOCK, true),
    ];
    for (key, deny) in keys.into_iter().zip([false, false, true, false]) {
        bench.rule(A, key, deny);
    }
    bench.rule(B, PolicyKey::all(0, false), false);
    let tcp = Packet::new(TCP, A4, B4);
    let len = u64::try_from(tcp.frame().len()).unwrap();
    for (packet, want) in [
        (tcp.clone(), Ok(REDIRECT)),
        (Packet { dport: 127, ..tcp.clone() }, Ok(REDIRECT)),
        (Packet { dport: 100, ..tcp.clone() }, Err(reason::POLICY_DENY)),
        (Packet { dport: 200, ..tcp.clone() }, Err(reason::POLICY)),
        (Packet::new(UDP, A4, B4), Ok(REDIRECT)),
        (Packet::new(TCP, A4, REMOTE4), Ok(PASS)),
    ] {
        assert_eq!(bench.verdict(&packet), want);
    }
    let counted = || -> BTreeMap<(u16, PolicyKey), PolicyStats> {
        let stats = bench.datapath.policy_stats().unwrap();
        stats.into_iter().map(|(id, key, sum)| ((id, key), sum)).collect()
    };
    let packets = |key: PolicyKey| counted().get(&(A, key)).map(|sum| sum.packets);
    assert_eq!(keys.map(packets), [Some(2), Some(1), Some(1), Some(1)]);
    assert_eq!(counted()[&(A, range)].bytes, 2 * len);
    assert_eq!(counted()[&(B, PolicyKey::all(0, false))].packets, 3);
    assert_eq!(counted().len(), 5);
    // Off, and gone with the endpoint.
    bench.set_node(&NodeConfig { policy_accounting: false, ..NodeConfig::default() });
    assert_eq!(bench.verdict(&tcp), Ok(REDIRECT));
    assert_eq!(packets(range), Some(2));
    bench.datapath.remove_policy(A).unwrap();
    assert_eq!(counted().len(), 1);
}

#[test]
fn audit_of_one_endpoint_is_no_audit_of_the_other() {
    let bench = Bench::new();
    let audit = EndpointOptions { policy_audit: true };
    bench.datapath.options().upsert(&A, &audit).unwrap();
    let ask = Packet::new(TCP, A4, B4);
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY), "of the receiver");
    bench.datapath.options().upsert(&B, &audit).unwrap();
    let verdicts = bench.verdicts(Hook::FromContainer, &ask);
    // The sender's connection is known since the packet before.
    assert!(verdicts.iter().all(|one| one.audited && one.denied == Some(reason::POLICY)));
    let endpoints: Vec<u16> = verdicts.iter().map(|one| one.packet.endpoint).collect();
    assert_eq!(endpoints, [A, B]);
    assert_eq!(verdicts[0].matched, Matched::Nothing);
    // A denial by rule is recorded too; the option goes with the endpoint.
    bench.rule(B, PolicyKey::all(ID_A, false), true);
    assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
    bench.datapath.remove_policy(B).unwrap();
    bench.datapath.policy(B).unwrap();
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY));
    // For all, at runtime, whatever is said of the node later; an endpoint's own setting counts more.
    bench.datapath.set_policy_audit(true).unwrap();
    assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
    bench.set_node(&NodeConfig::default());
    assert_eq!((bench.verdict(&ask), bench.datapath.policy_audit()), (Ok(REDIRECT), true));
    bench.datapath.options().upsert(&B, &EndpointOptions { policy_audit: false }).unwrap();
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY));
    bench.datapath.set_policy_audit(false).unwrap();
    bench.datapath.options().remove(&B).unwrap();
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY));
}

#[test]
fn sctp_is_a_protocol_with_ports() {
    let bench = Bench::new();
    bench.rule(A, PolicyKey::port(ID_B, true, SCTP, 80), false);
    bench.rule(B, PolicyKey { proto: SCTP, ..PolicyKey::all(ID_A, false) }, false);
    for (a, b) in [(A4, B4), (A6, B6)] {
        let ask = Packet::new(SCTP, a, b);
        assert_eq!(bench.verdict(&ask.reply()), Err(reason::POLICY), "an answer to nothing");
        assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
        assert_eq!(bench.verdict(&ask.reply()), Ok(REDIRECT));
        assert_eq!(bench.verdict(&Packet { dport: 81, ..ask.clone() }), Err(reason::POLICY));
        assert_eq!(bench.verdict(&Packet::new(TCP, a, b)), Err(reason::POLICY));
    }
    // Its checksum is over all of the packet: an address can be changed, a port can't.
    bench.service(VIP4, SCTP, 3, B4);
    assert_eq!(bench.verdict(&Packet::new(SCTP, A4, VIP4)), Err(reason::CSUM_L4));
    let remote = Packet::new(SCTP, A4, REMOTE4);
    assert_eq!(bench.verdict(&remote), Err(reason::POLICY));
    bench.rule(A, PolicyKey { proto: SCTP, ..PolicyKey::all(ID_REMOTE, true) }, false);
    assert_eq!(bench.verdict(&remote), Ok(PASS));
    // Where it is off it is one of the protocols that nothing is known about.
    bench.set_node(&NodeConfig::default());
    assert_eq!(bench.verdict(&remote), Err(reason::CT_UNKNOWN_PROTO));
    bench.set_node(&NodeConfig { extended_protocols: true, ..NodeConfig::default() });
    assert_eq!(bench.verdict(&remote), Ok(PASS), "by its addresses");
}
