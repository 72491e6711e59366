//! The identities that only this node knows, of prefixes, blocks and nodes: which there are, and that
//! a restart keeps them.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::cidr;
use crate::repository::Repository;
use crate::selectors::{Member, Place};

impl Repository {
    /// The prefixes that local endpoints' rules name, with their identities: for the ipcache, once
    /// the policy maps know these identities.
    pub fn prefixes(&self) -> Vec<(IpNet, NumericIdentity)> {
        self.cidrs.in_use().collect()
    }

    /// The blocks that local endpoints' rules name, with their identities: what the kernel's table of
    /// blocks must hold, once the policy maps know these identities ([`crate::blocks`]).
    pub fn blocks(&self) -> Vec<(IpNet, NumericIdentity)> {
        self.blocks.in_use().collect()
    }

    /// The block of an address: that of the longest prefix that holds it.
    pub fn block(&self, address: IpAddr) -> Option<NumericIdentity> {
        self.blocks.holding(address).map(|(_, identity)| identity)
    }

    /// The identity of an address outside of what the cluster manages: that of the longest prefix
    /// that holds it, else the world's.
    pub fn outside(&self, address: IpAddr) -> NumericIdentity {
        let world = || crate::selectors::world(&address.into(), self.config.dual_stack);
        self.cidrs.holding(address).map_or_else(world, |(_, identity)| identity)
    }

    /// Takes over the identity of a prefix from before the restart, as the ipcache map has it.
    pub fn restore_prefix(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if prefix.prefix_len() > 0 && self.cidrs.restore(prefix, identity.0) {
            self.set_prefix(prefix, identity);
        }
    }

    /// Takes over the identity of a block from before the restart, as the table of blocks has it.
    pub fn restore_block(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if self.blocks.restore(prefix, identity.0) {
            self.set_block(prefix, identity);
        }
    }

    /// Takes over the identity of another node's address from before the restart, as the ipcache map has
    /// it; before [`Self::set_node`] tells of the node.
    pub fn restore_node(&mut self, address: IpAddr, identity: NumericIdentity) {
        self.nodes.restore(address, identity.0);
    }

    /// Forgets the prefixes and blocks that no rule names any more: once the ipcache, and the table
    /// of blocks, don't have them. True if there were any.
    pub fn retire_prefixes(&mut self) -> bool {
        let mut gone = self.cidrs.retire();
        gone.extend(self.blocks.retire());
        for identity in &gone {
            self.remove_identity(*identity);
        }
        !gone.is_empty()
    }

    pub(super) fn set_prefix(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if self.selectors.member(identity).is_none() {
            let labels = Arc::new(cidr::labels(&prefix, self.config.dual_stack));
            self.insert(identity, Member { labels, place: Place::Prefix(prefix) });
        }
    }

    pub(super) fn set_block(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if self.selectors.member(identity).is_none() {
            let labels = Arc::new(Labels::new());
            self.insert(identity, Member { labels, place: Place::Block(prefix) });
        }
    }
}
