//! Packets that are not what they say they are: errors about what was never sent, routers that are
//! none, addresses of others.

use cilia_loader::maps::reason;
use cilia_loader::{Hook, NodeConfig, PolicyKey, RemoteEndpoint};

use crate::bench::{A, A4, A6, B, B4, B6, Bench, PASS, REDIRECT, WORLD4, WORLD6, ip};
use crate::packet::{ICMPV6, Packet, TCP, UDP};

/// A device that is no endpoint's.
const UNDERLAY: u32 = 9;
/// The tunnel's device, and every endpoint's.
const OWN: u32 = 1;

#[test]
fn an_error_is_about_what_its_receiver_sent() {
    let bench = Bench::new();
    for endpoint in [A, B] {
        for world in [9, 10] {
            bench.rule(endpoint, PolicyKey::all(world, true), false);
        }
    }
    let from_outside = |error: &Packet| bench.forwarded(Hook::ToContainer, UNDERLAY, error);
    let denied = Err(reason::POLICY);
    for (a, b, world, router, kind) in
        [(A4, B4, WORLD4, "198.51.100.1", 3), (A6, B6, WORLD6, "2001:db8:1::1", 1)]
    {
        let (ours, theirs) = (Packet::new(UDP, a, world), Packet::new(UDP, b, world));
        assert_eq!(bench.verdict(&ours), Ok(PASS));
        assert_eq!(bench.verdict(&theirs), Ok(PASS));
        let error = ours.error(router, kind, 3);
        assert_eq!(from_outside(&error), Ok(PASS), "a router's");
        let error = Packet { to: ip(a), ..theirs.error(router, kind, 3) };
        assert_eq!(from_outside(&error), denied, "about another's packet");
        // As if the receiver were the other side of the sender's connection.
        let error = Packet { to: ip(b), ..ours.reply().error(a, kind, 3) };
        assert_eq!(bench.verdict(&error), denied, "about the sender's own connection");
        let error = theirs.error(a, kind, 3);
        assert_eq!(bench.verdict(&error), denied, "by an endpoint, as if it were a router");
        let error = ours.reply().error(a, kind, 3);
        assert_eq!(bench.verdict(&error), Ok(PASS), "about what the endpoint got");
    }
}

#[test]
fn endpoints_are_no_routers() {
    let (bench, without) = (Bench::open(), Bench::with(|config| config.ipv6 = false));
    let forbidden = Err(reason::FORBIDDEN_ICMP6);
    for (kind, from, to, want) in [
        (133, "fe80::1", "ff02::2", Ok(PASS)),
        (135, "fe80::1", "ff02::1", Ok(PASS)),
        (136, "fe80::1", "fd00::1", Ok(PASS)),
        (143, "fe80::1", "ff02::16", Ok(PASS)),
        (134, "fe80::1", "ff02::1", forbidden),
        (134, "fe80::1", "fe80::2", forbidden),
        (134, A6, "fd00::1", forbidden),
        (134, A6, B6, forbidden),
        (137, "fe80::1", "fe80::2", forbidden),
        (130, "fe80::1", "ff02::1", forbidden),
    ] {
        let packet = Packet { icmp: (kind, 0), ttl: 255, ..Packet::new(ICMPV6, from, to) };
        assert_eq!(bench.verdict(&packet), want, "type {kind} to {to}");
        let off = without.verdict(&packet);
        assert_eq!(off, Err(reason::UNKNOWN_L3), "type {kind} to {to}, without IPv6");
    }
}

#[test]
fn a_source_address_has_its_way_in() {
    let bench = Bench::open();
    let tunnel = Some(ip("192.168.0.2"));
    let remote = RemoteEndpoint { identity: 400, tunnel, ..RemoteEndpoint::default() };
    bench.datapath.ipcache().upsert(&(ip("10.0.2.5"), 32), &remote).unwrap();
    bench.datapath.ipcache().upsert(&(ip("fd00:2::5"), 128), &remote).unwrap();
    bench.set_node(&NodeConfig { overlay_ifindex: OWN, ..NodeConfig::default() });
    for (from, to) in [(A4, B4), (A6, B6), ("10.0.2.5", B4), ("fd00:2::5", B6)] {
        let packet = Packet::new(TCP, from, to);
        let through = |by| bench.forwarded(Hook::ToContainer, by, &packet);
        assert_eq!(through(OWN), Ok(PASS), "{from}");
        assert_eq!(through(UNDERLAY), Err(reason::INVALID_SIP), "{from}");
    }
    for (from, to) in [(A4, "10.0.2.5"), (A6, "fd00:2::5")] {
        let packet = Packet::new(TCP, from, to);
        let through = |by| bench.forwarded(Hook::FromHost, by, &packet);
        assert_eq!(through(OWN), Ok(REDIRECT), "{from}");
        assert_eq!(through(UNDERLAY), Err(reason::INVALID_SIP), "{from}");
    }
    let world = Packet::new(TCP, WORLD4, B4);
    assert_eq!(bench.forwarded(Hook::ToContainer, UNDERLAY, &world), Ok(PASS));
}
