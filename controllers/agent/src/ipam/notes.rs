//! What an agent writes down about its node's pools for the next one: which ranges it gives back, and which it had.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use cilia_ipam::{Allocation, NodePools};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The notes, as they are in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    /// The version of the node's object under which ranges are given back.
    pub(super) version: String,
    /// Pool and range.
    pub(super) releasing: BTreeSet<(String, IpNet)>,
    /// The ranges of each pool that the object listed.
    listed: BTreeMap<String, Vec<String>>,
}

impl Notes {
    /// What is to be known of `pools`.
    pub(super) fn of(pools: &NodePools) -> Self {
        let (version, releasing) = pools.releasing();
        let listed = pools.listed().into_iter().map(|one| (one.pool, one.cidrs));
        Self { version: version.to_owned(), releasing: releasing.clone(), listed: listed.collect() }
    }

    /// A version alone says nothing.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        (self.version == other.version || self.releasing.is_empty())
            && self.releasing == other.releasing
            && self.listed == other.listed
    }

    /// What the object listed.
    pub(super) fn allocations(&self) -> Vec<Allocation> {
        let one = |(pool, cidrs): (&String, &Vec<String>)| Allocation {
            pool: pool.clone(),
            cidrs: cidrs.clone(),
        };
        self.listed.iter().map(one).collect()
    }

    /// What a former agent wrote. A file that cannot be read says nothing: at worst a range is used that
    /// the operator takes back.
    pub(super) fn read(path: &Path) -> Self {
        let Ok(text) = std::fs::read_to_string(path) else { return Self::default() };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "ignoring the notes of a former agent about ranges");
            Self::default()
        })
    }

    /// Replaces the notes as a whole, so that no crash leaves half of them.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self)?;
        let fresh = path.with_extension("new");
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&fresh, text)?;
        std::fs::rename(&fresh, path)
    }
}
