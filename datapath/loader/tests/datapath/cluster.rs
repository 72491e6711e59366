//! Two nodes with pods: namespaces, veths, a VXLAN device, and the real datapath on them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use cilia_loader::testing::BpfFs;
use cilia_loader::{
    Datapath, EndpointInfo, Event, Events, NodeConfig, PolicyEntry, PolicyKey, RemoteEndpoint,
};

use crate::namespace::Namespace;

/// How long a test waits for what must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// How long it waits for what must not.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

/// A node: its namespace is what hosts and routes, its datapath what forwards.
pub(crate) struct Node {
    pub(crate) netns: Namespace,
    pub(crate) datapath: Datapath,
    pub(crate) config: NodeConfig,
    number: u8,
    address: IpAddr,
    // Unmounted after the datapath is closed.
    bpf: BpfFs,
}

/// A pod on a node.
pub(crate) struct Pod {
    pub(crate) netns: Namespace,
    pub(crate) id: u16,
    pub(crate) identity: u32,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
    pub(crate) device: String,
}

impl Pod {
    pub(crate) fn ip(&self, v6: bool) -> IpAddr {
        if v6 { self.v6.into() } else { self.v4.into() }
    }
}

/// Two nodes on one wire.
pub(crate) struct Cluster {
    pub(crate) nodes: [Node; 2],
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self::over(false)
    }

    /// With IPv4 or IPv6 between the nodes.
    pub(crate) fn over(v6: bool) -> Self {
        let (one, two) = (Namespace::new(), Namespace::new());
        one.ip(&[format!("link add eth0 mtu 1500 type veth peer name eth0 netns {}", two.path())]);
        let nodes = [Node::new(1, v6, one), Node::new(2, v6, two)];
        for (node, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            for (prefix, identity) in [(other.router_v4().into(), 6), (other.router_v6().into(), 6)]
            {
                let whole = if IpAddr::is_ipv4(&prefix) { 32 } else { 128 };
                node.remember((prefix, whole), identity, Some(other.address()));
            }
            let whole = if other.address().is_ipv4() { 32 } else { 128 };
            node.remember((other.address(), whole), 6, None);
        }
        for node in &nodes {
            node.netns.wait_up("eth0");
            node.netns.wait_up("cilium_host");
        }
        Self { nodes }
    }

    /// Starts a pod on a node and tells the other of it. Nothing may reach or leave it yet.
    pub(crate) fn pod(&self, node: usize, id: u16, identity: u32) -> Pod {
        let pod = self.nodes[node].pod(id, identity);
        for (number, other) in self.nodes.iter().enumerate() {
            for (ip, whole) in [(IpAddr::from(pod.v4), 32), (IpAddr::from(pod.v6), 128)] {
                let tunnel = (number != node).then(|| self.nodes[node].address());
                other.remember((ip, whole), identity, tunnel);
            }
        }
        pod
    }
}

impl Node {
    fn new(number: u8, v6: bool, netns: Namespace) -> Self {
        netns.sysctl("ipv4/ip_forward", "1");
        netns.sysctl("ipv6/conf/all/forwarding", "1");
        netns.sysctl("ipv4/conf/all/rp_filter", "0");
        netns.sysctl("ipv6/conf/all/accept_dad", "0");
        netns.sysctl("ipv6/conf/default/accept_dad", "0");
        let (address, length) = node_address(number, v6);
        let nodad = if v6 { "nodad" } else { "" };
        let other = 3 - number;
        let to_other = "dev cilium_host mtu 1430 src";
        netns.ip(&[
            format!("addr add {address}/{length} dev eth0 {nodad}"),
            "link set eth0 up".into(),
            "link add cilium_host mtu 1500 type veth peer name cilium_net".into(),
            "link add cilium_vxlan type vxlan external dstport 8472".into(),
            // No ARP: the program takes what is sent there.
            "link set cilium_host up arp off".into(),
            "link set cilium_net up".into(),
            "link set cilium_vxlan up".into(),
            format!("addr add 10.0.{number}.1/32 dev cilium_host"),
            format!("addr add fd00:{number}::1/128 dev cilium_host nodad"),
            format!("route add 10.0.{other}.0/24 {to_other} 10.0.{number}.1"),
            format!("route add fd00:{other}::/64 {to_other} fd00:{number}::1"),
        ]);
        let config = NodeConfig {
            host_ifindex: netns.device("cilium_host").0,
            net_ifindex: netns.device("cilium_net").0,
            overlay_ifindex: netns.device("cilium_vxlan").0,
            router_v4: Some(Ipv4Addr::new(10, 0, number, 1)),
            router_v6: Some(Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, 1)),
            ..NodeConfig::default()
        };
        let bpf = BpfFs::mount();
        let datapath = netns.run(|| bpf.load(config.clone()));
        let node = Self { netns, datapath, config, number, address, bpf };
        for ip in [node.router_v4().into(), node.router_v6().into(), node.address()] {
            let info = EndpointInfo { host: true, identity: 1, ..EndpointInfo::default() };
            node.datapath.endpoints().upsert(&ip, &info).unwrap();
        }
        node
    }

    /// Loads the datapath once more, as an agent does that starts again.
    pub(crate) fn reload(&self) -> Datapath {
        self.netns.run(|| self.bpf.load(self.config.clone()))
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn router_v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, self.number, 1)
    }

    pub(crate) fn router_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, self.number.into(), 0, 0, 0, 0, 0, 1)
    }

    fn remember(&self, prefix: (IpAddr, u8), identity: u32, tunnel: Option<IpAddr>) {
        let entry = RemoteEndpoint { identity, tunnel, key: 0 };
        self.datapath.ipcache().upsert(&prefix, &entry).unwrap();
    }

    fn pod(&self, id: u16, identity: u32) -> Pod {
        let number = self.number;
        let (host, v4) = (u8::try_from(id).unwrap(), [10, 0, number]);
        let v4 = Ipv4Addr::new(v4[0], v4[1], v4[2], host);
        let v6 = Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, id);
        let device = format!("lxc{id:012x}");
        let netns = Namespace::new();
        netns.sysctl("ipv6/conf/default/accept_dad", "0");
        self.netns.ip(&[
            format!("link add {device} mtu 1500 type veth peer name eth0 netns {}", netns.path()),
            format!("link set {device} up"),
        ]);
        let (ifindex, node_mac) = self.netns.device(&device);
        let mac = netns.device("eth0").1;
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let (inside, outside) = (text(mac), text(node_mac));
        let mut lines = vec!["link set eth0 up".into()];
        for (address, router) in [
            (format!("{v4}/32"), self.router_v4().to_string()),
            (format!("{v6}/128 nodad"), self.router_v6().to_string()),
        ] {
            lines.extend([
                format!("addr add {address} dev eth0"),
                format!("neigh add {router} lladdr {outside} dev eth0 nud permanent"),
                format!("route add {router} dev eth0"),
                format!("route add default via {router} dev eth0 mtu 1430"),
            ]);
        }
        netns.ip(&lines);
        lines.clear();
        for ip in [IpAddr::from(v4), IpAddr::from(v6)] {
            lines.extend([
                format!("route add {ip} dev {device}"),
                format!("neigh add {ip} lladdr {inside} dev {device} nud permanent"),
            ]);
            let info = EndpointInfo { id, ifindex, mac, node_mac, identity, host: false };
            self.datapath.endpoints().upsert(&ip, &info).unwrap();
        }
        self.netns.ip(&lines);
        netns.wait_up("eth0");
        self.netns.wait_up(&device);
        self.datapath.policy(id).unwrap();
        self.netns.run(|| self.datapath.attach_endpoint(ifindex, &device)).unwrap();
        Pod { netns, id, identity, v4, v6, device }
    }

    /// Lets an endpoint do what a key says.
    pub(crate) fn allow(&self, pod: &Pod, key: PolicyKey) {
        self.datapath.policy(pod.id).unwrap().upsert(&key, &PolicyEntry::default()).unwrap();
    }

    /// No longer lets it.
    pub(crate) fn forbid(&self, pod: &Pod, key: PolicyKey) {
        assert!(self.datapath.policy(pod.id).unwrap().remove(&key).unwrap());
    }

    /// Lets an endpoint exchange everything with anybody.
    pub(crate) fn allow_all(&self, pod: &Pod) {
        for egress in [false, true] {
            self.allow(pod, PolicyKey::all(0, egress));
        }
    }
}

/// A node's address on the wire between nodes, and the length of its prefix.
fn node_address(number: u8, v6: bool) -> (IpAddr, u8) {
    if v6 {
        (Ipv6Addr::new(0xfd00, 0xaaaa, 0, 0, 0, 0, 0, number.into()).into(), 64)
    } else {
        (Ipv4Addr::new(192, 168, 0, number).into(), 24)
    }
}

/// The first event for which `pick` has something, within the limit.
pub(crate) fn wait_event<T>(events: &mut Events, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        while let Some(event) = events.next() {
            if let Some(found) = pick(event) {
                return found;
            }
        }
        std::thread::yield_now();
    }
    panic!("no such event within {LIMIT:?}");
}
