//! What the tests share: Cilia on a cluster, pods on it, traffic between them, and a look at what
//! is on the wire, in the agents and in the API server.

pub mod agent;
pub mod audit;
pub mod capture;
pub mod chart;
pub mod inside;
pub mod live;
pub mod pods;
pub mod runner;
mod stage;
pub mod traffic;

pub use stage::Stage;
