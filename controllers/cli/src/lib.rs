//! Shows answers as Cilium's tools do: tables for people; JSON, YAML and `JSONPath` for programs.
//!
//! The operator's commands print with it, too.
#![forbid(unsafe_code)]

#[macro_use]
pub mod output;

pub mod jsonpath;
pub mod table;
