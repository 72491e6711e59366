//! Local cluster.
fn main() {}
