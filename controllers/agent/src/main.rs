//! The agent: one for each node, it turns the cluster's objects into what its node's kernel does.
#![forbid(unsafe_code)]

mod api;
mod cni;
mod device;
mod endpoint;
mod events;
mod identity;
mod ipam;
mod ipcache;
mod node;
mod policy;
mod readiness;
mod service;
mod turns;

fn main() {}
