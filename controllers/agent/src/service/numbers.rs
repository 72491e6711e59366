//! Gives numbers to keys, from 1, and takes them back when the key isn't used any more.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct Numbers<K> {
    by_key: BTreeMap<K, u32>,
    used: BTreeSet<u32>,
    last: u32,
    most: u32,
}

impl<K: Ord + Copy> Numbers<K> {
    /// Numbers from 1 to `most`.
    pub(super) fn up_to(most: u32) -> Self {
        Self { by_key: BTreeMap::new(), used: BTreeSet::new(), last: 0, most }
    }

    /// Takes a number over that the key had before.
    pub(super) fn restore(&mut self, key: K, number: u32) {
        let fits = (1..=self.most).contains(&number);
        if fits && !self.by_key.contains_key(&key) && self.used.insert(number) {
            self.by_key.insert(key, number);
        }
    }

    /// New numbers come from behind this one: which of the free ones rest is not known any more.
    pub(super) fn rest_from(&mut self, last: u32) {
        self.last = last % self.most;
    }

    /// The number that the key has.
    pub(super) fn known(&self, key: K) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    /// The key's number, a new one if it has none; nothing when all are in use.
    ///
    /// New numbers come from behind the last one, so that one just freed rests for a while.
    pub(super) fn get(&mut self, key: K) -> Option<u32> {
        if let Some(number) = self.known(key) {
            return Some(number);
        }
        let after = self.last % self.most + 1;
        let number =
            (after..=self.most).chain(1..after).find(|number| !self.used.contains(number))?;
        self.last = number;
        self.used.insert(number);
        self.by_key.insert(key, number);
        Some(number)
    }

    /// Takes back the numbers of all other keys.
    pub(super) fn retain(&mut self, keys: &BTreeSet<K>) {
        let used = &mut self.used;
        self.by_key.retain(|key, number| {
            let keep = keys.contains(key);
            if !keep {
                used.remove(number);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Numbers;

    #[test]
    fn numbers_rest_before_they_are_given_again() {
        let mut numbers = Numbers::up_to(3);
        assert_eq!(["a", "b"].map(|key| numbers.get(key)), [Some(1), Some(2)]);
        numbers.retain(&BTreeSet::from(["b"]));
        assert_eq!(["c", "d", "e"].map(|key| numbers.get(key)), [Some(3), Some(1), None]);
        assert_eq!(numbers.get("b"), Some(2));

        let mut restored = Numbers::up_to(100);
        restored.restore("b", 2);
        restored.rest_from(u32::MAX);
        assert_eq!(restored.get("c"), Some(u32::MAX % 100 + 1));
        restored.rest_from(1);
        assert_eq!(restored.get("d"), Some(3), "what is in use is left out");
    }
}
