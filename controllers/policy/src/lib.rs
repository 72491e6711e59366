//! Decides what packets may pass: rules and identities in, entries of policy maps out.
//!
//! [`cilium`], [`clusterwide`] and [`kubernetes`] read the objects into [`rule::Rule`]s, or say
//! what is wrong with them; [`Repository`] holds the rules beside the identities and answers with
//! the map of an endpoint. Nothing here knows a clock, a client or a map in the kernel.
#![forbid(unsafe_code)]

mod cidr;
mod cnp;
mod columns;
mod compile;
pub mod config;
mod error;
mod icmp;
mod item;
mod knp;
pub mod l4;
mod lenient;
pub mod map;
mod names;
mod repository;
pub mod rule;
pub mod selector;
mod selectors;
mod toports;
mod translate;

pub use cidr::SCOPE as CIDR_SCOPE;
pub use cnp::{Parsed, cilium, clusterwide};
pub use config::{Config, Mode};
pub use error::{Error, Note};
pub use knp::kubernetes;
pub use lenient::Lenient;
pub use map::{Difference, EndpointPolicy, PolicyEntry, PolicyKey, Verdict};
pub use names::{ClusterPorts, NamedPorts, PortName};
pub use repository::Repository;
pub use rule::{Direction, Kind, PolicyId};
