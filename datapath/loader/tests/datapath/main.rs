//! The datapath on a real kernel: single packets through single programs, and real packets between
//! namespaces. Needs root.

mod bench;
mod blocks;
mod capture;
mod classifiers;
mod cluster;
mod forgeries;
mod forwarding;
mod frontends;
mod heads;
mod host;
mod loading;
mod namespace;
mod packet;
mod policies;
mod services;
mod throughput;
mod traffic;
mod translation;
mod verdicts;
mod worlds;
