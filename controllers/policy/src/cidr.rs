//! Gives prefixes that rules name an identity of this node (scope 0x01, policy.md 6).
//!
//! Each prefix that a local endpoint's rules name, the excepted ones too, has a number of its own;
//! an address belongs to the longest prefix that holds it. So a set of numbers says any union and
//! difference of prefixes exactly. Numbers are kept over a restart by reading them back from the
//! ipcache map.

use std::collections::{BTreeMap, BTreeSet};

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

/// The first number of the scope of this node's prefixes.
pub const SCOPE: u32 = 1 << 24;
const LAST: u32 = SCOPE | 0x00ff_ffff;

/// Prefixes and their numbers: about 60 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Cidrs {
    known: BTreeMap<IpNet, Entry>,
    used: BTreeSet<u32>,
    last: u32,
}

#[derive(Debug)]
struct Entry {
    number: u32,
    users: u32,
}

impl Cidrs {
    /// Remembers a number from before the restart; false if the prefix has one, or the number a prefix.
    /// It is given up again if no rule asks for it.
    pub(crate) fn restore(&mut self, prefix: IpNet, number: u32) -> bool {
        let taken = (SCOPE + 1..=LAST).contains(&number)
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
    /// A prefix of length 0 is the world, and has no number here; nor is there one left when 16
    /// million prefixes are in use, and then nothing is selected.
    pub(crate) fn acquire(&mut self, prefix: IpNet) -> Option<(NumericIdentity, bool)> {
        if prefix.prefix_len() == 0 {
            return None;
        }
        if let Some(entry) = self.known.get_mut(&prefix) {
            entry.users += 1;
            return Some((NumericIdentity(entry.number), false));
        }
        let after = self.last.max(SCOPE) + 1;
        let number = (after..=LAST)
            .chain(SCOPE + 1..after.min(LAST))
            .find(|number| !self.used.contains(number))?;
        self.last = number;
        self.used.insert(number);
        self.known.insert(prefix, Entry { number, users: 1 });
        Some((NumericIdentity(number), true))
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
        let mut cidrs = Cidrs::default();
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
        assert_eq!(number(&mut cidrs, "::/0"), None);
        assert_eq!(cidrs.retire().len(), 1, "the restored prefix that no rule names");
        cidrs.release(&net("10.0.0.0/8"));
        assert_eq!(number(&mut cidrs, "10.0.0.0/8"), Some((7, false)), "released, but not retired");
        assert_eq!(cidrs.in_use().count(), 2);
    }
}
