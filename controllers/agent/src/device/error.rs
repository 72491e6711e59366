//! What can go wrong with devices.

use std::path::PathBuf;

/// A failed operation on a device, a route, a namespace or a kernel setting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a netlink request.
    #[error("{operation} {object}: {cause}")]
    Netlink {
        /// What was asked.
        operation: &'static str,
        /// Of what.
        object: String,
        /// The kernel's answer.
        cause: std::io::Error,
    },
    /// A device is not there.
    #[error("find device {0}: no such device")]
    NoDevice(String),
    /// A network namespace can't be entered.
    #[error("enter network namespace {}: {cause}", path.display())]
    Netns {
        /// Where it was said to be.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// A kernel setting can't be read or written.
    #[error("set sysctl {name} to {value}: {cause}")]
    Sysctl {
        /// The setting, with dots.
        name: String,
        /// What it should be.
        value: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// The packet filter's rules can't be loaded.
    #[error("load nftables table {table}: {cause}")]
    Nftables {
        /// The table.
        table: &'static str,
        /// What nft said.
        cause: String,
    },
}

impl Error {
    /// What the kernel said to a netlink request.
    pub(super) fn netlink(
        operation: &'static str,
        object: impl Into<String>,
        error: &rtnetlink::Error,
    ) -> Self {
        let cause = match error {
            rtnetlink::Error::NetlinkError(message) => message.to_io(),
            other => std::io::Error::other(other.to_string()),
        };
        Self::Netlink { operation, object: object.into(), cause }
    }

    /// Whether the kernel answered that the object does not exist.
    pub fn is_absent(&self) -> bool {
        use nix::libc::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
        match self {
            Self::Netlink { cause, .. } | Self::Netns { cause, .. } => {
                matches!(cause.raw_os_error(), Some(ENODEV | ENOENT | ESRCH | EADDRNOTAVAIL))
            }
            Self::NoDevice(_) => true,
            _ => false,
        }
    }
}
