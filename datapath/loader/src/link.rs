//! Keeps programs on devices by pinned links, so that they outlive the agent and are replaced
//! without a moment in which a packet meets no program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::pins::pin_error;
use crate::sys;

/// A place where a program sits on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// Packets that leave a pod: tcx ingress of the host side of its veth.
    FromContainer,
    /// Packets that reach a pod through the host's stack: tcx egress of the same device.
    ToContainer,
    /// Packets out of the tunnel: tcx ingress of the tunnel device.
    FromOverlay,
    /// Packets of the host to remote pods: tcx egress of `cilium_host`.
    FromHost,
    /// Packets to the node by one of its own devices: tcx ingress of it.
    FromNetdev,
    /// Packets that leave by it: tcx egress of it.
    ToNetdev,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FromContainer,
        Self::ToContainer,
        Self::FromOverlay,
        Self::FromHost,
        Self::FromNetdev,
        Self::ToNetdev,
    ];

    /// The program's name.
    pub const fn program(self) -> &'static str {
        match self {
            Self::FromContainer => "cil_from_container",
            Self::ToContainer => "cil_to_container",
            Self::FromOverlay => "cil_from_overlay",
            Self::FromHost => "cil_from_host",
            Self::FromNetdev => "cil_from_netdev",
            Self::ToNetdev => "cil_to_netdev",
        }
    }

    const fn attach_type(self) -> u32 {
        match self {
            Self::FromContainer | Self::FromOverlay | Self::FromNetdev => sys::TCX_INGRESS,
            Self::ToContainer | Self::FromHost | Self::ToNetdev => sys::TCX_EGRESS,
        }
    }
}

/// The directory of link pins: one directory per device, one pin per program.
#[derive(Debug)]
pub(crate) struct Links {
    directory: PathBuf,
}

impl Links {
    pub(crate) fn new(bpf_root: &Path) -> Result<Self, Error> {
        let directory = bpf_root.join("cilium/links");
        make_directory(&directory)?;
        Ok(Self { directory })
    }

    /// Puts a program on a device, in place of what is there by a pinned link.
    pub(crate) fn attach(
        &self,
        hook: Hook,
        program: BorrowedFd<'_>,
        ifindex: u32,
        device: &str,
    ) -> Result<(), Error> {
        let failed =
            |source| Error::Attach { program: hook.program(), device: device.into(), source };
        let directory = self.directory.join(device);
        make_directory(&directory)?;
        let path = directory.join(hook.program());
        let old = sys::open_pin(&path).map_err(|source| pin_error("open", &path, source))?;
        if let Some(link) = old {
            // A link whose device is gone, perhaps with a namesake in its place, is of no use.
            if sys::link_ifindex(link.as_fd()).map_err(failed)? == ifindex
                && sys::link_update(link.as_fd(), program).is_ok()
            {
                return Ok(());
            }
            std::fs::remove_file(&path).map_err(|source| pin_error("remove", &path, source))?;
        }
        let link = sys::link_create(program, ifindex, hook.attach_type()).map_err(failed)?;
        sys::pin(link.as_fd(), &path).map_err(|source| pin_error("make", &path, source))
    }

    /// Takes every program off a device.
    pub(crate) fn detach(&self, device: &str) -> Result<(), Error> {
        let directory = self.directory.join(device);
        for hook in Hook::ALL {
            let path = directory.join(hook.program());
            ignore_absent(std::fs::remove_file(&path))
                .map_err(|source| pin_error("remove", &path, source))?;
        }
        ignore_absent(std::fs::remove_dir(&directory))
            .map_err(|source| pin_error("remove", &directory, source))
    }

    /// Devices that have this program.
    pub(crate) fn with(&self, hook: Hook) -> Result<Vec<String>, Error> {
        let has = |device: &String| self.directory.join(device).join(hook.program()).exists();
        Ok(self.devices()?.into_iter().filter(has).collect())
    }

    /// Devices that have a pinned link.
    pub(crate) fn devices(&self) -> Result<Vec<String>, Error> {
        let failed = |source| pin_error("list", &self.directory, source);
        let mut devices = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            devices.extend(entry.map_err(failed)?.file_name().into_string());
        }
        devices.sort_unstable();
        Ok(devices)
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path)
        .map_err(|source| Error::Directory { path: path.to_path_buf(), source })
}

fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
