//! The datapath on a real kernel: single packets through single programs, and real packets between
//! namespaces. Needs root.

mod bpffs;
mod loading;
