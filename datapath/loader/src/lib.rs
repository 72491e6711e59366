//! Loads, attaches and pins the datapath, and gives typed access to its maps.
//!
//! ```no_run
//! # fn main() -> Result<(), cilia_loader::Error> {
//! use std::collections::BTreeMap;
//! use cilia_loader::{Config, Datapath, MapSizes, NodeConfig, RemoteEndpoint, converge};
//!
//! let datapath = Datapath::load(&Config {
//!     bpf_root: "/sys/fs/bpf".into(),
//!     ipv4: true,
//!     ipv6: true,
//!     sizes: MapSizes::default(),
//!     node: NodeConfig { host_ifindex: 2, overlay_ifindex: 4, ..NodeConfig::default() },
//! })?;
//! let desired = BTreeMap::from([(
//!     ("10.0.1.7".parse().unwrap(), 32),
//!     RemoteEndpoint { identity: 4711, tunnel: Some("192.168.0.2".parse().unwrap()), key: 0 },
//! )]);
//! converge(&datapath.ipcache(), &desired)?;
//! # Ok(())
//! # }
//! ```

mod address;
mod blocks;
mod config;
mod conntrack;
mod datapath;
mod endpoint;
mod error;
pub mod event;
mod fragments;
mod ipcache;
mod link;
mod metrics;
mod options;
mod pins;
mod policy;
mod service;
mod sys;
mod table;
#[cfg(feature = "testing")]
pub mod testing;

pub use blocks::Blocks;
pub use cilia_maps as maps;
pub use config::{Config, Lives, MapSizes, NodeConfig};
pub use conntrack::{Collected, Connection, ConnectionState, Conntrack, Opened};
pub use datapath::Datapath;
pub use endpoint::{EndpointInfo, Endpoints};
pub use error::Error;
pub use event::{Direction, Event, Events};
pub use fragments::{Datagram, Fragments};
pub use ipcache::{IpCache, RemoteEndpoint};
pub use link::Hook;
pub use metrics::MetricKey;
pub use options::{EndpointOptions, Options};
pub use policy::{Policy, PolicyEntry, PolicyKey, PolicyStats};
pub use service::{
    Backend, BackendState, Backends, Frontend, RevNat, ServiceEntry, ServiceKey, Services,
};
pub use table::{Changes, Entry, Layout, Table, converge};

/// The compiled programs.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cilia-ebpf.o"));
