//! The node's own policy: what it guards, what it leaves alone.

use cilia_loader::maps::reason;
use cilia_loader::{
    Direction, EndpointInfo, Hook, NodeConfig, PolicyEntry, PolicyKey, RemoteEndpoint,
};

use crate::bench::{A, A4, B, B4, Bench, ID_A, ID_B, PASS, REDIRECT, WORLD4, WORLD6, ip};
use crate::cluster::Cluster;
use crate::packet::{ICMPV6, Packet, TCP, UDP};
use crate::traffic::{bind_udp, udp};

const NODE4: &str = "192.168.0.1";
const NODE6: &str = "fd01::1";
const OTHER_NODE: &str = "192.168.0.2";
const HOST: u16 = 65_535;
/// A device by which a packet came into the node.
const ETH0: u32 = 1;
const WORLD: u32 = 9;

fn guarded() -> Bench {
    let bench = Bench::open();
    for address in [NODE4, NODE6] {
        let node = EndpointInfo { host: true, identity: 1, ..EndpointInfo::default() };
        bench.datapath.endpoints().upsert(&ip(address), &node).unwrap();
        let whole = if ip(address).is_ipv4() { 32 } else { 128 };
        let node = RemoteEndpoint { identity: 1, ..RemoteEndpoint::default() };
        bench.datapath.ipcache().upsert(&(ip(address), whole), &node).unwrap();
    }
    let other = RemoteEndpoint { identity: 6, ..RemoteEndpoint::default() };
    bench.datapath.ipcache().upsert(&(ip(OTHER_NODE), 32), &other).unwrap();
    bench.datapath.policy(HOST).unwrap();
    bench.set_node(&NodeConfig { host_endpoint: Some(HOST), ..NodeConfig::default() });
    bench
}

#[test]
fn without_an_endpoint_for_the_node_nothing_is_guarded() {
    let bench = guarded();
    bench.set_node(&NodeConfig::default());
    let packet = Packet::new(TCP, WORLD4, NODE4);
    assert_eq!(bench.forwarded(Hook::FromNetdev, ETH0, &packet), Ok(PASS));
    assert_eq!(bench.forwarded(Hook::ToNetdev, 0, &packet.reply()), Ok(PASS));
    assert_eq!(bench.verdict(&Packet::new(TCP, A4, NODE4)), Ok(PASS));
    assert!(bench.datapath.policy_stats().unwrap().iter().all(|(id, ..)| *id != HOST));
}

#[test]
fn what_comes_to_the_node_by_its_device() {
    let bench = guarded();
    let by = |packet: &Packet| bench.forwarded(Hook::FromNetdev, ETH0, packet);
    let tunnel = Packet { dport: 8472, ..Packet::new(UDP, OTHER_NODE, NODE4) };
    let solicitation = Packet { icmp: (135, 0), ttl: 255, ..Packet::new(ICMPV6, WORLD6, NODE6) };
    let cases = [
        ("unasked", Packet::new(TCP, WORLD4, NODE4), Err(reason::POLICY)),
        ("unasked, IPv6", Packet::new(TCP, WORLD6, NODE6), Err(reason::POLICY)),
        ("unasked, by another node", Packet::new(TCP, OTHER_NODE, NODE4), Err(reason::POLICY)),
        ("a protocol without ports", Packet::new(89, WORLD4, NODE4), Err(reason::POLICY)),
        ("not for the node", Packet::new(TCP, WORLD4, B4), Ok(PASS)),
        ("neighbour discovery", solicitation, Ok(PASS)),
        ("the tunnel of a node", tunnel.clone(), Ok(PASS)),
        ("the tunnel of somebody", Packet { from: ip(WORLD4), ..tunnel }, Err(reason::POLICY)),
    ];
    for (name, packet, want) in cases {
        assert_eq!(by(&packet), want, "{name}");
    }
    bench.rule(HOST, PolicyKey::port(WORLD, false, TCP, 80), false);
    let ask = Packet::new(TCP, WORLD4, NODE4);
    assert_eq!(by(&ask), Ok(PASS));
    assert_eq!(by(&Packet { dport: 22, ..ask.clone() }), Err(reason::POLICY));
    // It answers, and that is all that it may send.
    assert_eq!(bench.forwarded(Hook::ToNetdev, 0, &ask.reply()), Ok(PASS));
    let other = Packet { sport: 81, ..ask.reply() };
    assert_eq!(bench.forwarded(Hook::ToNetdev, 0, &other), Err(reason::POLICY));
    // A rule that comes later cuts what is open.
    bench.rule(HOST, PolicyKey::port(WORLD, false, TCP, 80), true);
    assert_eq!(by(&ask), Err(reason::POLICY_DENY));
}

#[test]
fn what_the_node_sends_and_what_it_only_forwards() {
    let bench = guarded();
    let out = |by: u32, packet: &Packet| bench.forwarded(Hook::ToNetdev, by, packet);
    let ask = Packet::new(TCP, NODE4, WORLD4);
    assert_eq!(out(0, &ask), Err(reason::POLICY));
    bench.rule(HOST, PolicyKey::port(WORLD, true, TCP, 80), false);
    assert_eq!(out(0, &ask), Ok(PASS));
    assert_eq!(bench.forwarded(Hook::FromNetdev, ETH0, &ask.reply()), Ok(PASS), "the answer");
    // A pod's packet with the node's address: the pod's policy was asked; the answer finds back.
    let masqueraded = Packet { sport: 50_000, dport: 443, ..ask.clone() };
    assert_eq!(out(0, &masqueraded), Err(reason::POLICY));
    assert_eq!(out(ETH0, &masqueraded), Ok(PASS));
    assert_eq!(bench.forwarded(Hook::FromNetdev, ETH0, &masqueraded.reply()), Ok(PASS));
    assert_eq!(out(0, &Packet { dport: 8472, ..Packet::new(UDP, NODE4, OTHER_NODE) }), Ok(PASS));
    let report = Packet { icmp: (143, 0), ..Packet::new(ICMPV6, NODE6, "ff02::16") };
    assert_eq!(out(0, &report), Ok(PASS), "a report to the link");
    assert_eq!(out(0, &Packet::new(TCP, NODE6, WORLD6)), Err(reason::POLICY));
}

#[test]
fn pods_here_and_the_node() {
    let bench = guarded();
    let (ask, other) = (Packet::new(TCP, A4, NODE4), Packet::new(TCP, B4, NODE4));
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY));
    bench.rule(HOST, PolicyKey::all(0, false), false);
    bench.rule(HOST, PolicyKey::all(ID_A, false), true);
    assert_eq!(bench.verdict(&ask), Err(reason::POLICY_DENY));
    assert_eq!(bench.verdict(&other), Ok(PASS));
    // Answers of the node, and what it asks itself.
    let to = |packet: &Packet| bench.forwarded(Hook::ToContainer, 0, packet);
    assert_eq!(to(&other.reply()), Ok(PASS));
    let probe = Packet::new(TCP, NODE4, B4);
    assert_eq!(to(&probe), Err(reason::POLICY));
    bench.rule(HOST, PolicyKey::port(ID_B, true, TCP, 80), false);
    assert_eq!(to(&probe), Ok(PASS));
    assert_eq!(bench.verdict(&probe.reply()), Ok(PASS));
    // A node port's packet for the pod has the node's address, and is not the node's.
    let forwarded = Packet { sport: 50_001, dport: 81, ..probe };
    assert_eq!(bench.forwarded(Hook::ToContainer, ETH0, &forwarded), Ok(PASS));
    assert_eq!(bench.verdict(&forwarded.reply()), Ok(PASS));
}

#[test]
fn a_drop_counts_in_the_direction_of_who_drops() {
    let bench = guarded();
    for id in [A, B] {
        for egress in [false, true] {
            bench.datapath.policy(id).unwrap().remove(&PolicyKey::all(0, egress)).unwrap();
        }
    }
    let counted = |direction: Direction| -> u64 {
        let metrics = bench.datapath.metrics().unwrap();
        let ours = metrics
            .iter()
            .filter(|(key, ..)| key.reason == reason::POLICY && key.direction == Some(direction));
        ours.map(|(_, count, _)| count).sum()
    };
    let (to_pod, to_node) = (Packet::new(UDP, A4, B4), Packet::new(UDP, A4, NODE4));
    let by_node = Packet::new(UDP, NODE4, B4);
    let steps = [
        ("the sender's policy", Hook::FromContainer, &to_pod, [1, 0]),
        ("the receiver's, on the same node", Hook::FromContainer, &to_pod, [1, 1]),
        ("the node's, asked by a pod", Hook::FromContainer, &to_node, [1, 2]),
        ("the node's, as it sends to a pod", Hook::ToContainer, &by_node, [2, 2]),
    ];
    for (name, hook, packet, want) in steps {
        assert_eq!(bench.forwarded(hook, 0, packet), Err(reason::POLICY), "{name}");
        assert_eq!([counted(Direction::Egress), counted(Direction::Ingress)], want, "{name}");
        bench.rule(A, PolicyKey::all(0, true), false);
    }
}

#[test]
fn what_a_pod_asks_another_node_goes_through_the_tunnel() {
    let bench = guarded();
    let node = NodeConfig { overlay_ifindex: ETH0, ..NodeConfig::default() };
    let ask = Packet::new(TCP, A4, OTHER_NODE);
    bench.set_node(&node);
    assert_eq!(bench.verdict(&ask), Ok(PASS), "no node asks who it is");
    bench.set_node(&NodeConfig { host_endpoint: Some(HOST), ..node });
    assert_eq!(
        bench.verdict(&ask),
        Ok(PASS),
        "it would be another connection with another address"
    );
    let opens = Packet { sport: 50_000, ..ask };
    assert_eq!(bench.verdict(&opens), Ok(REDIRECT));
    assert_eq!(bench.verdict(&opens), Ok(REDIRECT), "it goes on so");
    assert_eq!(
        bench.verdict(&Packet::new(TCP, A4, WORLD4)),
        Ok(PASS),
        "others do not know the tunnel"
    );
    // What came outside of it, by a node port, has an answer that this node has to give its address to.
    let asked = Packet { sport: 50_001, ..Packet::new(TCP, OTHER_NODE, A4) };
    assert_eq!(bench.forwarded(Hook::ToContainer, ETH0, &asked), Ok(PASS));
    assert_eq!(bench.verdict(&asked.reply()), Ok(PASS));
}

#[test]
fn a_node_knows_which_pod_of_another_node_asks() {
    for v6 in [false, true] {
        let cluster = Cluster::over(v6);
        let [one, two] = &cluster.nodes;
        let (friend, stranger) = (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301));
        for pod in [&friend, &stranger] {
            one.allow_all(pod);
        }
        for node in [one, two] {
            node.datapath.policy(HOST).unwrap();
            let config = NodeConfig { host_endpoint: Some(HOST), ..node.config.clone() };
            node.netns.run(|| node.datapath.set_node(&config)).unwrap();
        }
        let key = PolicyKey::port(friend.identity, false, UDP, 7000);
        two.datapath.policy(HOST).unwrap().upsert(&key, &PolicyEntry::default()).unwrap();
        let server = bind_udp(&two.netns, two.address(), 7000);
        let [other, client] = [&stranger, &friend].map(|pod| udp(pod, v6, 0));
        for socket in [&other, &client] {
            socket.send_to(b"ask", (two.address(), 7000)).unwrap();
        }
        let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(peer, client.local_addr().unwrap(), "the stranger is not heard");
        server.send_to(b"answer", peer).unwrap();
        assert_eq!(client.recv_from(&mut [0; 8]).unwrap().0, 6);
    }
}
