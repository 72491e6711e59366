//! The agent: one for each node, it turns the cluster's objects into what its node's kernel does.
#![forbid(unsafe_code)]

mod readiness;

fn main() {}
