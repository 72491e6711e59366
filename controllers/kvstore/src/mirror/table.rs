//! Decides what to do about a key, from what it should be and what is known to be there.

use std::collections::{BTreeMap, BTreeSet};

use crate::messages::KeyValue;

/// What a key should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its value.
    pub value: Vec<u8>,
    /// It is this process's, and ends with it; else it is everybody's, and made only if missing.
    pub leased: bool,
}

/// What is there, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) value: Vec<u8>,
    pub(super) lease: i64,
    pub(super) revision: i64,
}

/// What to do about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Look what is there.
    Read,
    /// Write it, on a lease.
    Put(Vec<u8>),
    /// Write it if it is missing.
    Create(Vec<u8>),
    /// Take it off the lease of somebody else, if nobody has written it since this revision.
    Unbind(Vec<u8>, i64),
    /// Delete it, if nobody has written it since this revision.
    Delete(i64),
}

#[derive(Debug, Default)]
pub(super) struct Table {
    desired: BTreeMap<String, Entry>,
    /// For keys that should be there, and those of ours that should not; `None` is known absence.
    known: BTreeMap<String, Option<Known>>,
    /// Keys that must be looked at again before what is known of them counts.
    doubted: BTreeSet<String>,
    /// Keys that may need something to be done.
    open: BTreeSet<String>,
}

impl Table {
    /// Whether that is news.
    pub(super) fn want(&mut self, key: &str, entry: Option<Entry>) -> bool {
        let news = match entry {
            Some(entry) => {
                let before = self.desired.insert(key.into(), entry.clone());
                before.as_ref() != Some(&entry)
            }
            None => self.desired.remove(key).is_some(),
        };
        if news {
            self.open.insert(key.into());
        }
        news
    }

    pub(super) fn wants(&self, key: &str) -> bool {
        self.desired.contains_key(key)
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.desired.keys().cloned().collect()
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.desired.remove(key);
        self.known.remove(key);
        self.doubted.remove(key);
        self.open.remove(key);
    }

    /// This is what is there.
    pub(super) fn found(&mut self, key: &str, known: Option<Known>) {
        self.doubted.remove(key);
        let newer = |known: &Known, than: &Known| known.revision >= than.revision;
        if let (Some(Some(before)), Some(known)) = (self.known.get(key), &known)
            && !newer(known, before)
        {
            return;
        }
        self.known.insert(key.into(), known);
        self.open.insert(key.into());
    }

    /// Somebody has deleted the key; whether it has to come back.
    pub(super) fn vanished(&mut self, key: &str) -> bool {
        let wanted = self.wants(key);
        if wanted {
            self.found(key, None);
        } else {
            self.known.remove(key);
            self.open.remove(key);
        }
        wanted
    }

    /// Somebody has written the key, maybe we ourselves: it is theirs until the next look.
    pub(super) fn seen(&mut self, key: &str, kv: &KeyValue) {
        let Some(Some(known)) = self.known.get_mut(key) else { return };
        if kv.mod_revision > known.revision {
            let same = kv.value == known.value && kv.lease == known.lease;
            // A later deletion must not take away what is another's.
            known.revision = if same { kv.mod_revision } else { -1 };
        }
    }

    /// The key was deleted at this revision, or is another's; whether it needs no place any more.
    pub(super) fn gone(&mut self, key: &str, revision: i64) -> bool {
        let same = matches!(self.known.get(key), Some(Some(known)) if known.revision == revision);
        if same {
            self.known.remove(key);
            self.doubted.remove(key);
        }
        if !self.wants(key) {
            self.open.remove(key);
            return same;
        }
        self.open.insert(key.into());
        false
    }

    /// The key must be looked at again.
    pub(super) fn doubt(&mut self, key: &str) {
        if self.wants(key) {
            self.doubted.insert(key.into());
            self.open.insert(key.into());
        }
    }

    /// Everything must be looked at again.
    pub(super) fn know_nothing(&mut self) {
        self.doubted.extend(self.desired.keys().cloned());
        self.open.extend(self.desired.keys().cloned());
    }

    /// etcd has lost writes: what was known of it, and its revisions, mean nothing. What is ours no
    /// more and came back goes with its lease.
    pub(super) fn rewound(&mut self) {
        self.known.clear();
        self.doubted.clear();
        self.open = self.desired.keys().cloned().collect();
    }

    /// What to do about a key; `ours` says whether it hangs on a lease of ours that lives.
    pub(super) fn step(&mut self, key: &str, ours: impl Fn(i64) -> bool) -> Step {
        let step = self.needed(key, ours);
        if step == Step::Nothing {
            self.open.remove(key);
        }
        step
    }

    fn needed(&self, key: &str, ours: impl Fn(i64) -> bool) -> Step {
        match (self.desired.get(key), self.known.get(key)) {
            (None, Some(Some(known))) if known.revision >= 0 => Step::Delete(known.revision),
            (None, _) => Step::Nothing,
            (Some(_), None) => Step::Read,
            (Some(_), _) if self.doubted.contains(key) => Step::Read,
            (Some(entry), Some(None)) if entry.leased => Step::Put(entry.value.clone()),
            (Some(entry), Some(None)) => Step::Create(entry.value.clone()),
            (Some(entry), Some(Some(known))) => {
                if entry.leased && (known.value != entry.value || !ours(known.lease)) {
                    Step::Put(entry.value.clone())
                } else if !entry.leased
                    && known.value == entry.value
                    && known.lease != 0
                    && known.revision >= 0
                {
                    // It would go with whoever made it.
                    Step::Unbind(entry.value.clone(), known.revision)
                } else {
                    Step::Nothing
                }
            }
        }
    }

    /// How many keys are not as they should be.
    pub(super) fn pending(&mut self, ours: impl Fn(&str, i64) -> bool) -> usize {
        let open: Vec<String> = self.open.iter().cloned().collect();
        open.iter().filter(|key| self.step(key, |lease| ours(key, lease)) != Step::Nothing).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::{Entry, Known, Step, Table};

    const OURS: i64 = 7;

    fn known(value: &str, lease: i64, revision: i64) -> Known {
        Known { value: value.into(), lease, revision }
    }

    #[expect(clippy::unnecessary_wraps, reason = "what should be there, or nothing")]
    fn entry(value: &str, leased: bool) -> Option<Entry> {
        Some(Entry { value: value.into(), leased })
    }

    #[test]
    fn each_state_has_its_step() {
        let put = || Step::Put(b"a".to_vec());
        let cases = [
            ("not looked yet", entry("a", true), None, Step::Read),
            ("missing", entry("a", true), Some(None), put()),
            ("right", entry("a", true), Some(Some(known("a", OURS, 5))), Step::Nothing),
            ("another value", entry("a", true), Some(Some(known("b", OURS, 5))), put()),
            ("a lease that ends", entry("a", true), Some(Some(known("a", 6, 5))), put()),
            ("no lease", entry("a", true), Some(Some(known("a", 0, 5))), put()),
            ("shared, missing", entry("a", false), Some(None), Step::Create(b"a".to_vec())),
            ("shared, another's", entry("a", false), Some(Some(known("b", 0, 5))), Step::Nothing),
            ("shared, right", entry("a", false), Some(Some(known("a", 0, 5))), Step::Nothing),
            (
                "shared, on another's lease",
                entry("a", false),
                Some(Some(known("a", 6, 5))),
                Step::Unbind(b"a".to_vec(), 5),
            ),
            ("not ours", None, None, Step::Nothing),
            ("given up", None, Some(Some(known("a", OURS, 5))), Step::Delete(5)),
            ("given up and taken over", None, Some(Some(known("a", OURS, -1))), Step::Nothing),
        ];
        for (name, desired, is, want) in cases {
            let mut table = Table::default();
            table.want("k", desired);
            if let Some(is) = is {
                table.known.insert("k".into(), is);
            }
            assert_eq!(table.step("k", |lease| lease == OURS), want, "{name}");
        }
    }

    /// Doing what it says makes a store right, whatever others do to it in between.
    #[test]
    fn settles() {
        let mut rng = StdRng::seed_from_u64(rand::rng().random());
        for _ in 0..2000 {
            let mut table = Table::default();
            let mut store: BTreeMap<String, Known> = BTreeMap::new();
            let mut wanted: BTreeMap<String, String> = BTreeMap::new();
            let mut revision = 1;
            for _ in 0..30 {
                let key = format!("k{}", rng.random_range(0..3));
                match rng.random_range(0..5) {
                    0 => {
                        let value = format!("v{}", rng.random_range(0..2));
                        table.want(&key, entry(&value, true));
                        wanted.insert(key.clone(), value);
                    }
                    1 => {
                        table.want(&key, None);
                        wanted.remove(&key);
                    }
                    2 => {
                        store.remove(&key);
                        table.vanished(&key);
                    }
                    3 => table.know_nothing(),
                    _ => {}
                }
                for _ in 0..rng.random_range(0..4) {
                    revision += 1;
                    match table.step(&key, |lease| lease == OURS) {
                        Step::Nothing => break,
                        Step::Read => table.found(&key, store.get(&key).cloned()),
                        Step::Put(value) => {
                            let known = Known { value, lease: OURS, revision };
                            store.insert(key.clone(), known.clone());
                            table.found(&key, Some(known));
                        }
                        Step::Create(_) | Step::Unbind(..) => unreachable!(),
                        Step::Delete(at) => {
                            if store.get(&key).is_some_and(|known| known.revision == at) {
                                store.remove(&key);
                            }
                            table.gone(&key, at);
                        }
                    }
                }
            }
            for key in ["k0", "k1", "k2"] {
                loop {
                    revision += 1;
                    match table.step(key, |lease| lease == OURS) {
                        Step::Nothing => break,
                        Step::Read => table.found(key, store.get(key).cloned()),
                        Step::Put(value) => {
                            let known = Known { value, lease: OURS, revision };
                            store.insert(key.into(), known.clone());
                            table.found(key, Some(known));
                        }
                        Step::Create(_) | Step::Unbind(..) => unreachable!(),
                        Step::Delete(at) => {
                            store.remove(key);
                            table.gone(key, at);
                        }
                    }
                }
            }
            let stored: BTreeMap<String, String> = store
                .into_iter()
                .map(|(key, known)| (key, String::from_utf8(known.value).unwrap()))
                .collect();
            assert_eq!(stored, wanted);
            assert_eq!(table.pending(|_, lease| lease == OURS), 0);
        }
    }
}
