//! The node's network devices: what they must be like, and the calls that make them so.
//!
//! Every function here makes the kernel match what it is given, whatever was there before, and
//! changes nothing that is right already: start, repair and update are one path.

mod error;
pub mod host;
pub mod masquerade;
pub mod mtu;
pub mod name;
pub mod netlink;
mod netlink_route;
pub mod netns;
pub mod pod;
pub mod routes;
pub mod sysctl;
#[cfg(test)]
pub(crate) mod testing;

pub use error::Error;
pub use netlink::{Link, Netlink, Route};
pub use sysctl::Sysctl;
