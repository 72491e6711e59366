//! Labels as identities carry them: a source, a key and a value, in canonical order.

use std::collections::BTreeMap;
use std::fmt;

/// The source of labels that come from Kubernetes objects.
pub const SOURCE_K8S: &str = "k8s";
/// The source of the labels that reserved identities carry.
pub const SOURCE_RESERVED: &str = "reserved";

/// A set of labels: `source:key` to value, sorted by key and then by source.
///
/// Equality of two sets is equality of the identities they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(BTreeMap<LabelKey, String>);

/// Where a label comes from and what it is called.
///
/// The key is compared first: the canonical order of a label set is by key (operator.md 5.4).
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
        self.0.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    }

    /// Adds a label; one of the same source and key is replaced.
    pub fn insert(&mut self, source: &str, key: &str, value: &str) {
        let name = LabelKey { key: key.to_owned(), source: source.to_owned() };
        self.0.insert(name, value.to_owned());
    }

    /// The value of `source:key`.
    pub fn get(&self, source: &str, key: &str) -> Option<&str> {
        let name = LabelKey { key: key.to_owned(), source: source.to_owned() };
        self.0.get(&name).map(String::as_str)
    }

    /// Every label, by key and then by source.
    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &str)> {
        self.0.iter().map(|(name, value)| (name, value.as_str()))
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
    fn security_labels_round_trip() {
        let mut labels = Labels::reserved("host");
        labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
        assert_eq!(Labels::from_security_labels(&labels.to_security_labels()), labels);
    }
}
