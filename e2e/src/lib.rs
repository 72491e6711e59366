//! A real Kubernetes cluster on one machine, and what is needed to test Cilia on it.
//!
//! A node is a network namespace with its own mount namespace and cgroup; in it run the same
//! containerd, kubelet and kube-proxy as anywhere. [`Cluster`] brings clusters up and down;
//! [`scenario`] holds what the tests share.
#![forbid(unsafe_code)]

mod cgroup;
mod cluster;
mod command;
pub mod conformance;
mod control_plane;
mod dns;
mod error;
mod image;
mod layout;
mod node;
mod pins;
mod pki;
mod place;
mod progress;
mod requirements;
pub mod scenario;
mod teardown;
mod tools;
pub mod wait;

pub use cgroup::Cgroups;
pub use cluster::{Cluster, DaemonStatus, Options};
pub use control_plane::ControlPlane;
pub use error::Error;
pub use image::{Image, catalog};
pub use layout::{Layout, STATE_ROOT, WORLD};
pub use node::Node;
pub use place::Place;
pub use progress::Progress;
pub use tools::{Suite, Tools};
