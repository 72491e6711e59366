//! The agent: one for each node, it turns the cluster's objects into what its node's kernel does.
#![forbid(unsafe_code)]

mod cni;
mod device;
mod endpoint;
mod identity;
mod ipam;
mod node;
mod readiness;
mod turns;

fn main() {}
