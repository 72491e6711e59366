//! Labels as identities carry them: a source, a key and a value, in canonical order.
//!
//! A cluster repeats the same few keys, namespaces and accounts in tens of thousands of sets, so names and values
//! are kept once per process: 24 bytes a label, and what is its own.

mod interned;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use interned::Interned;

static NAMES: Interned<LabelKey> = Interned::new();
static VALUES: Interned<str> = Interned::new();
static SETS: Interned<Labels> = Interned::new();

/// The one copy of a text that many repeat: a label's value, or the name of an object, which is mostly a label's
/// value too. About 20 bytes a text beside itself, shared by all who have it.
pub fn shared(text: &str) -> Arc<str> {
    VALUES.share(text, || text.into())
}

/// The source of labels that come from Kubernetes objects.
pub const SOURCE_K8S: &str = "k8s";
/// The source of the labels that reserved identities carry.
pub const SOURCE_RESERVED: &str = "reserved";

/// A set of labels: `source:key` to value, sorted by key and then by source.
///
/// Equality of two sets is equality of the identities they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Vec<(Arc<LabelKey>, Arc<str>)>);

/// Where a label comes from and what it is called.
///
/// The key is compared first: the canonical order of a label set is by key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelKey {
    /// The label's name, such as `app`.
    pub key: String,
    /// Who says so: `k8s`, `reserved`, `cidr`, ...
    pub source: String,
}

impl Labels {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The single label of a reserved identity, `reserved:<name>`.
    pub fn reserved(name: &str) -> Self {
        let mut labels = Self::new();
        labels.insert(SOURCE_RESERVED, name, "");
        labels
    }

    /// Reads the `security-labels` of a `CiliumIdentity`: `source:key` to value.
    ///
    /// A key without a source gets `k8s`'s place taken by an empty source, so that it equals
    /// no label that Cilia makes.
    pub fn from_security_labels(map: &BTreeMap<String, String>) -> Self {
        let mut labels = Self::new();
        for (name, value) in map {
            let (source, key) = name.split_once(':').unwrap_or(("", name));
            labels.insert(source, key, value);
        }
        labels
    }

    /// The `security-labels` of a `CiliumIdentity` with these labels.
    pub fn to_security_labels(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// Adds a label; one of the same source and key is replaced.
    pub fn insert(&mut self, source: &str, key: &str, value: &str) {
        let value = shared(value);
        match self.position(source, key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                let name = LabelKey { key: key.to_owned(), source: source.to_owned() };
                // Sets are made once and kept long: no room that is never used.
                self.0.reserve_exact(1);
                self.0.insert(at, (NAMES.share(&name, || Arc::new(name.clone())), value));
            }
        }
    }

    /// The value of `source:key`.
    pub fn get(&self, source: &str, key: &str) -> Option<&str> {
        self.position(source, key).ok().map(|at| &*self.0[at].1)
    }

    /// Adds every label of `other`; those of the same source and key are replaced.
    pub fn extend(&mut self, other: &Self) {
        self.0.reserve_exact(other.len());
        for (name, value) in &other.0 {
            match self.position(&name.source, &name.key) {
                Ok(at) => self.0[at].1 = Arc::clone(value),
                Err(at) => self.0.insert(at, (Arc::clone(name), Arc::clone(value))),
            }
        }
    }

    /// The one copy of this set that all share who want it to last: 40 bytes and its labels, and about 15 for it
    /// to be found.
    #[must_use]
    pub fn shared(self) -> Arc<Self> {
        SETS.share_with(self, Arc::new)
    }

    /// Those of the labels for which `keep` is true.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&LabelKey) -> bool) -> Self {
        let kept: Vec<_> = self.0.iter().filter(|(name, _)| keep(name)).cloned().collect();
        let mut labels = Self(kept);
        labels.0.shrink_to_fit();
        labels
    }

    /// Where the label is, or where it would be.
    fn position(&self, source: &str, key: &str) -> Result<usize, usize> {
        let wanted = (key, source);
        self.0.binary_search_by(|(name, _)| (&*name.key, &*name.source).cmp(&wanted))
    }

    /// Every label, by key and then by source.
    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// How many labels there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no label.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The canonical key: `source:key=value;` for each label in order, concatenated.
    ///
    /// It is the index of `CiliumIdentity` objects, their value in the kvstore, and the test of equality.
    pub fn canonical(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for LabelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.key)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| write!(f, "{name}={value};"))
    }
}

#[cfg(test)]
mod tests {
    use super::Labels;

    #[test]
    fn canonical_order_is_by_key() {
        let mut labels = Labels::new();
        labels.insert("k8s", "b", "2");
        labels.insert("any", "c", "3");
        labels.insert("z", "a", "1");
        assert_eq!(labels.canonical(), "z:a=1;k8s:b=2;any:c=3;");
    }

    #[test]
    fn sets_are_equal_however_they_were_made() {
        let (mut one, mut other) = (Labels::new(), Labels::new());
        for key in ["a", "c", "b"] {
            one.insert("k8s", key, "x");
            other.insert("k8s", key, "old");
        }
        other.insert("k8s", "d", "x");
        let mut new = Labels::new();
        for key in ["c", "b", "a"] {
            new.insert("k8s", key, "x");
        }
        other.extend(&new);
        assert_eq!(other.filtered(|name| name.key != "d"), one);
        assert_eq!(
            (other.len(), other.get("k8s", "d"), other.get("any", "d")),
            (4, Some("x"), None)
        );
        assert_eq!(one.canonical(), "k8s:a=x;k8s:b=x;k8s:c=x;");
    }

    #[test]
    fn security_labels_round_trip() {
        let mut labels = Labels::reserved("host");
        labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
        assert_eq!(Labels::from_security_labels(&labels.to_security_labels()), labels);
    }
}
