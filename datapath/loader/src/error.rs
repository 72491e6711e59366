//! What can go wrong between the agent and its datapath.

use std::io;
use std::path::PathBuf;

/// An operation on the datapath that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of the BPF file system could not be made.
    #[error("create directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory is on another kind of file system.
    #[error("{path} is not on a BPF file system; mount one there: mount -t bpf bpf {path}")]
    NotBpf {
        /// The directory.
        path: PathBuf,
    },
    /// A pin could not be listed, opened, made or removed.
    #[error("{operation} pin {path}: {source}")]
    Pin {
        /// What was tried.
        operation: &'static str,
        /// The pin.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A map's entry could not be read or written.
    #[error("{operation} entry of map {map}: {source}")]
    Map {
        /// What was tried.
        operation: &'static str,
        /// The map's name.
        map: String,
        /// Why.
        source: io::Error,
    },
    /// The map is full.
    #[error("add entry to map {map}: it is full, its size is {max_entries}")]
    Full {
        /// The map's name.
        map: String,
        /// How many entries it has room for.
        max_entries: u32,
    },
    /// A map could not be made.
    #[error("create map {map}: {source}")]
    CreateMap {
        /// The map's name.
        map: String,
        /// Why.
        source: io::Error,
    },
    /// The embedded object was not accepted.
    #[error("load datapath object: {0}")]
    Object(#[from] aya::EbpfError),
    /// The object lacks a program that it must have.
    #[error("load program {program}: the object has no such classifier")]
    NoProgram {
        /// The program's name.
        program: &'static str,
    },
    /// The kernel refused a program.
    #[error("load program {program}: {source}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// Why, with the verifier's log.
        source: Box<aya::programs::ProgramError>,
    },
    /// A program could not be attached to a device.
    #[error("attach {program} to device {device}: {source}")]
    Attach {
        /// The program's name.
        program: &'static str,
        /// The device.
        device: String,
        /// Why.
        source: io::Error,
    },
    /// The event ring could not be opened.
    #[error("open event ring {path}: {source}")]
    Events {
        /// Its pin.
        path: PathBuf,
        /// Why.
        source: Box<aya::maps::MapError>,
    },
    /// A packet could not be run through a program.
    #[error("run a packet through {program}: {source}")]
    Run {
        /// The program's name.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
}
