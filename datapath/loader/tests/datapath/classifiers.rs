//! One packet, one program: what it says, what it makes of the packet, what it tells.

use cilia_loader::maps::reason;
use cilia_loader::{
    Connection, EndpointInfo, Hook, NodeConfig, Opened, PolicyEntry, PolicyKey, converge,
};

use crate::bench::{
    A, A4, A6, B, B4, B6, Bench, ID_A, ID_B, ID_REMOTE, MAC_B, NODE_MAC, PASS, REDIRECT, REMOTE4,
    WORLD4, WORLD6, ip,
};
use crate::packet::{ACK, ICMP, ICMPV6, Packet, RST, TCP, UDP};

#[test]
fn what_leaves_a_pod_and_what_does_not() {
    let bench = Bench::open();
    let udp = Packet::new(UDP, A4, B4);
    let udp6 = Packet::new(UDP, A6, B6);
    let later = Some((1480, false));
    let cases = [
        ("to a pod here", udp.clone(), Ok(REDIRECT)),
        ("to a pod here, IPv6", udp6.clone(), Ok(REDIRECT)),
        ("to the world", Packet::new(TCP, A4, WORLD4), Ok(PASS)),
        ("to the world, IPv6", Packet::new(TCP, A6, WORLD6), Ok(PASS)),
        ("another's address", Packet::new(UDP, "10.0.0.99", B4), Err(reason::INVALID_SIP)),
        ("another's address, IPv6", Packet::new(UDP, "fd00::99", B6), Err(reason::INVALID_SIP)),
        ("at its last hop", Packet { ttl: 1, ..udp.clone() }, Err(reason::TTL_EXCEEDED)),
        ("at its last hop, IPv6", Packet { ttl: 1, ..udp6.clone() }, Err(reason::TTL_EXCEEDED)),
        ("into the tunnel", Packet { dport: 8472, ..udp.clone() }, Err(reason::ENCAP_PROHIBITED)),
        ("a protocol without ports", Packet::new(89, A4, B4), Err(reason::CT_UNKNOWN_PROTO)),
        (
            "a fragment without its first",
            Packet { fragment: later, ..udp.clone() },
            Err(reason::FRAG_NOT_FOUND),
        ),
        ("the first", Packet { fragment: Some((0, true)), ..udp.clone() }, Ok(REDIRECT)),
        ("then the later", Packet { fragment: later, ..udp }, Ok(REDIRECT)),
        ("the first, IPv6", Packet { fragment: Some((0, true)), ..udp6.clone() }, Ok(REDIRECT)),
        ("then the later, IPv6", Packet { fragment: later, ..udp6.clone() }, Ok(REDIRECT)),
        (
            "neighbour discovery on the link",
            Packet { icmp: (135, 0), ttl: 255, ..Packet::new(ICMPV6, "fe80::1", "ff02::1") },
            Ok(PASS),
        ),
        (
            "the same dressed up for the world",
            Packet { icmp: (135, 0), ttl: 255, ..Packet::new(ICMPV6, "fe80::1", WORLD6) },
            Err(reason::INVALID_SIP),
        ),
    ];
    for (name, packet, want) in cases {
        assert_eq!(bench.verdict(&packet), want, "{name}");
    }
}

#[test]
fn malformed_frames() {
    let bench = Bench::open();
    let udp = Packet::new(UDP, A4, B4).frame();
    let udp6 = Packet::new(UDP, A6, B6).frame();
    let patched = |frame: &[u8], at: usize, value: u8| {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    };
    let mut arp = patched(&udp, 13, 6);
    arp[14..].fill(0);
    let cases: [(&str, Vec<u8>, Result<u32, u8>); 7] = [
        ("ARP", arp, Ok(PASS)),
        ("not IP", patched(&udp, 13, 0x42), Err(reason::UNKNOWN_L3)),
        ("an IP head too short", patched(&udp, 14, 0x44), Err(reason::INVALID)),
        ("cut before the ports", udp[..36].to_vec(), Err(reason::CT_INVALID_HDR)),
        ("TCP without its flags", patched(&udp[..44], 23, TCP), Err(reason::CT_INVALID_HDR)),
        (
            "an extension head beyond the end",
            patched(&udp6[..55], 20, 60),
            Err(reason::INVALID_EXTHDR),
        ),
        ("IPv6 cut before the ports", udp6[..56].to_vec(), Err(reason::CT_INVALID_HDR)),
    ];
    for (name, frame, want) in cases {
        let got = bench.through(Hook::FromContainer, &frame).map(|(code, _)| code);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn a_packet_for_a_pod_here_gets_its_macs_and_one_hop_less() {
    let bench = Bench::open();
    for packet in [Packet::new(TCP, A4, B4), Packet::new(UDP, A6, B6)] {
        let seen = bench.seen(&packet);
        assert_eq!((&seen.macs[..6], &seen.macs[6..]), (&MAC_B[..], &NODE_MAC[..]));
        assert_eq!((seen.ttl, seen.from, seen.to), (63, packet.from, packet.to));
    }
}

/// Its name, rules with whether they deny, and what becomes of a packet.
type Case<'a> = (&'a str, &'a [(PolicyKey, bool)], Result<u32, u8>);

#[test]
fn policy_takes_the_narrower_rule_and_any_denial() {
    let (tcp, all) = (PolicyKey { proto: TCP, ..PolicyKey::all(0, true) }, PolicyKey::all(0, true));
    let port = PolicyKey::port(0, true, TCP, 80);
    let peer = PolicyKey::all(ID_B, true);
    let peer_port = PolicyKey::port(ID_B, true, TCP, 80);
    let range = PolicyKey { proto: TCP, port: 64, port_prefix: 10, ..PolicyKey::all(0, true) };
    let (allow, deny) = (false, true);
    let (none, denied) = (Err(reason::POLICY), Err(reason::POLICY_DENY));
    let cases: [Case<'_>; 14] = [
        ("no rule", &[], none),
        ("everything", &[(all, allow)], Ok(REDIRECT)),
        ("the peer", &[(peer, allow)], Ok(REDIRECT)),
        ("the peer's port", &[(peer_port, allow)], Ok(REDIRECT)),
        ("the port", &[(port, allow)], Ok(REDIRECT)),
        ("the protocol", &[(tcp, allow)], Ok(REDIRECT)),
        ("a range with the port", &[(range, allow)], Ok(REDIRECT)),
        ("another port", &[(PolicyKey::port(0, true, TCP, 81), allow)], none),
        ("another protocol", &[(PolicyKey::port(0, true, UDP, 80), allow)], none),
        ("another peer", &[(PolicyKey::all(ID_A, true), allow)], none),
        ("the other direction", &[(PolicyKey::all(0, false), allow)], none),
        ("the peer denied, its port allowed to all", &[(peer, deny), (port, allow)], denied),
        ("the port denied to all, the peer allowed", &[(port, deny), (peer, allow)], denied),
        ("a range denied within what is allowed", &[(all, allow), (range, deny)], denied),
    ];
    let bench = Bench::new();
    bench.rule(B, PolicyKey::all(0, false), allow);
    for (name, rules, want) in cases {
        let rules: Vec<_> = rules
            .iter()
            .map(|&(key, deny)| (key, PolicyEntry { deny, ..PolicyEntry::default() }))
            .collect();
        let table = bench.datapath.policy(A).unwrap();
        converge(&table, rules.iter().map(|(key, entry)| (key, entry))).unwrap();
        assert_eq!(bench.verdict(&Packet::new(TCP, A4, B4)), want, "{name}");
    }
}

#[test]
fn policy_knows_icmp_by_its_type() {
    let bench = Bench::new();
    bench.rule(B, PolicyKey::all(0, false), false);
    for (proto, kind) in [(ICMP, 8), (ICMPV6, 128)] {
        bench.rule(A, PolicyKey::port(ID_B, true, proto, kind), false);
    }
    let ping = Packet::new(ICMP, A4, B4);
    let ping6 = Packet { icmp: (128, 0), ..Packet::new(ICMPV6, A6, B6) };
    assert_eq!(bench.verdict(&ping), Ok(REDIRECT));
    assert_eq!(bench.verdict(&ping6), Ok(REDIRECT));
    let timestamp = Packet { icmp: (13, 0), ..ping.clone() };
    assert_eq!(bench.verdict(&timestamp), Err(reason::POLICY));
    // Path MTU discovery works whatever the policy.
    let too_big = Packet::new(UDP, B4, A4).error(A4, 3, 4);
    bench.rule(A, PolicyKey { proto: ICMP, ..PolicyKey::all(0, true) }, true);
    assert_eq!(bench.verdict(&too_big), Ok(REDIRECT));
    assert_eq!(bench.verdict(&ping), Err(reason::POLICY_DENY));
}

#[test]
fn an_endpoint_without_policy_map_is_not_ready() {
    let bench = Bench::open();
    bench.datapath.remove_policy(A).unwrap();
    assert_eq!(bench.verdict(&Packet::new(TCP, A4, B4)), Err(reason::EP_NOT_READY));
}

#[test]
fn the_side_that_was_asked_may_answer() {
    let bench = Bench::new();
    bench.rule(A, PolicyKey::all(ID_B, true), false);
    bench.rule(B, PolicyKey::all(ID_A, false), false);
    for ask in [
        Packet::new(TCP, A4, B4),
        Packet::new(UDP, A6, B6),
        Packet::new(ICMP, A4, B4),
        Packet { icmp: (128, 0), ..Packet::new(ICMPV6, A6, B6) },
    ] {
        let answer = ask.reply();
        assert_eq!(bench.verdict(&answer), Err(reason::POLICY), "unasked, {}", ask.proto);
        assert_eq!(bench.verdict(&ask), Ok(REDIRECT), "{}", ask.proto);
        assert_eq!(bench.verdict(&answer), Ok(REDIRECT), "{}", ask.proto);
        let other = Packet { sport: answer.sport + 1, dport: answer.dport + 1, ..answer };
        let other = Packet { icmp: ask.icmp, ..other };
        assert_eq!(bench.verdict(&other), Err(reason::POLICY), "another, {}", ask.proto);
    }
}

#[test]
fn an_error_passes_if_it_is_about_a_known_connection() {
    let bench = Bench::new();
    bench.rule(A, PolicyKey::all(ID_B, true), false);
    bench.rule(B, PolicyKey::all(ID_A, false), false);
    for (ask, by, kind) in [(Packet::new(UDP, A4, B4), B4, 3), (Packet::new(UDP, A6, B6), B6, 1)] {
        let error = ask.error(by, kind, 3);
        assert_eq!(bench.verdict(&error), Err(reason::POLICY), "about nothing");
        assert_eq!(bench.verdict(&ask), Ok(REDIRECT));
        assert_eq!(bench.verdict(&error), Ok(REDIRECT));
    }
}

#[test]
fn a_word_that_packets_are_too_big_passes_before_policy_if_that_is_wanted() {
    let bench = Bench::new();
    let error = Packet::new(UDP, A4, B4).error(B4, 3, 4);
    for (allow_icmp_frag_needed, want) in [(true, Ok(REDIRECT)), (false, Err(reason::POLICY))] {
        bench.set_node(&NodeConfig { allow_icmp_frag_needed, ..NodeConfig::default() });
        assert_eq!(bench.verdict(&error), want, "{allow_icmp_frag_needed}");
    }
}

#[test]
fn a_reset_ends_a_connection_that_was_never_answered() {
    let bench = Bench::open();
    let syn = Packet::new(TCP, A4, B4);
    let entry = |bench: &Bench| {
        let now = cilia_loader::Conntrack::now();
        let entries = bench.datapath.conntrack().entries().unwrap();
        assert_eq!(entries.len(), 2);
        entries.iter().map(|(_, state)| (state.closing, state.expires - now)).max().unwrap()
    };
    assert_eq!(bench.verdict(&syn), Ok(REDIRECT));
    let (closing, life) = entry(&bench);
    assert!(!closing && (58..=60).contains(&life), "{life}");
    assert_eq!(bench.verdict(&Packet { tcp_flags: ACK, ..syn.clone() }), Ok(REDIRECT));
    assert!(entry(&bench).1 > 7000);
    assert_eq!(bench.verdict(&Packet { tcp_flags: RST, ..syn.clone() }), Ok(REDIRECT));
    let (closing, life) = entry(&bench);
    assert!(closing && life <= 10, "{life}");
    // The same ports begin anew.
    assert_eq!(bench.verdict(&syn), Ok(REDIRECT));
    let (closing, life) = entry(&bench);
    assert!(!closing && life > 50, "{life}");
    let later = cilia_loader::Conntrack::now() + 10_000;
    assert_eq!(bench.datapath.conntrack().gc(later).unwrap().removed, 2);
}

#[test]
fn connections_are_listed_as_they_were_opened() {
    let bench = Bench::open();
    for (proto, from, to) in [(UDP, A4, B4), (UDP, A6, B6)] {
        bench.seen(&Packet::new(proto, from, to));
        let source = (ip(from), 40_000);
        let destination = (ip(to), 80);
        let entries = bench.datapath.conntrack().entries().unwrap();
        for opened in [Opened::Out, Opened::In] {
            let want = Connection { opened, proto, source, destination };
            let (_, state) = entries.iter().find(|(connection, _)| *connection == want).unwrap();
            assert_eq!(state.source_identity, ID_A);
        }
        assert_eq!(entries.len(), 2);
        assert_eq!(bench.datapath.conntrack().purge(ip(to)).unwrap(), 2);
    }
}

#[test]
fn what_comes_through_the_stack_is_judged_by_its_source() {
    let bench = Bench::new();
    let host = EndpointInfo { host: true, ..EndpointInfo::default() };
    bench.datapath.endpoints().upsert(&ip("10.0.0.1"), &host).unwrap();
    let to = |from: &str| bench.forwarded(Hook::ToContainer, 1, &Packet::new(TCP, from, B4));
    for (from, identity) in [("10.0.0.1", 1), (REMOTE4, ID_REMOTE), (WORLD4, 9), (A4, ID_A)] {
        assert_eq!(to(from), Err(reason::POLICY), "{from}");
        bench.rule(B, PolicyKey::port(identity, false, TCP, 80), false);
        assert_eq!(to(from), Ok(PASS), "{from}");
    }
    let stray = Packet::new(TCP, WORLD4, "10.0.0.99");
    assert_eq!(bench.through(Hook::ToContainer, &stray.frame()), Err(reason::UNROUTABLE));
}

#[test]
fn a_host_packet_to_nobody_does_not_come_round_again() {
    let bench = Bench::open();
    let stray = Packet::new(TCP, "10.0.0.1", "10.0.7.7");
    assert_eq!(bench.through(Hook::FromHost, &stray.frame()), Err(reason::UNROUTABLE));
    let report = Packet { icmp: (143, 0), ..Packet::new(ICMPV6, "fe80::1", "ff02::16") };
    assert_eq!(bench.run(Hook::FromHost, &report.frame()).0, PASS);
    // Without a tunnel there is no identity to trust.
    let frame = Packet::new(TCP, REMOTE4, B4).frame();
    assert_eq!(bench.through(Hook::FromOverlay, &frame), Err(reason::NO_TUNNEL_KEY));
}
