//! Pods reach each other: same node, other node, both families, every protocol, small and large.

use std::net::SocketAddr;

use cilia_loader::{NodeConfig, PolicyKey};

use crate::cluster::{Cluster, Node, Pod};
use crate::traffic::{bind_udp, connect, echo_server, pattern, ping, round_trip, udp};

fn tcp(from: &Pod, to: &Pod, v6: bool) {
    let address = SocketAddr::new(to.ip(v6), 8080);
    echo_server(&to.netns, address);
    let mut stream = connect(&from.netns, address).unwrap();
    round_trip(&mut stream, b"small");
    round_trip(&mut stream, &pattern(4 << 20));
}

fn datagrams(from: &Pod, to: &Pod, v6: bool) {
    let (client, server) = (udp(from, v6, 0), udp(to, v6, 5353));
    // The largest that UDP over IPv4 carries.
    for size in [1, 1400, 65507] {
        let bytes = pattern(size);
        let mut buffer = vec![0; 65536];
        client.send_to(&bytes, (to.ip(v6), 5353)).unwrap();
        let (count, peer) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..count] == bytes, "{size} bytes, {count} came");
        server.send_to(&bytes, peer).unwrap();
        let (count, peer) = client.recv_from(&mut buffer).unwrap();
        assert!(buffer[..count] == bytes, "{size} bytes, {count} came back");
        assert_eq!(peer.ip(), to.ip(v6));
    }
}

fn pings(from: &Pod, to: &Pod, v6: bool) {
    for size in [56, 1400, 65507] {
        let (ok, output) = ping(&from.netns, to.ip(v6), size);
        assert!(ok, "{size} bytes to {}: {output}", to.ip(v6));
    }
}

fn exchange(from: &Pod, to: &Pod) {
    for v6 in [false, true] {
        tcp(from, to, v6);
        datagrams(from, to, v6);
        pings(from, to, v6);
    }
}

fn open(node: &Node, pods: &[&Pod]) {
    for pod in pods {
        node.allow_all(pod);
    }
}

#[test]
fn on_one_node() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301));
    open(&cluster.nodes[0], &[&a, &b]);
    exchange(&a, &b);
}

#[test]
fn across_nodes() {
    across(&Cluster::over(false));
}

#[test]
fn across_nodes_on_ipv6() {
    across(&Cluster::over(true));
}

fn across(cluster: &Cluster) {
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    open(&cluster.nodes[0], &[&a]);
    open(&cluster.nodes[1], &[&b]);
    exchange(&a, &b);
}

#[test]
fn what_a_node_asks_by_the_tunnel_is_answered_by_it() {
    for v6 in [false, true] {
        let cluster = Cluster::over(v6);
        let [one, two] = &cluster.nodes;
        let pod = cluster.pod(0, 10, 300);
        one.allow(&pod, PolicyKey::all(6, false));
        // From outside, an answer would have another source than was asked.
        two.netns.command("nft add table inet test");
        two.netns.command(
            "nft add chain inet test outside { type filter hook prerouting priority 0 ; }",
        );
        let family = if v6 { "ip6" } else { "ip" };
        let rule = format!("iifname eth0 {family} saddr {} drop", pod.ip(v6));
        two.netns.command(&format!("nft add rule inet test outside {rule}"));
        let (client, server) = (bind_udp(&two.netns, two.address(), 0), udp(&pod, v6, 7000));
        client.send_to(b"ask", (pod.ip(v6), 7000)).unwrap();
        let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(peer.ip(), two.address());
        server.send_to(b"answer", peer).unwrap();
        assert_eq!(client.recv_from(&mut [0; 8]).unwrap().0, 6);
    }
}

#[test]
fn a_new_tunnel_device_gets_its_program() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    let [one, two] = &cluster.nodes;
    open(one, &[&a]);
    open(two, &[&b]);
    two.netns.ip(&[
        "link del cilium_vxlan",
        "link add cilium_vxlan type vxlan external dstport 8472",
        "link set cilium_vxlan up",
    ]);
    let overlay_ifindex = two.netns.device("cilium_vxlan").0;
    assert_ne!(overlay_ifindex, two.config.overlay_ifindex);
    let node = NodeConfig { overlay_ifindex, ..two.config.clone() };
    two.netns.run(|| two.datapath.set_node(&node)).unwrap();
    let (ok, output) = ping(&a.netns, b.ip(false), 56);
    assert!(ok, "{output}");
}

#[test]
fn between_host_and_pods() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (near, far) = (cluster.pod(0, 10, 300), cluster.pod(1, 11, 301));
    open(one, &[&near]);
    open(two, &[&far]);
    for v6 in [false, true] {
        let router = if v6 { one.router_v6().into() } else { one.router_v4().into() };
        for pod in [&near, &far] {
            let (ok, output) = ping(&one.netns, pod.ip(v6), 1400);
            assert!(ok, "host to {}: {output}", pod.ip(v6));
            let (ok, output) = ping(&pod.netns, router, 1400);
            assert!(ok, "{} to host: {output}", pod.ip(v6));
            let (client, server) = (bind_udp(&one.netns, router, 0), udp(pod, v6, 7000));
            client.send_to(b"x", (pod.ip(v6), 7000)).unwrap();
            let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
            server.send_to(b"y", peer).unwrap();
            assert_eq!(client.recv_from(&mut [0; 8]).unwrap().0, 1);
        }
    }
}
