//! The datapath as the agent holds it: programs loaded and attached, maps open.

mod policies;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::EbpfLoader;
use aya::programs::SchedClassifier;
use cilia_maps::{Plain, names};

use crate::blocks::Blocks;
use crate::config::{Config, MapSizes, NodeConfig};
use crate::conntrack::{self, Conntrack};
use crate::endpoint::Endpoints;
use crate::error::Error;
use crate::event::Events;
use crate::fragments::{self, Fragments};
use crate::ipcache::IpCache;
use crate::link::{Hook, Links};
use crate::metrics::{self, MetricKey};
use crate::options::Options;
use crate::pins::{self, Pins};
use crate::service::{Backends, RevNat, Services};
use crate::sys::{self, RawMap};
use crate::table::{Layout, Table};

/// The loaded datapath of a node. Share it in an `Arc`; all methods take `&self`. Dropping it
/// leaves programs attached and maps pinned.
#[derive(Debug)]
pub struct Datapath {
    pins: Pins,
    links: Links,
    sizes: MapSizes,
    ipv4: bool,
    ipv6: bool,
    programs: Vec<(Hook, OwnedFd)>,
    node_config: RawMap,
    policy_maps: RawMap,
    metrics: RawMap,
    conntrack: Conntrack,
    fragments: Fragments,
    endpoints: Table<Endpoints>,
    ipcache: Table<IpCache>,
    services: Table<Services>,
    backends: Table<Backends>,
    rev_nat: Table<RevNat>,
    blocks: Table<Blocks>,
    options: Table<Options>,
    policy_stats: RawMap,
    node: Mutex<Node>,
    // One endpoint's map is made and unmade by one caller at a time.
    policies: Mutex<()>,
}

/// What the programs have been told of the node.
#[derive(Debug)]
struct Node {
    config: NodeConfig,
    /// In place of the configuration's setting.
    audit: Option<bool>,
}

impl Node {
    fn policy_audit(&self) -> bool {
        self.audit.unwrap_or(self.config.policy_audit)
    }
}

impl Datapath {
    /// Opens the pinned maps or makes them, loads the programs, and attaches those of the host
    /// and tunnel devices. Endpoints keep their programs until [`Self::attach_endpoint`].
    pub fn load(config: &Config) -> Result<Self, Error> {
        let pins = Pins::new(&config.bpf_root)?;
        let links = Links::new(&config.bpf_root)?;
        let shapes = pins::shapes(&config.sizes);
        let outgrown = pins.make_room(&shapes)?;
        let programs = load_programs(&pins, &shapes)?;
        pins.carry_over(&outgrown)?;
        let connections = conntrack::MAPS.iter().map(|name| pins.require(name));
        let datagrams = fragments::MAPS.iter().map(|name| pins.require(name));
        let datapath = Self {
            sizes: config.sizes.clone(),
            ipv4: config.ipv4,
            ipv6: config.ipv6,
            programs,
            node_config: pins.require(names::NODE_CONFIG)?,
            policy_maps: pins.require(names::POLICY_MAPS)?,
            metrics: pins.require(names::METRICS)?,
            conntrack: Conntrack::new(connections.collect::<Result<_, _>>()?),
            fragments: Fragments::new(datagrams.collect::<Result<_, _>>()?),
            endpoints: table(&pins)?,
            ipcache: table(&pins)?,
            services: table(&pins)?,
            backends: table(&pins)?,
            rev_nat: table(&pins)?,
            blocks: table(&pins)?,
            options: table(&pins)?,
            policy_stats: pins.require(names::POLICY_STATS)?,
            node: Mutex::new(Node { config: config.node.clone(), audit: None }),
            policies: Mutex::new(()),
            pins,
            links,
        };
        // A replaced outer map is empty: the endpoints' maps are still pinned.
        for endpoint in datapath.policies()? {
            datapath.policy(endpoint)?;
        }
        datapath.set_node(&config.node)?;
        Ok(datapath)
    }

    fn program(&self, hook: Hook) -> Result<BorrowedFd<'_>, Error> {
        let found = self.programs.iter().find(|(of, _)| *of == hook);
        found.map(|(_, fd)| fd.as_fd()).ok_or(Error::NoProgram { program: hook.program() })
    }

    fn attach_node(&self, node: &NodeConfig) -> Result<(), Error> {
        let devices = [
            (Hook::FromOverlay, node.overlay_ifindex, "cilium_vxlan"),
            (Hook::FromHost, node.host_ifindex, "cilium_host"),
        ];
        for (hook, ifindex, device) in devices.into_iter().filter(|(_, ifindex, _)| *ifindex != 0) {
            self.links.attach(hook, self.program(hook)?, ifindex, device)?;
        }
        Ok(())
    }

    /// Tells the programs about their node; attaches to its devices if they are others now.
    pub fn set_node(&self, node: &NodeConfig) -> Result<(), Error> {
        let mut known = self.node();
        known.config.clone_from(node);
        self.write_node(&known)?;
        drop(known);
        self.attach_node(node)
    }

    /// Records what policies say, instead of enforcing it, or enforces them: of all endpoints without a
    /// setting of their own, and whatever [`Self::set_node`] says of it from now on.
    pub fn set_policy_audit(&self, audit: bool) -> Result<(), Error> {
        let mut known = self.node();
        let before = known.audit.replace(audit);
        self.write_node(&known).inspect_err(|_| known.audit = before)
    }

    /// Whether policies are recorded only, for endpoints without a setting of their own.
    pub fn policy_audit(&self) -> bool {
        self.node().policy_audit()
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_node(&self, node: &Node) -> Result<(), Error> {
        let config = NodeConfig { policy_audit: node.policy_audit(), ..node.config.clone() };
        let value = config.encode(self.ipv4, self.ipv6);
        self.node_config.update(&0u32.to_ne_bytes(), value.bytes()).map_err(|source| Error::Map {
            operation: "write",
            map: names::NODE_CONFIG.into(),
            source,
        })
    }

    /// Datagrams in fragments.
    pub fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// What the programs have been told of their node, as their map has it.
    pub fn told(&self) -> Result<cilia_maps::config::NodeConfig, Error> {
        let found = self.node_config.lookup(&0u32.to_ne_bytes());
        let found = found.map_err(|source| Error::Map {
            operation: "read",
            map: names::NODE_CONFIG.into(),
            source,
        })?;
        // An array has all of its entries.
        Ok(found.and_then(|bytes| Plain::from_bytes(&bytes)).unwrap_or_default())
    }

    /// How many entries each pinned map has room for; bytes, for the events' ring.
    pub fn capacities(&self) -> Vec<(&'static str, u32)> {
        pins::shapes(&self.sizes)
            .into_iter()
            .map(|(name, shape)| (name, shape.max_entries))
            .collect()
    }

    /// Puts the programs on an endpoint's device, in place of what a former agent left there.
    pub fn attach_endpoint(&self, ifindex: u32, name: &str) -> Result<(), Error> {
        for hook in [Hook::ToContainer, Hook::FromContainer] {
            self.links.attach(hook, self.program(hook)?, ifindex, name)?;
        }
        Ok(())
    }

    /// Takes the programs off an endpoint's device. The device may be gone already.
    pub fn detach_endpoint(&self, name: &str) -> Result<(), Error> {
        self.links.detach(name)
    }

    /// Devices that have a pinned link, the node's own (`cilium_host`, `cilium_vxlan`) included.
    pub fn attached(&self) -> Result<Vec<String>, Error> {
        self.links.devices()
    }

    /// Local addresses.
    pub fn endpoints(&self) -> Table<Endpoints> {
        self.endpoints.clone()
    }

    /// Prefixes and their identities.
    pub fn ipcache(&self) -> Table<IpCache> {
        self.ipcache.clone()
    }

    /// Prefixes of ipBlocks and their block identities.
    pub fn blocks(&self) -> Table<Blocks> {
        self.blocks.clone()
    }

    /// Settings of single endpoints.
    pub fn options(&self) -> Table<Options> {
        self.options.clone()
    }

    /// Puts the node's policy on these devices of its own, and takes it off all others.
    pub fn guard_devices(&self, devices: &[(u32, String)]) -> Result<(), Error> {
        for (ifindex, name) in devices {
            for hook in [Hook::ToNetdev, Hook::FromNetdev] {
                self.links.attach(hook, self.program(hook)?, *ifindex, name)?;
            }
        }
        for name in self.links.with(Hook::FromNetdev)? {
            if !devices.iter().any(|(_, wanted)| *wanted == name) {
                self.links.detach(&name)?;
            }
        }
        Ok(())
    }

    /// Service frontends and slots.
    pub fn services(&self) -> Table<Services> {
        self.services.clone()
    }

    /// Backends.
    pub fn backends(&self) -> Table<Backends> {
        self.backends.clone()
    }

    /// Frontends by reverse-NAT id.
    pub fn rev_nat(&self) -> Table<RevNat> {
        self.rev_nat.clone()
    }

    /// Connections.
    pub fn conntrack(&self) -> Conntrack {
        self.conntrack.clone()
    }

    /// The event ring. There must be one reader at a time.
    pub fn events(&self) -> Result<Events, Error> {
        Events::open(&self.pins.path(names::EVENTS), self.pins.require(names::EVENTS_LOST)?)
    }

    /// Counters: key, packets, bytes.
    pub fn metrics(&self) -> Result<Vec<(MetricKey, u64, u64)>, Error> {
        let mut counters = Vec::new();
        self.metrics.for_each(|key, value| counters.extend(metrics::decode(key, value))).map_err(
            |source| Error::Map { operation: "list", map: names::METRICS.into(), source },
        )?;
        Ok(counters)
    }

    /// Forgets all connections, endpoints' policies and entries of an address; for tests and for
    /// the removal of an endpoint.
    pub fn forget(&self, endpoint: u16, addresses: &[IpAddr]) -> Result<(), Error> {
        for ip in addresses {
            self.endpoints.remove(ip)?;
            self.conntrack.purge(*ip)?;
        }
        self.remove_policy(endpoint)
    }

    /// Runs a packet (from its Ethernet head on) through a program as if it came by a device, and
    /// gives the verdict and the packet as it left the program: what `cilia` and the tests ask to
    /// see what would become of a packet. Maps and counters change as with a real packet.
    pub fn run(&self, hook: Hook, ifindex: u32, packet: &[u8]) -> Result<(u32, Vec<u8>), Error> {
        self.run_forwarded(hook, ifindex, 0, packet)
    }

    /// As [`Self::run`], for a packet that came into the host by another device.
    pub fn run_forwarded(
        &self,
        hook: Hook,
        ifindex: u32,
        came_by: u32,
        packet: &[u8],
    ) -> Result<(u32, Vec<u8>), Error> {
        // struct __sk_buff: `ingress_ifindex` is word 9, `ifindex` word 10.
        const WORDS: usize = 48;
        let mut context = [0u8; WORDS * 4];
        context[36..40].copy_from_slice(&came_by.to_ne_bytes());
        context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
        sys::test_run(self.program(hook)?, packet, &context)
            .map_err(|source| Error::Run { program: hook.program(), source })
    }
}

fn table<T: Layout>(pins: &Pins) -> Result<Table<T>, Error> {
    let maps = T::MAPS.iter().map(|name| pins.require(name)).collect::<Result<_, _>>()?;
    Ok(Table::new(T::MAPS.first().copied().unwrap_or_default(), maps))
}

fn load_programs(
    pins: &Pins,
    shapes: &[(&'static str, sys::MapShape)],
) -> Result<Vec<(Hook, OwnedFd)>, Error> {
    let mut loader = EbpfLoader::new();
    for (name, shape) in shapes {
        loader.map_pin_path(name, pins.path(name));
        loader.map_max_entries(name, shape.max_entries);
    }
    let mut object = loader.load(crate::OBJECT)?;
    let mut programs = Vec::new();
    for hook in Hook::ALL {
        let name = hook.program();
        let refused = |source| Error::Program { program: name, source: Box::new(source) };
        let program = object.program_mut(name).ok_or(Error::NoProgram { program: name })?;
        let program: &mut SchedClassifier = program.try_into().map_err(refused)?;
        program.load().map_err(refused)?;
        let fd = program.fd().map_err(refused)?.as_fd().try_clone_to_owned();
        programs.push((hook, fd.map_err(|source| Error::Run { program: name, source })?));
    }
    Ok(programs)
}
