//! Decides what a failure of the cluster tool says: operation, object, cause.

use std::path::{Path, PathBuf};

/// Everything that can go wrong while a cluster is built, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A program could not be started or ended with an error.
    #[error("`{command}` failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// Exit status, or why it did not start.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// Something did not become true in time.
    #[error("{what} did not happen within {limit_s} s: {state}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit_s: u64,
        /// What was seen last.
        state: String,
    },
    /// The machine lacks something.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// What.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// The user asked for something impossible.
    #[error("{0}")]
    Invalid(String),
    /// A certificate could not be made.
    #[error("cannot make certificate {name}: {source}")]
    Certificate {
        /// Whose.
        name: String,
        /// Why.
        source: rcgen::Error,
    },
}

/// Names the failed operation and its object: `fs::read(p).map_err(io("read", p))`.
pub(crate) fn io<'a>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { operation, path: path.to_owned(), source }
}
