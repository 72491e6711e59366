//! Shows answers as Cilium's tools do: tables for people; JSON, YAML and `JSONPath` for programs.
//!
//! The operator's commands print with it, too.
#![forbid(unsafe_code)]

pub mod jsonpath;
pub mod output;
pub mod table;
