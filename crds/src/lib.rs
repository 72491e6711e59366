//! Cilium's API as Rust types: one file per kind, and the vocabulary they share.
#![forbid(unsafe_code)]

pub mod identity_number;
pub mod labels;

pub use identity_number::NumericIdentity;
pub use labels::{LabelKey, Labels};
