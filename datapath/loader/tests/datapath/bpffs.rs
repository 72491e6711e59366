//! A BPF file system of one test's own, so that nothing is shared with the machine's or left behind.

use std::path::Path;

use cilia_loader::{Config, Datapath, MapSizes, NodeConfig};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// Unmounted, with every pin, when it goes out of scope.
pub(crate) struct BpfFs {
    directory: TempDir,
}

impl BpfFs {
    pub(crate) fn mount() -> Self {
        let directory = tempfile::Builder::new().prefix("cilia-bpf-").tempdir().unwrap();
        mount(Some("cilia-test"), directory.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
            .expect("mounting a BPF file system needs root");
        Self { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Loads a datapath with small maps.
    pub(crate) fn load(&self, node: NodeConfig) -> Datapath {
        self.load_sized(node, small())
    }

    pub(crate) fn load_sized(&self, node: NodeConfig, sizes: MapSizes) -> Datapath {
        load(&Config { sizes, node, ..self.config() })
    }

    /// Small maps, both families, no devices.
    pub(crate) fn config(&self) -> Config {
        let (sizes, node) = (small(), NodeConfig::default());
        Config { bpf_root: self.path().into(), ipv4: true, ipv6: true, sizes, node }
    }
}

/// Loads a datapath, or says at which instruction the verifier refused.
pub(crate) fn load(config: &Config) -> Datapath {
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

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}

/// Sizes that a test machine does not notice.
pub(crate) fn small() -> MapSizes {
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
