//! A node on a bench: the programs with two endpoints, to be fed one packet at a time.

use std::net::IpAddr;
use std::sync::Mutex;

use cilia_loader::event::VerdictEvent;
use cilia_loader::testing::{self, BpfFs};
use cilia_loader::{
    Backend, BackendState, Config, Datapath, EndpointInfo, Event, Events, Frontend, Hook,
    NodeConfig, PolicyEntry, PolicyKey, RemoteEndpoint, ServiceEntry, ServiceKey,
};

use crate::namespace::Namespace;
use crate::packet::{Packet, Seen, see};

pub(crate) const PASS: u32 = 0;
pub(crate) const DROP: u32 = 2;
pub(crate) const REDIRECT: u32 = 7;

pub(crate) const A4: &str = "10.0.0.10";
pub(crate) const A6: &str = "fd00::10";
pub(crate) const B4: &str = "10.0.0.11";
pub(crate) const B6: &str = "fd00::11";
pub(crate) const REMOTE4: &str = "10.0.1.12";
pub(crate) const WORLD4: &str = "192.0.2.1";
pub(crate) const WORLD6: &str = "2001:db8::1";
pub(crate) const VIP4: &str = "10.96.0.10";
pub(crate) const VIP6: &str = "fd00:ffff::10";
pub(crate) const A: u16 = 10;
pub(crate) const B: u16 = 11;
pub(crate) const ID_A: u32 = 300;
pub(crate) const ID_B: u32 = 301;
pub(crate) const ID_REMOTE: u32 = 302;
pub(crate) const MAC_B: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// A node whose only device is `lo`, which is the device of every endpoint.
pub(crate) struct Bench {
    netns: Namespace,
    pub(crate) datapath: Datapath,
    events: Mutex<Events>,
    _bpf: BpfFs,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// With another configuration than the usual one.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let bpf = BpfFs::mount();
        let mut config = bpf.config();
        config.node.router_v6 = Some("fd00::1".parse().unwrap());
        config.node.sctp = true;
        change(&mut config);
        let datapath = testing::load(&config);
        let (mac, node_mac) = (MAC_B, NODE_MAC);
        for (address, id, identity) in [(A4, A, ID_A), (A6, A, ID_A), (B4, B, ID_B), (B6, B, ID_B)]
        {
            let info = EndpointInfo { id, ifindex: 1, mac, node_mac, identity, host: false };
            datapath.endpoints().upsert(&ip(address), &info).unwrap();
        }
        let remote = RemoteEndpoint { identity: ID_REMOTE, ..RemoteEndpoint::default() };
        datapath.ipcache().upsert(&(ip("10.0.1.0"), 24), &remote).unwrap();
        for endpoint in [A, B] {
            datapath.policy(endpoint).unwrap();
        }
        let events = Mutex::new(datapath.events().unwrap());
        Self { netns: Namespace::new(), datapath, events, _bpf: bpf }
    }

    pub(crate) fn open() -> Self {
        let bench = Self::new();
        for endpoint in [A, B] {
            for egress in [false, true] {
                bench.rule(endpoint, PolicyKey::all(0, egress), false);
            }
        }
        bench
    }

    /// Changes what the programs know of their node.
    pub(crate) fn set_node(&self, node: &NodeConfig) {
        self.netns.run(|| self.datapath.set_node(node)).unwrap();
    }

    pub(crate) fn rule(&self, endpoint: u16, key: PolicyKey, deny: bool) {
        let table = self.datapath.policy(endpoint).unwrap();
        table.upsert(&key, &PolicyEntry { deny, ..PolicyEntry::default() }).unwrap();
    }

    pub(crate) fn run(&self, hook: Hook, frame: &[u8]) -> (u32, Vec<u8>) {
        self.run_by(hook, 0, frame)
    }

    fn run_by(&self, hook: Hook, came_by: u32, frame: &[u8]) -> (u32, Vec<u8>) {
        self.netns.run(|| self.datapath.run_forwarded(hook, 1, came_by, frame)).unwrap()
    }

    /// The reason of the drop, or what left the program.
    pub(crate) fn out(&self, packet: &Packet) -> Result<(u32, Vec<u8>), u8> {
        self.through(Hook::FromContainer, &packet.frame())
    }

    pub(crate) fn through(&self, hook: Hook, frame: &[u8]) -> Result<(u32, Vec<u8>), u8> {
        self.through_by(hook, 0, frame)
    }

    /// What becomes of a packet that came into the host by a device.
    pub(crate) fn forwarded(&self, hook: Hook, by: u32, packet: &Packet) -> Result<u32, u8> {
        self.through_by(hook, by, &packet.frame()).map(|(code, _)| code)
    }

    fn through_by(&self, hook: Hook, by: u32, frame: &[u8]) -> Result<(u32, Vec<u8>), u8> {
        let mut events = self.events.lock().unwrap();
        while events.next().is_some() {}
        let (code, frame) = self.run_by(hook, by, frame);
        if code != DROP {
            return Ok((code, frame));
        }
        while let Some(event) = events.next() {
            if let Event::Drop(drop) = event {
                return Err(drop.reason);
            }
        }
        panic!("a drop without its event");
    }

    /// What policy said of a packet, at each endpoint that was asked.
    pub(crate) fn verdicts(&self, hook: Hook, packet: &Packet) -> Vec<VerdictEvent> {
        let mut events = self.events.lock().unwrap();
        while events.next().is_some() {}
        self.run(hook, &packet.frame());
        let told = std::iter::from_fn(|| events.next());
        told.filter_map(|event| if let Event::Verdict(one) = event { Some(one) } else { None })
            .collect()
    }

    pub(crate) fn verdict(&self, packet: &Packet) -> Result<u32, u8> {
        self.out(packet).map(|(code, _)| code)
    }

    pub(crate) fn seen(&self, packet: &Packet) -> Seen {
        see(&self.out(packet).unwrap_or_else(|reason| panic!("dropped for {reason}")).1)
    }

    pub(crate) fn service(&self, front: &str, proto: u8, number: u16, to: &str) {
        let key = ServiceKey { address: ip(front), port: 80, proto, slot: 0, scope: 0 };
        let entry = ServiceEntry { count: 1, rev_nat: number, ..ServiceEntry::default() };
        let id = u32::from(number);
        let state = BackendState::Active;
        let backend = Backend { address: ip(to), port: 8080, proto, state, zone: 0 };
        self.datapath.backends().upsert(&id, &backend).unwrap();
        let frontend = Frontend { address: ip(front), port: 80 };
        self.datapath.rev_nat().upsert(&number, &frontend).unwrap();
        let slot = ServiceEntry { backend: id, ..entry };
        self.datapath.services().upsert(&ServiceKey { slot: 1, ..key }, &slot).unwrap();
        self.datapath.services().upsert(&key, &entry).unwrap();
    }
}
