//! Kernel settings of the network namespace of the calling thread.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::Error;

/// Access to `/proc/sys`, or to where the node's is mounted (flag `procfs`).
#[derive(Debug, Clone)]
pub struct Sysctl {
    root: PathBuf,
}

impl Sysctl {
    /// Settings below `procfs`, e.g. `/host/proc`.
    pub fn new(procfs: &str) -> Self {
        Self { root: PathBuf::from(procfs).join("sys") }
    }

    /// Makes a setting have `value`; one that has it is not written, so that a read-only
    /// `/proc/sys` is fine on a node that is set up right.
    ///
    /// The parts are joined with dots in messages: device names may contain dots themselves.
    pub fn set(&self, parts: &[&str], value: &str) -> Result<(), Error> {
        let path = parts.iter().fold(self.root.clone(), |path, part| path.join(part));
        if fs::read_to_string(&path).is_ok_and(|present| present.trim_end() == value) {
            return Ok(());
        }
        fs::write(&path, value).map_err(|cause| Error::Sysctl {
            name: parts.join("."),
            value: value.to_owned(),
            cause,
        })
    }

    /// The same for a setting that a kernel without IPv6 doesn't have.
    pub fn set_if_there(&self, parts: &[&str], value: &str) -> Result<(), Error> {
        match self.set(parts, value) {
            Err(Error::Sysctl { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}
