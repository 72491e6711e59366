//! Decides what to do about a key, from what it should be and what is known to be there.

use std::collections::{BTreeMap, BTreeSet};

use crate::messages::KeyValue;
use crate::stand_in::is_stand_in;

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
    /// The same, if it is missing: it was lost, and somebody else may have it since.
    Return(Vec<u8>),
    /// Write it in the place of what stands in for it, if that is there still: it has this revision.
    Replace(Vec<u8>, i64),
    /// Write it if it is missing.
    Create(Vec<u8>),
    /// Take it off the lease of somebody else, if nobody has written it since this revision.
    Unbind(Vec<u8>, i64),
    /// Delete it, if nobody has written it since this revision.
    Delete(i64),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    desired: BTreeMap<String, Entry>,
    /// For keys that should be there, and those of ours that should not; `None` is known absence.
    known: BTreeMap<String, Option<Known>>,
    /// Keys that must be looked at again before what is known of them counts.
    doubted: BTreeSet<String>,
    /// Keys that are to be looked at again, in case that etcd has lost them unseen.
    due: BTreeSet<String>,
    /// On which lease this process has written a key last; it may have expired since.
    held: BTreeMap<String, i64>,
    /// Keys that somebody else had when they were to be written again, after they were lost: they are
    /// left to him, until he gives them up.
    yielded: BTreeSet<String>,
    /// Keys that may need something to be done.
    open: BTreeSet<String>,
    /// How often etcd has lost writes.
    rewinds: u64,
}

impl Table {
    /// Whether that is news.
    pub(super) fn want(&mut self, key: &str, entry: Option<Entry>) -> bool {
        let news = if let Some(entry) = entry {
            let before = self.desired.insert(key.into(), entry.clone());
            before.as_ref() != Some(&entry)
        } else {
            self.due.remove(key);
            let was = self.desired.remove(key).is_some();
            let known = self.known.get(key).and_then(Option::as_ref).map(|known| known.lease);
            let wrote = self.held.remove(key);
            let foreign = known.is_some_and(|lease| !is_stand_in(lease));
            let theirs = wrote.is_some() && foreign && known != wrote;
            if self.yielded.remove(key) || theirs {
                self.known.remove(key);
            } else if was {
                // A former process's key that is being read is to be deleted.
                self.known.entry(key.into()).or_default();
            }
            was
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
        self.due.remove(key);
        self.held.remove(key);
        self.yielded.remove(key);
        self.open.remove(key);
    }

    /// Whether it was forgotten while somebody looked or wrote: what he found is no business of ours.
    fn is_forgotten(&self, key: &str) -> bool {
        !self.desired.contains_key(key) && !self.known.contains_key(key)
    }

    /// This is what is there.
    pub(super) fn found(&mut self, key: &str, known: Option<Known>) {
        if self.is_forgotten(key) {
            return;
        }
        self.doubted.remove(key);
        self.due.remove(key);
        if known.is_none() {
            self.yielded.remove(key);
        }
        let newer = |known: &Known, than: &Known| known.revision >= than.revision;
        if let (Some(Some(before)), Some(known)) = (self.known.get(key), &known)
            && !newer(known, before)
        {
            return;
        }
        self.known.insert(key.into(), known);
        self.open.insert(key.into());
    }

    /// This process has written it.
    pub(super) fn wrote(&mut self, key: &str, known: Known) {
        if self.is_forgotten(key) {
            return;
        }
        if known.lease != 0 {
            self.held.insert(key.into(), known.lease);
        }
        self.yielded.remove(key);
        self.found(key, Some(known));
    }

    /// How often etcd has lost writes so far.
    pub(super) fn rewinds(&self) -> u64 {
        self.rewinds
    }

    /// It was lost and is there all the same; `ours` says whether on a lease of ours, and `rewinds` how often
    /// etcd had lost writes when it was asked: a key that came back with an older copy is nobody's.
    pub(super) fn taken(&mut self, key: &str, known: Known, ours: bool, rewinds: u64) {
        if self.is_forgotten(key) || rewinds != self.rewinds {
            return;
        }
        if ours {
            self.held.insert(key.into(), known.lease);
        } else if is_stand_in(known.lease) {
            // An operator speaks for us.
            self.yielded.remove(key);
        } else if self.desired.get(key).is_some_and(|entry| entry.value != known.value) {
            self.yielded.insert(key.into());
        }
        self.found(key, Some(known));
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

    /// Somebody has written the key, maybe we ourselves: it is theirs until the next look. Whether an operator
    /// speaks for us, so that there is something to do.
    pub(super) fn seen(&mut self, key: &str, kv: &KeyValue) -> bool {
        let Some(Some(known)) = self.known.get_mut(key) else { return false };
        if kv.mod_revision > known.revision {
            if is_stand_in(kv.lease) {
                let (value, lease) = (kv.value.clone(), kv.lease);
                *known = Known { value, lease, revision: kv.mod_revision };
                self.open.insert(key.into());
                return true;
            }
            let same = kv.value == known.value && kv.lease == known.lease;
            // A later deletion must not take away what is another's.
            known.revision = if same { kv.mod_revision } else { -1 };
        }
        false
    }

    /// The key was deleted at this revision, or is another's; whether it needs no place any more.
    pub(super) fn gone(&mut self, key: &str, revision: i64) -> bool {
        let same = matches!(self.known.get(key), Some(Some(known)) if known.revision == revision);
        if same {
            self.known.remove(key);
            self.doubted.remove(key);
            self.due.remove(key);
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

    /// Everything is to be looked at again.
    pub(super) fn look_at_all(&mut self) {
        self.due.extend(self.desired.keys().cloned());
        self.open.extend(self.desired.keys().cloned());
    }

    /// etcd has lost writes: what was known of it, and its revisions, mean nothing. What is ours no
    /// more and came back goes with its lease.
    pub(super) fn rewound(&mut self) {
        self.rewinds += 1;
        self.known.clear();
        self.doubted.clear();
        self.due.clear();
        self.held.clear();
        self.yielded.clear();
        self.open = self.desired.keys().cloned().collect();
    }

    /// What to do about a key; `ours` says whether it hangs on a lease of ours that lives.
    pub(super) fn step(&mut self, key: &str, ours: impl Fn(i64) -> bool) -> Step {
        let due = self.wants(key) && self.due.contains(key);
        let step = if due { Step::Read } else { self.needed(key, ours) };
        if step == Step::Nothing {
            self.open.remove(key);
        }
        step
    }

    /// Whether the key should be there and is, as far as is known.
    pub(super) fn holds(&self, key: &str, ours: impl Fn(i64) -> bool) -> bool {
        self.wants(key) && self.needed(key, ours) == Step::Nothing
    }

    fn needed(&self, key: &str, ours: impl Fn(i64) -> bool) -> Step {
        match (self.desired.get(key), self.known.get(key)) {
            // What hangs on no lease is everybody's, and stays.
            (None, Some(Some(known))) if known.revision >= 0 && known.lease != 0 => {
                Step::Delete(known.revision)
            }
            (None, _) => Step::Nothing,
            (Some(_), None) => Step::Read,
            (Some(_), _) if self.doubted.contains(key) => Step::Read,
            (Some(entry), Some(None)) if entry.leased && self.held.contains_key(key) => {
                Step::Return(entry.value.clone())
            }
            (Some(entry), Some(None)) if entry.leased => Step::Put(entry.value.clone()),
            (Some(entry), Some(None)) => Step::Create(entry.value.clone()),
            (Some(entry), Some(Some(known))) if entry.leased && is_stand_in(known.lease) => {
                match known.revision {
                    ..0 => Step::Read,
                    revision => Step::Replace(entry.value.clone(), revision),
                }
            }
            (Some(entry), Some(Some(known))) => {
                let alive = ours(known.lease);
                let held = self.held.get(key).copied();
                // Somebody else wrote it after our lease had expired.
                let since = held.is_some_and(|held| held != known.lease && !ours(held));
                let theirs = self.yielded.contains(key) || (since && known.value != entry.value);
                if entry.leased && !alive && theirs {
                    Step::Nothing
                } else if entry.leased && !alive && held == Some(known.lease) {
                    Step::Return(entry.value.clone())
                } else if entry.leased && (known.value != entry.value || !alive) {
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
#[path = "table_tests.rs"]
mod tests;
