//! Decides which identities a label selector means.
//!
//! A [`Selector`] is the form after translation: every key has a source, and the
//! namespace and cluster that a policy implies are requirements like any other. Two selectors that
//! mean the same by the letter are equal, so that they can be shared.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use cilia_crds::Labels;

/// The pod's namespace, as a label of its identity.
pub const NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// What the labels of the pod's namespace start with in its identity.
pub const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
/// The cluster that an identity belongs to.
pub const CLUSTER: &str = "io.cilium.k8s.policy.cluster";
/// The source that stands for every source.
pub const ANY: &str = "any";
/// Labels that come from Kubernetes.
pub const K8S: &str = "k8s";
/// Labels of reserved identities.
pub const RESERVED: &str = "reserved";

/// A label's name in a selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Where the label must come from; [`ANY`] for anywhere.
    pub source: Box<str>,
    /// The name without its source.
    pub name: Box<str>,
}

impl Key {
    /// A key of `source`.
    pub fn new(source: &str, name: &str) -> Self {
        Self { source: source.into(), name: name.into() }
    }

    /// Reads a key as users write it: what is before the first `:` is the source, `any` without it.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((source, name)) if !source.is_empty() => Self::new(source, name),
            Some((_, name)) => Self::new(ANY, name),
            None => Self::new(ANY, text),
        }
    }

    /// Whether a label of this key could be one that Kubernetes sets under `name`.
    pub fn is_k8s(&self, name: &str) -> bool {
        &*self.name == name && matches!(&*self.source, ANY | K8S)
    }

    fn values<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a str> {
        labels.iter().filter_map(|(label, value)| {
            (label.key == *self.name && (&*self.source == ANY || label.source == *self.source))
                .then_some(value)
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.name)
    }
}

/// What a requirement asks of the label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is there with one of these values.
    In(Vec<Box<str>>),
    /// The label isn't there with any of these values.
    NotIn(Vec<Box<str>>),
    /// The label is there.
    Exists,
    /// The label isn't there.
    DoesNotExist,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label.
    pub key: Key,
    /// The condition.
    pub operator: Operator,
}

impl Requirement {
    /// The label has this value.
    pub fn equals(key: Key, value: &str) -> Self {
        Self { key, operator: Operator::In(vec![value.into()]) }
    }

    /// The label is there.
    pub fn exists(key: Key) -> Self {
        Self { key, operator: Operator::Exists }
    }

    /// Whether an identity with these labels meets the condition.
    pub fn matches(&self, labels: &Labels) -> bool {
        let mut values = self.key.values(labels);
        match &self.operator {
            Operator::In(allowed) => values.any(|value| allowed.iter().any(|a| **a == *value)),
            Operator::NotIn(refused) => !values.any(|value| refused.iter().any(|r| **r == *value)),
            Operator::Exists => values.next().is_some(),
            Operator::DoesNotExist => values.next().is_none(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.operator {
            Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
            Operator::In(values) => write!(f, "{key} in ({})", values.join(",")),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

/// Requirements that must all be met; without any, every identity is meant.
///
/// Copies share their requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(Arc<[Requirement]>);

impl Selector {
    /// A selector of these requirements, in canonical order.
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut all: Vec<Requirement> = requirements.into_iter().collect();
        for requirement in &mut all {
            if let Operator::In(values) | Operator::NotIn(values) = &mut requirement.operator {
                values.sort_unstable();
                values.dedup();
            }
        }
        all.sort_unstable();
        all.dedup();
        Self(all.into())
    }

    /// The identity of a reserved label.
    pub fn reserved(name: &str) -> Self {
        Self([Requirement::exists(Key::new(RESERVED, name))].into())
    }

    /// The same with more requirements.
    #[must_use]
    pub fn and(&self, more: &[Requirement]) -> Self {
        Self::new(self.0.iter().chain(more).cloned())
    }

    /// The requirements in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.0
    }

    /// Whether an identity with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// A label that every selected identity has: where an index may look for it.
    ///
    /// The namespace is preferred, because it divides a cluster best.
    pub fn anchor(&self) -> Option<(&str, &str)> {
        let equalities = self.0.iter().filter_map(|requirement| match &requirement.operator {
            Operator::In(values) if values.len() == 1 => {
                Some((&*requirement.key.name, &*values[0]))
            }
            _ => None,
        });
        equalities.min_by_key(|(name, _)| *name != NAMESPACE)
    }
}

/// Selectors of many rules, each stored once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interned {
    known: HashSet<Selector>,
    /// How many there were when the unused ones were last forgotten.
    kept: usize,
}

impl Interned {
    /// Lets a selector share its requirements with others that say the same.
    pub(crate) fn share(&mut self, selector: &mut Selector) {
        if let Some(known) = self.known.get(selector) {
            *selector = known.clone();
            return;
        }
        self.known.insert(selector.clone());
        if self.known.len() > 1024 + 2 * self.kept {
            self.known.retain(|selector| Arc::strong_count(&selector.0) > 1);
            self.kept = self.known.len();
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("*");
        }
        for (index, requirement) in self.0.iter().enumerate() {
            write!(f, "{}{requirement}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::Labels;

    use super::{Key, Operator, Requirement, Selector};

    fn labels(list: &[&str]) -> Labels {
        let mut labels = Labels::new();
        for label in list {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            let (source, key) = key.split_once(':').expect("a source");
            labels.insert(source, key, value);
        }
        labels
    }

    #[test]
    fn requirements() {
        let with = |key: &str, operator| Requirement { key: Key::parse(key), operator };
        let a = || vec!["a".into()];
        let cases: &[(&str, Requirement, &[&str], bool)] = &[
            ("in", with("k8s:app", Operator::In(a())), &["k8s:app=a"], true),
            ("in, other value", with("k8s:app", Operator::In(a())), &["k8s:app=b"], false),
            ("in, other source", with("k8s:app", Operator::In(a())), &["container:app=a"], false),
            (
                "any source is the default",
                with("app", Operator::In(a())),
                &["container:app=a"],
                true,
            ),
            ("any source", with("any:app", Operator::In(a())), &["x:app=b", "k8s:app=a"], true),
            ("not in, other value", with("app", Operator::NotIn(a())), &["k8s:app=b"], true),
            ("not in, absent", with("app", Operator::NotIn(a())), &["k8s:x=a"], true),
            ("not in", with("app", Operator::NotIn(a())), &["k8s:app=a"], false),
            ("exists", with("app", Operator::Exists), &["k8s:app=z"], true),
            ("does not exist", with("app", Operator::DoesNotExist), &["k8s:app=z"], false),
            ("reserved", with("reserved:host", Operator::Exists), &["reserved:host"], true),
        ];
        for (name, requirement, set, want) in cases {
            assert_eq!(requirement.matches(&labels(set)), *want, "{name}");
        }
    }

    #[test]
    fn equal_meaning_is_equal() {
        let key = Key::parse("k8s:app");
        let one = Requirement {
            key: key.clone(),
            operator: Operator::In(vec!["b".into(), "a".into(), "a".into()]),
        };
        let two =
            Requirement { key: key.clone(), operator: Operator::In(vec!["a".into(), "b".into()]) };
        let other = Requirement::exists(Key::parse("x"));
        assert_eq!(Selector::new([one, other.clone()]), Selector::new([other.clone(), two, other]));
        assert_eq!(Selector::new([Requirement::equals(key, "a")]).to_string(), "k8s:app=a");
        assert_eq!(Selector::default().to_string(), "*");
    }
}
