//! Says what is wrong with a setting: the key, where it was set, the value and what is allowed.

use std::fmt;
use std::path::PathBuf;

/// Where a value comes from, in descending precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// This environment variable.
    Environment(String),
    /// The file of `--config`.
    ConfigFile(PathBuf),
    /// This file of `--config-dir`.
    ConfigDir(PathBuf),
    /// The flag's default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => write!(f, "the command line"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::ConfigFile(path) => write!(f, "config file {}", path.display()),
            Self::ConfigDir(path) => write!(f, "{}", path.display()),
            Self::Default => write!(f, "its default"),
        }
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag that no table has.
    #[error("unknown flag {flag}{}", did_you_mean(nearest.as_deref()))]
    UnknownFlag {
        /// As written.
        flag: String,
        /// The known flag that is closest to it, if one is close.
        nearest: Option<String>,
    },
    /// A flag that is not a bool at the end of the command line.
    #[error("flag --{key} needs a value: {allowed}")]
    MissingValue {
        /// The flag.
        key: String,
        /// What would be a value.
        allowed: String,
    },
    /// A word that is not a flag.
    #[error("unexpected argument {0:?}: every setting is a flag, see --help")]
    Argument(String),
    /// A value that the key does not allow.
    #[error("{key}: {value:?}, set by {origin}, is not allowed: {allowed}")]
    BadValue {
        /// The flag, or the key in a file.
        key: String,
        /// Who set it.
        origin: Origin,
        /// What it was set to.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file or folder named by `--config` or `--config-dir` that cannot be read.
    #[error("read {}: {cause}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// A config file that is not a YAML map of keys to values.
    #[error("parse config file {}: {cause}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        cause: String,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(|| ": see --help".into(), |name| format!(": did you mean --{name}?"))
}
