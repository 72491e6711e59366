//! The scenarios of policy-scenarios.md that concern addresses, identities and ports, from the
//! objects as users write them to the verdict that the kernel's lookup would give.

mod cluster;
mod directions;
mod edges;
mod faults;
mod peers;
mod ports;
mod unbuilt;
