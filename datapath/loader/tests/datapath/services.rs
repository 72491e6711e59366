//! Services: frontends translated to backends and back, for every protocol that has ports.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use cilia_loader::maps::reason;
use cilia_loader::{
    Backend, BackendState, Event, Frontend, PolicyKey, ServiceEntry, ServiceKey, converge,
};

use crate::cluster::{Cluster, Node, Pod, wait_event};
use crate::traffic::{bind_udp, connect, echo_server, pattern, round_trip, udp};

const TCP: u8 = 6;
const UDP: u8 = 17;

fn vip(v6: bool) -> IpAddr {
    if v6 { "fd00:ffff::10".parse().unwrap() } else { "10.96.0.10".parse().unwrap() }
}

/// Makes a service with port 80 for both families and protocols, and these backends' port 8080.
fn serve(node: &Node, backends: &[&Pod]) {
    let (mut services, mut table, mut rev_nat) = (Vec::new(), Vec::new(), Vec::new());
    for (v6, proto, number) in [(false, TCP, 1), (false, UDP, 2), (true, TCP, 3), (true, UDP, 4)] {
        let front = ServiceKey { address: vip(v6), port: 80, proto, slot: 0, scope: 0 };
        let count = u16::try_from(backends.len()).unwrap();
        let entry = ServiceEntry { count, rev_nat: number, ..ServiceEntry::default() };
        services.push((front, entry));
        for (slot, backend) in (1..).zip(backends) {
            let id = u32::from(number) * 100 + u32::from(slot);
            services.push((ServiceKey { slot, ..front }, ServiceEntry { backend: id, ..entry }));
            let state = BackendState::Active;
            let address = backend.ip(v6);
            table.push((id, Backend { address, port: 8080, proto, state, zone: 0 }));
        }
        rev_nat.push((number, Frontend { address: vip(v6), port: 80 }));
    }
    let datapath = &node.datapath;
    converge(&datapath.backends(), table.iter().map(|(k, v)| (k, v))).unwrap();
    converge(&datapath.rev_nat(), rev_nat.iter().map(|(k, v)| (k, v))).unwrap();
    converge(&datapath.services(), services.iter().map(|(k, v)| (k, v))).unwrap();
    let again = converge(&datapath.services(), services.iter().map(|(k, v)| (k, v))).unwrap();
    assert!(again.is_empty(), "{again:?}");
}

#[test]
fn a_service_reaches_its_backends() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, near, far) =
        (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301), cluster.pod(1, 12, 301));
    one.allow(&a, PolicyKey::all(301, true));
    one.allow(&near, PolicyKey::all(a.identity, false));
    two.allow(&far, PolicyKey::all(a.identity, false));
    for backend in [&near, &far] {
        serve(one, &[backend]);
        one.datapath.conntrack().purge(a.ip(false)).unwrap();
        one.datapath.conntrack().purge(a.ip(true)).unwrap();
        for v6 in [false, true] {
            echo_server(&backend.netns, SocketAddr::new(backend.ip(v6), 8080));
            let mut stream = connect(&a.netns, SocketAddr::new(vip(v6), 80)).unwrap();
            round_trip(&mut stream, b"small");
            round_trip(&mut stream, &pattern(2 << 20));
            let (client, server) = (udp(&a, v6, 0), udp(backend, v6, 8080));
            client.connect((vip(v6), 80)).unwrap();
            let mut buffer = vec![0; 65536];
            for size in [1, 1400, 60_000] {
                let bytes = pattern(size);
                client.send(&bytes).unwrap();
                let (count, peer) = server.recv_from(&mut buffer).unwrap();
                assert!(buffer[..count] == bytes, "{size} bytes to the service");
                server.send_to(&bytes, peer).unwrap();
                // A connected socket takes it from the service only.
                let count = client.recv(&mut buffer).unwrap();
                assert!(buffer[..count] == bytes, "{size} bytes from the service");
            }
        }
    }
}

#[test]
fn an_error_from_a_backend_comes_from_the_service() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, far) = (cluster.pod(0, 10, 300), cluster.pod(1, 12, 301));
    one.allow(&a, PolicyKey::all(301, true));
    two.allow(&far, PolicyKey::all(a.identity, false));
    serve(one, &[&far]);
    for v6 in [false, true] {
        let client = udp(&a, v6, 0);
        client.connect((vip(v6), 80)).unwrap();
        client.send(b"nobody listens").unwrap();
        let error = client.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let cluster = Cluster::new();
    let one = &cluster.nodes[0];
    // No policy allows it: what it does to itself is its own business.
    let a = cluster.pod(0, 10, 300);
    serve(one, &[&a]);
    for v6 in [false, true] {
        echo_server(&a.netns, SocketAddr::new(a.ip(v6), 8080));
        let mut stream = connect(&a.netns, SocketAddr::new(vip(v6), 80)).unwrap();
        round_trip(&mut stream, &pattern(100_000));
        let (client, server) = (udp(&a, v6, 0), udp(&a, v6, 8080));
        client.connect((vip(v6), 80)).unwrap();
        client.send(b"to myself").unwrap();
        let mut buffer = [0; 16];
        let (_, peer) = server.recv_from(&mut buffer).unwrap();
        assert_ne!(peer.ip(), a.ip(v6));
        server.send_to(b"from myself", peer).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 11);
    }
}

#[test]
fn a_host_network_backend_answers_as_the_service() {
    let cluster = Cluster::new();
    let one = &cluster.nodes[0];
    let a = cluster.pod(0, 10, 300);
    one.allow(&a, PolicyKey::all(1, true));
    serve(one, &[]);
    for (v6, number) in [(false, 2), (true, 4)] {
        let host: IpAddr = if v6 { one.router_v6().into() } else { one.router_v4().into() };
        let front = ServiceKey { address: vip(v6), port: 80, proto: UDP, slot: 0, scope: 0 };
        let entry = ServiceEntry { count: 1, rev_nat: number, ..ServiceEntry::default() };
        let state = BackendState::Active;
        let backend = Backend { address: host, port: 6443, proto: UDP, state, zone: 0 };
        let id = u32::from(number);
        one.datapath.backends().upsert(&id, &backend).unwrap();
        let slot = ServiceEntry { backend: id, ..entry };
        one.datapath.services().upsert(&ServiceKey { slot: 1, ..front }, &slot).unwrap();
        one.datapath.services().upsert(&front, &entry).unwrap();
        let (client, server) = (udp(&a, v6, 0), bind_udp(&one.netns, host, 6443));
        client.connect((vip(v6), 80)).unwrap();
        client.send(b"ask").unwrap();
        let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
        server.send_to(b"answer", peer).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 6);
    }
}

#[test]
fn a_service_without_backends_says_so() {
    let cluster = Cluster::new();
    let one = &cluster.nodes[0];
    // Nothing is allowed: the answer is not from anybody.
    let a = cluster.pod(0, 10, 300);
    serve(one, &[]);
    let mut events = one.datapath.events().unwrap();
    for v6 in [false, true] {
        let front = SocketAddr::new(vip(v6), 80);
        let refused = connect(&a.netns, front).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        for size in [1, 1300] {
            let client = udp(&a, v6, 0);
            client.connect(front).unwrap();
            client.send(&pattern(size)).unwrap();
            let refused = client.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{size} bytes");
        }
        let drop = wait_event(&mut events, |event| match event {
            Event::Drop(drop) => Some(drop),
            _ => None,
        });
        assert_eq!(drop.reason, reason::NO_SERVICE);
        assert_eq!(drop.reason_text(), "Service backend not found");
        assert_eq!(drop.source_identity, a.identity);
    }
}
