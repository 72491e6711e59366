//! Services in the path of single packets: there and back, by whom they are answered, and nobody.

use std::net::IpAddr;

use cilia_loader::maps::reason;
use cilia_loader::{Backend, BackendState, Hook, ServiceEntry, ServiceKey};

use crate::bench::{A4, A6, B4, B6, Bench, REMOTE4, VIP4, VIP6, WORLD4, WORLD6, ip};
use crate::packet::{Packet, TCP, UDP, see};

#[test]
fn a_service_is_translated_there_and_back() {
    let bench = Bench::open();
    for (front, client, backend, proto, number) in [
        (VIP4, A4, B4, TCP, 1),
        (VIP4, A4, B4, UDP, 2),
        (VIP6, A6, B6, TCP, 3),
        (VIP6, A6, B6, UDP, 4),
    ] {
        bench.service(front, proto, number, backend);
        let ask = Packet::new(proto, client, front);
        let seen = bench.seen(&ask);
        assert_eq!((seen.from, seen.to), (ip(client), ip(backend)));
        assert_eq!(seen.ports, (40_000, 8080));
        let answer = Packet { from: ip(backend), sport: 8080, ..ask.reply() };
        let seen = bench.seen(&answer);
        assert_eq!((seen.from, seen.to), (ip(front), ip(client)));
        assert_eq!(seen.ports, (80, 40_000));

        // The backend's error is about what the client sent, and comes from where it sent it.
        let sent = Packet { to: ip(backend), dport: 8080, ..ask.clone() };
        let error = sent.error(backend, if proto == 0 || client == A4 { 3 } else { 1 }, 3);
        let seen = bench.seen(&error);
        assert_eq!((seen.from, seen.to), (ip(front), ip(client)));
        let (to_at, port_at) = if client == A4 { (24, 30) } else { (32, 50) };
        let quoted: &[u8] = &seen.l4[to_at..];
        match ip(front) {
            IpAddr::V4(front) => assert_eq!(quoted[..4], front.octets()),
            IpAddr::V6(front) => assert_eq!(quoted[..16], front.octets()),
        }
        assert_eq!(seen.l4[port_at..port_at + 2], 80u16.to_be_bytes());
    }
    // A direct connection to the same backend is left alone.
    let direct = Packet { sport: 41_000, dport: 8080, ..Packet::new(TCP, A4, B4) };
    assert_eq!(bench.seen(&direct).to, ip(B4));
    let seen = bench.seen(&direct.reply());
    assert_eq!((seen.from, seen.ports.0), (ip(B4), 8080));
}

#[test]
fn a_client_keeps_its_backend() {
    let bench = Bench::open();
    for (front, client, backends, number) in
        [(VIP4, A4, [B4, REMOTE4, WORLD4], 1), (VIP6, A6, [B6, WORLD6, "fd00::12"], 2)]
    {
        bench.service(front, TCP, number, backends[0]);
        let key = ServiceKey { address: ip(front), port: 80, proto: TCP, slot: 0, scope: 0 };
        let plain = ServiceEntry { count: 3, rev_nat: number, ..ServiceEntry::default() };
        let set = |slot: u16, entry: ServiceEntry| {
            bench.datapath.services().upsert(&ServiceKey { slot, ..key }, &entry).unwrap();
        };
        for (slot, address) in (1..).zip(backends) {
            let id = u32::from(number) * 10 + u32::from(slot);
            let state = BackendState::Active;
            let backend = Backend { address: ip(address), port: 8080, proto: TCP, state, zone: 0 };
            bench.datapath.backends().upsert(&id, &backend).unwrap();
            set(slot, ServiceEntry { backend: id, ..plain });
        }
        let mut port = 20_000;
        let mut next = || {
            port += 1;
            bench.seen(&Packet { sport: port, ..Packet::new(TCP, client, front) }).to
        };
        set(0, plain);
        let first = next();
        assert!((0..100).any(|_| next() != first), "without affinity any backend will do");
        set(0, ServiceEntry { flags: ServiceEntry::AFFINITY, backend: 3600, ..plain });
        let kept = next();
        assert!((0..100).all(|_| next() == kept));
        // It is found where it moves to, and given up when it leaves.
        let kept_at = backends.iter().position(|address| ip(address) == kept).unwrap();
        let id = |index: usize| u32::from(number) * 10 + u32::try_from(index).unwrap() + 1;
        let other = (kept_at + 1) % 3;
        for slot in 1..=3 {
            let moved = if slot == 3 { kept_at } else { other };
            set(slot, ServiceEntry { backend: id(moved), ..plain });
        }
        assert!((0..20).all(|_| next() == kept));
        set(3, ServiceEntry { backend: id(other), ..plain });
        assert_eq!(next(), ip(backends[other]));
    }
}

#[test]
fn nobody_there_is_an_answer() {
    let bench = Bench::new();
    for (front, client, proto) in [(VIP4, A4, TCP), (VIP6, A6, UDP)] {
        let key = ServiceKey { address: ip(front), port: 80, proto, slot: 0, scope: 0 };
        let entry = ServiceEntry { rev_nat: 1, ..ServiceEntry::default() };
        bench.datapath.services().upsert(&key, &entry).unwrap();
        let ask = Packet::new(proto, client, front);
        let frame = ask.frame();
        let seen = see(&bench.run(Hook::FromContainer, &frame).1);
        assert_eq!((seen.from, seen.to), (ip(front), ip(client)));
        let (kind, quoted) = if client == A4 { ([3, 3], 28) } else { ([1, 4], 48) };
        assert_eq!(seen.l4[..2], kind);
        assert_eq!(seen.l4[8..], frame[14..14 + quoted]);
    }
}

#[test]
fn a_pod_behind_its_own_service_meets_itself() {
    let bench = Bench::new();
    for (front, client, number) in [(VIP4, A4, 1), (VIP6, A6, 2)] {
        bench.service(front, UDP, number, client);
        let ask = Packet::new(UDP, client, front);
        let seen = bench.seen(&ask);
        assert_eq!((seen.to, seen.ports), (ip(client), (40_000, 8080)));
        assert_ne!(seen.from, ip(client));
        let answer = Packet { from: ip(client), to: seen.from, sport: 8080, ..ask.reply() };
        let seen = bench.seen(&answer);
        assert_eq!((seen.from, seen.to), (ip(front), ip(client)));
        assert_eq!(seen.ports, (80, 40_000));
        let unasked = Packet { sport: 8081, ..answer };
        assert_eq!(bench.verdict(&unasked), Err(reason::UNROUTABLE));

        // Nobody listens there: its own error reaches it, and is about the packet that it sent.
        let seen = bench.seen(&ask);
        let arrived =
            Packet { from: seen.from, to: seen.to, dport: 8080, payload: vec![], ..ask.clone() };
        let v6 = ip(front).is_ipv6();
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        let error = bench.seen(&arrived.error(client, kind, code));
        assert_eq!((error.from, error.to), (ip(front), ip(client)));
        let sent = Packet { payload: vec![], ..ask.clone() };
        let (head, ports) = if v6 { (40, 48..52) } else { (20, 28..32) };
        let of = |quote: &[u8]| {
            let (at, size) = if v6 { (8, 16) } else { (12, 4) };
            quote[at..at + 2 * size].to_vec()
        };
        let want = &sent.frame()[14..];
        let quote = &error.l4[8..];
        assert_eq!(of(quote), of(want), "its addresses");
        assert_eq!(error.l4[ports], want[head..head + 4], "its ports");
    }
}
