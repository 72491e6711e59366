//! Takes over what a former agent has left in the kernel: numbers that must stay what they are.

use std::collections::BTreeMap;

use cilia_crds::NumericIdentity;
use cilia_loader::Datapath;
use cilia_policy::{CIDR_SCOPE, Repository};
use ipnet::IpNet;

/// Numbers of prefixes outlive the agent in the ipcache map.
pub(super) fn prefixes(repository: &mut Repository, datapath: &Datapath) {
    let entries = match datapath.ipcache().entries() {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "numbers of prefixes not restored");
            return;
        }
    };
    for ((address, length), entry) in
        entries.into_iter().filter(|(_, entry)| entry.identity & !0x00ff_ffff == CIDR_SCOPE)
    {
        if let Ok(prefix) = IpNet::new(address, length) {
            repository.restore_prefix(prefix, NumericIdentity(entry.identity));
        }
    }
}

/// Numbers of other nodes' addresses outlive the agent in the ipcache map.
pub(super) fn nodes(repository: &mut Repository, datapath: &Datapath) {
    // If it can't be read, the prefixes have said so.
    for ((address, _), entry) in datapath.ipcache().entries().unwrap_or_default() {
        repository.restore_node(address, NumericIdentity(entry.identity));
    }
}

/// Numbers of blocks outlive the agent in the table of blocks.
pub(super) fn blocks(repository: &mut Repository, datapath: &Datapath) {
    let entries = datapath.blocks().entries().unwrap_or_else(|error| {
        tracing::warn!(%error, "numbers of blocks not restored");
        Vec::new()
    });
    for ((address, length), block) in entries {
        if let Ok(prefix) = IpNet::new(address, length) {
            repository.restore_block(prefix, NumericIdentity(block));
        }
    }
}

/// The endpoints of a former agent that have a setting of their own whether policy is recorded only.
pub(super) fn audit(datapath: &Datapath) -> BTreeMap<u16, bool> {
    let options = datapath.options().entries().unwrap_or_else(|error| {
        tracing::warn!(%error, "options of endpoints not restored");
        Vec::new()
    });
    options.into_iter().map(|(id, options)| (id, options.policy_audit)).collect()
}
