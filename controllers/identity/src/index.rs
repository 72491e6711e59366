//! Decides which `CiliumIdentity` stands for a label set: the oldest that has exactly those labels.
//!
//! Where two were made in the same second the smaller number wins, so that everybody chooses alike.
//! About 130 bytes an identity beside its labels, which are stored once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};

/// One `CiliumIdentity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its labels.
    pub labels: Arc<Labels>,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// The garbage collector has marked it: take the mark off before use.
    pub marked: bool,
}

/// All `CiliumIdentities`, by number and by labels.
#[derive(Debug, Clone, Default)]
pub struct Index {
    by_number: BTreeMap<NumericIdentity, Record>,
    by_labels: HashMap<Arc<Labels>, Same>,
}

/// The identities of one label set: nearly always one.
#[derive(Debug, Clone)]
struct Same {
    best: (i64, NumericIdentity),
    others: Vec<(i64, NumericIdentity)>,
}

impl Same {
    fn add(&mut self, one: (i64, NumericIdentity)) {
        let worse = self.best.max(one);
        self.best = self.best.min(one);
        self.others.push(worse);
    }

    /// `false` if none is left.
    fn remove(&mut self, one: (i64, NumericIdentity)) -> bool {
        if self.best != one {
            self.others.retain(|other| *other != one);
            return true;
        }
        let Some(best) = self.others.iter().min().copied() else { return false };
        self.others.retain(|other| *other != best);
        self.best = best;
        true
    }
}

impl Index {
    /// Takes in an identity as it is now; `true` if that is news.
    pub fn upsert(&mut self, number: NumericIdentity, mut record: Record) -> bool {
        if self.by_number.get(&number) == Some(&record) {
            return false;
        }
        self.remove(number);
        if let Some((labels, _)) = self.by_labels.get_key_value(&record.labels) {
            record.labels = Arc::clone(labels);
        }
        let one = (record.created, number);
        match self.by_labels.entry(Arc::clone(&record.labels)) {
            Entry::Vacant(none) => drop(none.insert(Same { best: one, others: Vec::new() })),
            Entry::Occupied(mut same) => same.get_mut().add(one),
        }
        self.by_number.insert(number, record);
        true
    }

    /// Forgets an identity; `true` if it was known.
    pub fn remove(&mut self, number: NumericIdentity) -> bool {
        let Some(record) = self.by_number.remove(&number) else {
            return false;
        };
        if let Some(same) = self.by_labels.get_mut(&record.labels)
            && !same.remove((record.created, number))
        {
            self.by_labels.remove(&record.labels);
        }
        true
    }

    /// The set itself, where it is known: one copy is enough.
    pub fn shared(&self, labels: &Labels) -> Option<&Arc<Labels>> {
        self.by_labels.get_key_value(labels).map(|(labels, _)| labels)
    }

    /// The number that stands for these labels.
    pub fn number(&self, labels: &Labels) -> Option<NumericIdentity> {
        self.by_labels.get(labels).map(|same| same.best.1)
    }

    /// The identity of this number.
    pub fn get(&self, number: NumericIdentity) -> Option<&Record> {
        self.by_number.get(&number)
    }

    /// All identities, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NumericIdentity, &Record)> {
        self.by_number.iter().map(|(number, record)| (*number, record))
    }

    /// How many identities there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there is no identity.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cilia_crds::{Labels, NumericIdentity};

    use super::{Index, Record};

    fn record(app: &str, created: i64) -> Record {
        let mut labels = Labels::new();
        labels.insert("k8s", "app", app);
        Record { labels: Arc::new(labels), created, marked: false }
    }

    #[test]
    fn the_oldest_wins_and_then_the_smallest() {
        let mut index = Index::default();
        let web = record("web", 0).labels;
        let steps = [
            (300, Some(record("web", 20)), Some(300)),
            (301, Some(record("web", 10)), Some(301)),
            (299, Some(record("web", 10)), Some(299)),
            (298, Some(record("db", 1)), Some(299)),
            (299, None, Some(301)),
            (301, Some(record("db", 10)), Some(300)),
            (300, None, None),
        ];
        for (number, change, want) in steps {
            let number = NumericIdentity(number);
            assert!(match change {
                Some(record) => index.upsert(number, record),
                None => index.remove(number),
            });
            assert_eq!(index.number(&web), want.map(NumericIdentity));
        }
        assert!(!index.upsert(NumericIdentity(298), record("db", 1)), "no news");
        assert_eq!(index.len(), 2);
    }
}
