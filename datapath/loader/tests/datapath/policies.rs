//! Policy on live traffic: denied by default, cut and restored, replies and errors let through,
//! and every decision told.

use std::io::ErrorKind;
use std::net::SocketAddr;

use cilia_loader::event::Matched;
use cilia_loader::maps::reason;
use cilia_loader::{Direction, Event, NodeConfig, PolicyEntry, PolicyKey};

use crate::capture::{Capture, vxlan};
use crate::cluster::{Cluster, PATIENCE, wait_event};
use crate::traffic::{answers, connect, connect_within, echo_server, ping, round_trip, udp};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

#[test]
fn the_number_on_the_wire_is_the_senders_identity() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.pod(0, 10, 70_000), cluster.pod(1, 11, 301));
    cluster.nodes[0].allow_all(&a);
    cluster.nodes[1].allow_all(&b);
    let wire = Capture::start(&cluster.nodes[1].netns);
    for v6 in [false, true] {
        assert!(ping(&a.netns, b.ip(v6), 56).0);
        // Request and reply, told apart by the ICMP type behind the inner IP head.
        let (at, request, reply) = if v6 { (54, 128, 129) } else { (34, 8, 0) };
        let kind = if v6 { 0x86dd_u16 } else { 0x0800 };
        for (which, sender) in [(request, a.identity), (reply, b.identity)] {
            let number = wire.find(|frame| {
                let (number, inner) = vxlan(frame)?;
                let ours = inner[12..14] == kind.to_be_bytes() && inner[at] == which;
                ours.then_some(number)
            });
            assert_eq!(number, sender);
        }
    }
}

#[test]
fn an_identity_of_one_node_only_is_the_world_on_the_wire() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.pod(0, 10, 0x0100_0007), cluster.pod(1, 11, 301));
    cluster.nodes[0].allow_all(&a);
    cluster.nodes[1].allow_all(&b);
    let wire = Capture::start(&cluster.nodes[1].netns);
    assert!(ping(&a.netns, b.ip(false), 56).0);
    let number = wire.find(|frame| {
        let (number, inner) = vxlan(frame)?;
        (inner[12..14] == [8, 0] && inner[34] == 8).then_some(number)
    });
    assert_eq!(number, 2);
}

#[test]
fn default_deny_cuts_a_live_connection_and_an_allow_restores() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let a = cluster.pod(0, 10, 300);
    one.allow_all(&a);
    for (node, number, b) in [(one, 0, cluster.pod(0, 11, 301)), (two, 1, cluster.pod(1, 12, 302))]
    {
        for v6 in [false, true] {
            let address = SocketAddr::new(b.ip(v6), 80);
            let port = PolicyKey::port(a.identity, false, TCP, 80);
            echo_server(&b.netns, address);
            let refused = connect_within(&a.netns, address, PATIENCE).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TimedOut, "node {number}");
            node.allow(&b, port);
            let mut stream = connect(&a.netns, address).unwrap();
            round_trip(&mut stream, b"allowed");
            node.forbid(&b, port);
            assert!(!answers(&mut stream), "a live connection goes on without its allow");
            node.allow(&b, port);
            round_trip(&mut connect(&a.netns, address).unwrap(), b"again");
            node.forbid(&b, port);
        }
    }
}

#[test]
fn replies_need_no_allow_of_their_own() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    // a may ask b; b may ask nobody and a be asked by nobody.
    one.allow(&a, PolicyKey::port(b.identity, true, UDP, 53));
    one.allow(&a, PolicyKey { proto: ICMP, port: 8, ..PolicyKey::all(b.identity, true) });
    two.allow(&b, PolicyKey::all(a.identity, false));
    let (client, server) = (udp(&a, false, 4000), udp(&b, false, 53));
    let mut buffer = [0; 8];
    server.send_to(b"unasked", (a.v4, 4000)).unwrap();
    client.send_to(b"ask", (b.v4, 53)).unwrap();
    let (_, peer) = server.recv_from(&mut buffer).unwrap();
    server.send_to(b"answer", peer).unwrap();
    let (count, _) = client.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"answer");
    assert!(ping(&a.netns, b.ip(false), 56).0);
    assert!(!ping(&b.netns, a.ip(false), 56).0);
}

#[test]
fn an_error_about_an_allowed_connection_passes() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, near, far) =
        (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301), cluster.pod(1, 12, 302));
    one.allow(&a, PolicyKey { proto: UDP, ..PolicyKey::all(0, true) });
    for (node, b) in [(one, near), (two, far)] {
        node.allow(&b, PolicyKey { proto: UDP, ..PolicyKey::all(a.identity, false) });
        for v6 in [false, true] {
            let client = udp(&a, v6, 0);
            client.connect((b.ip(v6), 9)).unwrap();
            client.send(b"nobody listens").unwrap();
            // The port-unreachable of b's stack reaches a's socket.
            let error = client.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    }
}

#[test]
fn every_denial_says_who_and_why() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    let (mut from, mut to) = (one.datapath.events().unwrap(), two.datapath.events().unwrap());
    let client = udp(&a, false, 0);

    // Denied at the sender: nothing allows.
    client.send_to(b"x", (b.v4, 53)).unwrap();
    let verdict = wait_event(&mut from, |event| match event {
        Event::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    assert_eq!(verdict.denied, Some(reason::POLICY));
    assert_eq!(verdict.direction, Direction::Egress);
    assert_eq!((verdict.packet.endpoint, verdict.remote_identity), (a.id, b.identity));
    assert_eq!((verdict.proto, verdict.port, verdict.matched), (UDP, 53, Matched::Nothing));
    let drop = wait_event(&mut from, |event| match event {
        Event::Drop(drop) => Some(drop),
        _ => None,
    });
    assert_eq!(drop.reason_text(), "Policy denied");
    assert_eq!((drop.source_identity, drop.destination_identity), (a.identity, b.identity));
    assert_eq!(drop.packet.bytes[26..30], a.v4.octets());

    // Allowed there, denied by a rule at the receiver.
    one.allow(&a, PolicyKey::all(b.identity, true));
    let rule = PolicyEntry { deny: true, cookie: 77, ..PolicyEntry::default() };
    let key = PolicyKey { proto: UDP, ..PolicyKey::all(a.identity, false) };
    two.datapath.policy(b.id).unwrap().upsert(&key, &rule).unwrap();
    client.send_to(b"x", (b.v4, 53)).unwrap();
    let allowed = wait_event(&mut from, |event| match event {
        Event::Verdict(verdict) if verdict.denied.is_none() => Some(verdict),
        _ => None,
    });
    assert_eq!(allowed.matched, Matched::Identity);
    let verdict = wait_event(&mut to, |event| match event {
        Event::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    assert_eq!((verdict.denied, verdict.cookie), (Some(reason::POLICY_DENY), 77));
    assert_eq!(verdict.matched, Matched::IdentityAndProtocol);
    assert_eq!((verdict.packet.endpoint, verdict.remote_identity), (b.id, a.identity));
    let drop = wait_event(&mut to, |event| match event {
        Event::Drop(drop) => Some(drop),
        _ => None,
    });
    assert_eq!((drop.reason, drop.source_identity), (reason::POLICY_DENY, a.identity));
    assert_eq!(drop.destination_endpoint, u32::from(b.id));

    // In audit mode the same packet arrives, and the verdict says so.
    let server = udp(&b, false, 53);
    let audit = NodeConfig { policy_audit: true, trace: true, ..two.config.clone() };
    two.datapath.set_node(&audit).unwrap();
    client.send_to(b"audited", (b.v4, 53)).unwrap();
    assert_eq!(server.recv(&mut [0; 16]).unwrap(), 7);
    let verdict = wait_event(&mut to, |event| match event {
        Event::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    assert!(verdict.audited && verdict.denied == Some(reason::POLICY_DENY));
    let trace = wait_event(&mut to, |event| match event {
        Event::Trace(trace) => Some(trace),
        _ => None,
    });
    assert_eq!((trace.point_text(), trace.destination_endpoint), ("to-endpoint", b.id));

    let metrics = two.datapath.metrics().unwrap();
    let denied: u64 = metrics
        .iter()
        .filter(|(key, ..)| key.reason == reason::POLICY_DENY)
        .map(|(_, count, _)| count)
        .sum();
    assert_eq!(denied, 1);
    assert_eq!(to.lost().unwrap(), 0);
}

#[test]
fn a_removed_endpoint_gets_and_sends_nothing() {
    let cluster = Cluster::new();
    let one = &cluster.nodes[0];
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301));
    one.allow_all(&a);
    one.allow_all(&b);
    assert!(ping(&a.netns, b.ip(false), 56).0);
    assert!(one.datapath.conntrack().entries().unwrap().len() >= 2);
    let mut events = one.datapath.events().unwrap();
    one.datapath.forget(b.id, &[b.ip(false), b.ip(true)]).unwrap();
    let known = one.datapath.conntrack().entries().unwrap();
    assert!(known.iter().all(|(c, _)| c.source.0 != b.ip(false) && c.destination.0 != b.ip(false)));
    assert_eq!(one.datapath.policies().unwrap(), [a.id]);
    assert!(!ping(&b.netns, a.ip(false), 56).0);
    let reason = wait_event(&mut events, |event| match event {
        Event::Drop(drop) => Some(drop.reason),
        _ => None,
    });
    assert_eq!(reason, reason::INVALID_SIP);
    one.datapath.detach_endpoint(&b.device).unwrap();
    assert!(!one.datapath.attached().unwrap().contains(&b.device));
}

#[test]
fn traffic_survives_a_restart_of_the_agent() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    one.allow_all(&a);
    two.allow(&b, PolicyKey::port(a.identity, false, TCP, 80));
    let address = SocketAddr::new(b.ip(false), 80);
    echo_server(&b.netns, address);
    let mut stream = connect(&a.netns, address).unwrap();
    round_trip(&mut stream, b"before");
    let again = two.reload();
    two.netns.run(|| again.attach_endpoint(two.netns.device(&b.device).0, &b.device)).unwrap();
    round_trip(&mut stream, b"after");
    assert_eq!(again.attached().unwrap(), ["cilium_host", "cilium_vxlan", &b.device]);
}
