//! Services that come and go, and checksums that come to nothing.

use cilia_loader::Hook;

use crate::bench::{A4, A6, B4, B6, Bench, REMOTE4, VIP4, VIP6, WORLD6, ip};
use crate::packet::{ACK, Packet, TCP, UDP, see};

#[test]
fn a_connection_to_a_former_service_of_the_same_address_is_not_of_the_new_one() {
    let bench = Bench::open();
    for (front, client, old, new) in [(VIP4, A4, B4, REMOTE4), (VIP6, A6, B6, WORLD6)] {
        for proto in [TCP, UDP] {
            let number = u16::from(proto) + if client == A4 { 0 } else { 100 };
            let ask = Packet::new(proto, client, front);
            bench.service(front, proto, number, old);
            assert_eq!(bench.seen(&ask).to, ip(old));
            // The old backend is still known: other services have it.
            bench.service(front, proto, number + 1, new);
            let next = Packet { tcp_flags: ACK, ..ask };
            assert_eq!(bench.seen(&next).to, ip(new));
            assert_eq!(bench.seen(&next).to, ip(new));
        }
    }
}

#[test]
fn a_datagram_never_gets_the_checksum_that_means_none() {
    const CHECK: usize = 6;
    let bench = Bench::open();
    for (front, client, backend, head) in [(VIP4, A4, B4, 34), (VIP6, A6, B6, 54)] {
        bench.service(front, UDP, u16::from(client == A6) + 1, backend);
        // With the address changed, then with the port too.
        for dport in [80, 8080] {
            let payload = (0..=u16::MAX).map(|n| n.to_be_bytes().to_vec()).find(|payload| {
                let to = Packet { dport, ..Packet::new(UDP, client, backend) };
                let frame = Packet { payload: payload.clone(), ..to }.frame();
                frame[head + CHECK..][..2] == [0, 0]
            });
            let ask = Packet { payload: payload.unwrap(), ..Packet::new(UDP, client, front) };
            let (_, frame) = bench.through(Hook::FromContainer, &ask.frame()).unwrap();
            let seen = see(&frame);
            assert_eq!((seen.to, seen.ports.1), (ip(backend), 8080));
            assert_ne!(seen.l4[CHECK..][..2], [0, 0]);
        }
    }
}
