//! What tests and benchmarks share: a BPF file system of their own, and maps that a machine does not notice.

use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::{Config, Datapath, MapSizes, NodeConfig};

/// A BPF file system, so that nothing is shared with the machine's or left behind: unmounted, with every
/// pin, when it goes out of scope.
#[derive(Debug)]
pub struct BpfFs {
    directory: TempDir,
}

impl BpfFs {
    /// Mounts it at a place of its own.
    ///
    /// # Panics
    /// When not root.
    #[must_use]
    pub fn mount() -> Self {
        let directory = tempfile::Builder::new().prefix("cilia-bpf-").tempdir().expect("a folder");
        mount(Some("cilia-test"), directory.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
            .expect("mounting a BPF file system needs root");
        Self { directory }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// Small maps, both families, no devices.
    #[must_use]
    pub fn config(&self) -> Config {
        let (sizes, node) = (small_maps(), NodeConfig::default());
        Config { bpf_root: self.path(), ipv4: true, ipv6: true, sizes, node }
    }

    /// Loads a datapath with small maps; see [`load`].
    #[must_use]
    pub fn load(&self, node: NodeConfig) -> Datapath {
        load(&Config { node, ..self.config() })
    }

    /// Loads a datapath with maps of these sizes; see [`load`].
    #[must_use]
    pub fn load_sized(&self, sizes: MapSizes) -> Datapath {
        load(&Config { sizes, ..self.config() })
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        // Busy or not, it goes with the last process that sees it.
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}

/// Loads a datapath.
///
/// # Panics
/// When the kernel refuses it; says at which instruction.
#[must_use]
pub fn load(config: &Config) -> Datapath {
    Datapath::load(config).unwrap_or_else(|error| {
        let mut text = error.to_string();
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        // The end of a verifier's log says what it refused.
        let tail = text.len().saturating_sub(6000);
        panic!("{} ... {}", &text[..text.len().min(300)], &text[tail..])
    })
}

/// Sizes that a test machine does not notice.
#[must_use]
pub fn small_maps() -> MapSizes {
    MapSizes {
        endpoints: 1024,
        ipcache: 1024,
        policy: 1024,
        policy_stats: 1024,
        blocks: 1024,
        conntrack_tcp: 4096,
        conntrack_any: 4096,
        services: 1024,
        fragments: 1024,
        events_bytes: 1 << 20,
    }
}
