//! Gives prefixes that rules name an identity of this node (scope 0x01).
//!
//! Each prefix that a local endpoint's rules name, the excepted ones too, has a number of its own;
//! an address belongs to the longest prefix that holds it. So a set of numbers says any union and
//! difference of prefixes exactly. Numbers are kept over a restart by reading them back from the
//! map that they are in: the ipcache, or that of the blocks ([`crate::blocks`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

/// The first number of the scope of this node's prefixes.
pub const SCOPE: u32 = 1 << 24;

/// Prefixes and their numbers: about 60 bytes each.
#[derive(Debug, Clone)]
pub(crate) struct Cidrs {
    /// The first number of the scope, which is nobody's.
    scope: u32,
    known: BTreeMap<IpNet, Entry>,
    used: BTreeSet<u32>,
    last: u32,
}

#[derive(Debug, Clone)]
struct Entry {
    number: u32,
    users: u32,
}

impl Cidrs {
    /// No prefix yet; numbers are those after `scope`.
    pub(crate) fn new(scope: u32) -> Self {
        Self { scope, known: BTreeMap::new(), used: BTreeSet::new(), last: scope }
    }

    /// The last number of the scope.
    fn end(&self) -> u32 {
        self.scope | 0x00ff_ffff
    }

    /// The longest prefix in use that holds an address.
    pub(crate) fn holding(&self, address: IpAddr) -> Option<(IpNet, NumericIdentity)> {
        let mut prefix = IpNet::from(address);
        loop {
            if let Some(entry) = self.known.get(&prefix).filter(|entry| entry.users > 0) {
                return Some((prefix, NumericIdentity(entry.number)));
            }
            prefix = prefix.supernet()?;
        }
    }

    /// Remembers a number from before the restart; false if the prefix has one, or the number a prefix.
    /// It is given up again if no rule asks for it.
    pub(crate) fn restore(&mut self, prefix: IpNet, number: u32) -> bool {
        let taken = (self.scope + 1..=self.end()).contains(&number)
            && !self.known.contains_key(&prefix)
            && self.used.insert(number);
        if taken {
            self.known.insert(prefix, Entry { number, users: 0 });
            self.last = self.last.max(number);
        }
        taken
    }

    /// The number of a prefix for one more user, and whether the prefix had none before.
    ///
    /// There is none left when 16 million prefixes are in use, and then nothing is selected.
    pub(crate) fn acquire(&mut self, prefix: IpNet) -> Option<(NumericIdentity, bool)> {
        if let Some(entry) = self.known.get_mut(&prefix) {
            entry.users += 1;
            return Some((NumericIdentity(entry.number), false));
        }
        let after = self.last.max(self.scope) + 1;
        let number = (after..=self.end())
            .chain(self.scope + 1..after.min(self.end()))
            .find(|number| !self.used.contains(number))?;
        self.last = number;
        self.used.insert(number);
        self.known.insert(prefix, Entry { number, users: 1 });
        Some((NumericIdentity(number), true))
    }

    /// The number of a prefix, if it has one.
    pub(crate) fn number(&self, prefix: &IpNet) -> Option<NumericIdentity> {
        self.known.get(prefix).map(|entry| NumericIdentity(entry.number))
    }

    /// One user less. The number stays until [`Cidrs::retire`].
    pub(crate) fn release(&mut self, prefix: &IpNet) {
        if let Some(entry) = self.known.get_mut(prefix) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    /// The prefixes in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (IpNet, NumericIdentity)> {
        self.known
            .iter()
            .filter(|(_, entry)| entry.users > 0)
            .map(|(prefix, entry)| (*prefix, NumericIdentity(entry.number)))
    }

    /// Forgets what nobody uses.
    pub(crate) fn retire(&mut self) -> Vec<NumericIdentity> {
        let mut gone = Vec::new();
        self.known.retain(|_, entry| {
            if entry.users == 0 {
                gone.push(NumericIdentity(entry.number));
            }
            entry.users > 0
        });
        for number in &gone {
            self.used.remove(&number.0);
        }
        gone
    }
}

/// The labels of a prefix's identity: its part of the world, and itself.
pub(crate) fn labels(prefix: &IpNet, dual_stack: bool) -> Labels {
    let mut labels = Labels::reserved(match (dual_stack, prefix) {
        (false, _) => "world",
        (true, IpNet::V4(_)) => "world-ipv4",
        (true, IpNet::V6(_)) => "world-ipv6",
    });
    labels.insert("cidr", &prefix.to_string(), "");
    labels
}

#[cfg(test)]
mod tests {
    use super::Cidrs;

    #[test]
    fn numbers_are_kept_and_reused() {
        let net = |text: &str| text.parse().expect("a prefix");
        let mut cidrs = Cidrs::new(super::SCOPE);
        assert!(cidrs.restore(net("10.0.0.0/8"), (1 << 24) + 7));
        assert!(cidrs.restore(net("192.0.2.0/24"), (1 << 24) + 3));
        for (prefix, number) in [("10.0.0.0/8", 9), ("192.0.2.0/25", 3), ("192.0.2.0/26", 0)] {
            assert!(!cidrs.restore(net(prefix), (1 << 24) + number), "{prefix}");
        }
        let number = |cidrs: &mut Cidrs, text| {
            cidrs.acquire(net(text)).map(|(number, fresh)| (number.0 - (1 << 24), fresh))
        };
        assert_eq!(number(&mut cidrs, "10.0.0.0/8"), Some((7, false)));
        assert_eq!(number(&mut cidrs, "10.1.0.0/16"), Some((8, true)));
        let holding = |cidrs: &Cidrs, text: &str| {
            cidrs.holding(text.parse().expect("an address")).map(|(prefix, _)| prefix.to_string())
        };
        assert_eq!(holding(&cidrs, "10.1.2.3").as_deref(), Some("10.1.0.0/16"));
        assert_eq!(holding(&cidrs, "10.2.2.3").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(holding(&cidrs, "192.0.2.1"), None, "no rule names it");
        assert_eq!(cidrs.retire().len(), 1, "the restored prefix that no rule names");
        cidrs.release(&net("10.0.0.0/8"));
        assert_eq!(number(&mut cidrs, "10.0.0.0/8"), Some((7, false)), "released, but not retired");
        assert_eq!(cidrs.in_use().count(), 2);
    }
}
