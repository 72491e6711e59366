//! Counts how many different label sets are left when keys are left out, by fingerprints: 16 bytes a label.

use std::collections::{HashMap, HashSet};

use cilia_crds::labels::SOURCE_K8S;
use cilia_crds::{LabelKey, Labels};

use crate::digest;

const NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// The label sets, by key.
pub(super) struct Survey<'a> {
    sets: Vec<u64>,
    namespaces: Vec<&'a str>,
    keys: Vec<Key<'a>>,
}

/// A key, and what it has in which sets.
struct Key<'a> {
    name: &'a LabelKey,
    /// The set, and the label's fingerprint; by set.
    labels: Vec<(usize, u64)>,
    values: usize,
}

impl<'a> Survey<'a> {
    pub(super) fn of(identities: impl Iterator<Item = &'a Labels>) -> Self {
        let mut survey = Self { sets: Vec::new(), namespaces: Vec::new(), keys: Vec::new() };
        let mut places: HashMap<&LabelKey, usize> = HashMap::new();
        let mut known = HashSet::new();
        for labels in identities {
            let fingerprint = digest::set(labels);
            if !known.insert(fingerprint) {
                continue;
            }
            let set = survey.sets.len();
            survey.sets.push(fingerprint);
            survey.namespaces.push(labels.get(SOURCE_K8S, NAMESPACE).unwrap_or_default());
            for (name, value) in labels.iter() {
                let place = *places.entry(name).or_insert_with(|| {
                    survey.keys.push(Key { name, labels: Vec::new(), values: 0 });
                    survey.keys.len() - 1
                });
                survey.keys[place].labels.push((set, digest::label(name, value)));
            }
        }
        for key in &mut survey.keys {
            key.values = key.labels.iter().map(|(_, label)| label).collect::<HashSet<_>>().len();
        }
        survey
    }

    /// How many different sets there are.
    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// The keys by which sets differ, at most so many, those whose values go together in one group.
    pub(super) fn groups(&self, most: usize, may: impl Fn(&LabelKey) -> bool) -> Vec<Vec<usize>> {
        let differs = |key: &Key<'_>| key.values > 1 || key.labels.len() < self.sets.len();
        let mut keys: Vec<usize> = (0..self.keys.len())
            .filter(|key| differs(&self.keys[*key]) && may(self.keys[*key].name))
            .collect();
        keys.sort_by_key(|key| (std::cmp::Reverse(self.keys[*key].values), self.keys[*key].name));
        keys.truncate(most);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for key in keys {
            match groups.iter_mut().find(|group| self.go_together(group[0], key)) {
                Some(group) => group.push(key),
                None => groups.push(vec![key]),
            }
        }
        groups
    }

    /// How many different sets there are without these keys.
    pub(super) fn without(&self, group: &[usize]) -> usize {
        let mut sets = self.sets.clone();
        self.subtract(group, &mut sets);
        sets.sort_unstable();
        sets.dedup();
        sets.len()
    }

    /// From now on these keys are not there.
    pub(super) fn leave_out(&mut self, group: &[usize]) {
        let mut sets = std::mem::take(&mut self.sets);
        self.subtract(group, &mut sets);
        self.sets = sets;
    }

    pub(super) fn names(&self, group: &[usize]) -> Vec<LabelKey> {
        group.iter().map(|key| self.keys[*key].name.clone()).collect()
    }

    pub(super) fn values(&self, key: usize) -> usize {
        self.keys[key].values
    }

    /// The namespace that has most sets with this key.
    pub(super) fn namespace(&self, key: usize) -> String {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (set, _) in &self.keys[key].labels {
            *counts.entry(self.namespaces[*set]).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(namespace, count)| (*count, *namespace));
        most.map(|(namespace, _)| namespace.to_owned()).unwrap_or_default()
    }

    fn subtract(&self, group: &[usize], sets: &mut [u64]) {
        for (set, label) in group.iter().flat_map(|key| &self.keys[*key].labels) {
            sets[*set] = sets[*set].wrapping_sub(*label);
        }
    }

    /// Whether each value of one comes with one value of the other, and the reverse.
    fn go_together(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.keys[one], &self.keys[other]);
        if one.values != other.values || one.labels.len() != other.labels.len() {
            return false;
        }
        let both = one.labels.iter().zip(&other.labels);
        let mut pairs = HashSet::new();
        for ((set, a), (same, b)) in both {
            if set != same {
                return false;
            }
            pairs.insert((a, b));
        }
        pairs.len() == one.values
    }
}
