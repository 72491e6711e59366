//! Decides which replica works: the one that holds the Lease, and for how long it may believe so.

mod leadership;

pub use leadership::Leadership;
