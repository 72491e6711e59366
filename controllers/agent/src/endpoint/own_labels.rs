//! Decides which labels make an endpoint's identity once somebody has given it some of their own, beside its pod's.
//!
//! As in Cilium a key has one label, whoever says it. A label whose key the pod does not have is the user's: it is
//! listed as such, and can be taken back. One whose key the pod has replaces the pod's, and stays; if it claims to
//! come from Kubernetes, only until the pod says something else, or the agent starts anew.

use std::collections::BTreeMap;

use cilia_crds::labels::{SOURCE_K8S, SOURCE_RESERVED};
use cilia_crds::{LabelKey, Labels};
use serde::{Deserialize, Serialize};

/// The source of labels that don't say theirs.
const UNSPECIFIED: &str = "unspec";
/// How many labels a request may have, and how long each may be.
const MOST: usize = 64;
const LONGEST: usize = 512;

/// What somebody has given an endpoint beside the labels of its pod; mostly nothing: 48 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnLabels {
    custom: BTreeMap<String, Label>,
    replaced: BTreeMap<String, Label>,
}

/// A label without its key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Label {
    source: String,
    value: String,
    /// What the pod's was when this took its place.
    former: Option<String>,
}

/// Labels as somebody wants an endpoint to have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted(BTreeMap<String, Label>);

/// Why an endpoint can't have the labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There are too many, or one is too long.
    #[error("at most {MOST} labels of {LONGEST} bytes may be given")]
    TooMuch,
    /// Who reads it in the kvstore would take it for others.
    #[error(
        "{0:?} can't be told to others: no label has ';' or control characters, no source '/' or '='"
    )]
    Unreadable(String),
    /// Reserved labels mean what Cilium says they do.
    #[error("Not allowed to add reserved labels: {0}")]
    Reserved(String),
}

impl Wanted {
    /// Reads labels as `source:key=value`, `key=value` or `$reserved`.
    pub fn read<S: AsRef<str>>(labels: &[S]) -> Result<Self, Fault> {
        if labels.len() > MOST || labels.iter().any(|label| label.as_ref().len() > LONGEST) {
            return Err(Fault::TooMuch);
        }
        if let Some(label) = labels.iter().find(|label| !is_readable(label.as_ref())) {
            return Err(Fault::Unreadable(label.as_ref().to_owned()));
        }
        let read = labels.iter().map(|label| parse(label.as_ref()));
        Ok(Self(read.filter(|(key, _)| !key.is_empty()).collect()))
    }
}

/// Whether a set of labels with this one is read as it was written: `source:key=value;` for each.
fn is_readable(text: &str) -> bool {
    let source = text.split_once(':').map_or("", |(source, _)| source);
    !text.contains(|char: char| char == ';' || char.is_control()) && !source.contains(['/', '='])
}

fn parse(text: &str) -> (String, Label) {
    let (source, rest) = match (text.strip_prefix('$'), text.split_once(':')) {
        (Some(name), _) => (SOURCE_RESERVED, name),
        (None, Some((source, rest))) => (source, rest),
        (None, None) => match text.strip_prefix("reserved.") {
            Some(name) => (SOURCE_RESERVED, name),
            None => ("", text),
        },
    };
    let (key, value) = match rest.split_once('=') {
        Some(("", name)) if source == SOURCE_RESERVED => (name, ""),
        Some(pair) => pair,
        None => (rest, ""),
    };
    let source = if source.is_empty() { UNSPECIFIED } else { source };
    (key.to_owned(), Label { source: source.to_owned(), value: value.to_owned(), former: None })
}

impl OwnLabels {
    /// Makes the user's labels those that are wanted; of new ones only those count that the node's filter accepts.
    pub fn set(
        &mut self,
        wanted: &Wanted,
        pods: &Labels,
        accepts: impl Fn(&LabelKey) -> bool,
    ) -> Result<(), Fault> {
        let counts = |key: &str, label: &Label| {
            accepts(&LabelKey { key: key.to_owned(), source: label.source.clone() })
        };
        let new = |(key, label): &(&String, &Label)| {
            !self.custom.contains_key(*key) && counts(key, label)
        };
        let new: Vec<(&String, &Label)> = wanted.0.iter().filter(new).collect();
        let reserved = new.iter().filter(|(_, label)| label.source == SOURCE_RESERVED);
        let reserved: Vec<String> = reserved.map(|(key, label)| shown(key, label)).collect();
        if !reserved.is_empty() {
            return Err(Fault::Reserved(reserved.join(",")));
        }
        let kept =
            |key: &String, label: &mut Label| wanted.0.contains_key(key) || !counts(key, label);
        self.custom.retain(kept);
        for (key, label) in new {
            let of_pod = pods.iter().find(|(name, _)| name.key == *key);
            match (of_pod, self.replaced.contains_key(key)) {
                (None, false) => drop(self.custom.insert(key.clone(), label.clone())),
                (former, _) => {
                    let former = former.map(|(_, value)| value.to_owned());
                    self.replaced.insert(key.clone(), Label { former, ..label.clone() });
                }
            }
        }
        Ok(())
    }

    /// The labels that make the identity of an endpoint whose pod has these.
    pub fn over(&self, pods: &Labels) -> Labels {
        if self.is_empty() {
            return pods.clone();
        }
        let own = |key: &str| self.replaced.get(key).filter(|label| label.holds(key, pods));
        let mut labels = pods.filtered(|name| own(&name.key).is_none());
        for (key, label) in &self.replaced {
            if label.holds(key, pods) {
                labels.insert(&label.source, key, &label.value);
            }
        }
        for (key, label) in &self.custom {
            if !pods.iter().any(|(name, _)| name.key == *key) {
                labels.insert(&label.source, key, &label.value);
            }
        }
        labels
    }

    /// Those of an endpoint's labels that are not the user's.
    pub fn without(&self, labels: &Labels) -> Labels {
        labels.filtered(|name| {
            let is = labels.get(&name.source, &name.key);
            let own = self.custom.get(&name.key);
            own.is_none_or(|own| own.source != name.source || Some(&*own.value) != is)
        })
    }

    /// The user's labels, sorted.
    pub fn user(&self) -> Vec<String> {
        let mut labels: Vec<String> =
            self.custom.iter().map(|(key, label)| shown(key, label)).collect();
        labels.sort_unstable();
        labels
    }

    /// What the next agent is to know of it.
    pub fn lasting(&self) -> Self {
        let mut lasting = self.clone();
        lasting.replaced.retain(|_, label| label.source != SOURCE_K8S);
        lasting
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.custom.is_empty() && self.replaced.is_empty()
    }
}

impl Label {
    /// Whether it still stands in the place of the pod's label of this key.
    fn holds(&self, key: &str, pods: &Labels) -> bool {
        self.source != SOURCE_K8S || pods.get(SOURCE_K8S, key) == self.former.as_deref()
    }
}

fn shown(key: &str, label: &Label) -> String {
    let Label { source, value, .. } = label;
    if value.is_empty() { format!("{source}:{key}") } else { format!("{source}:{key}={value}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_crds::Labels;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::{Fault, OwnLabels, Wanted};

    fn labels(all: &[&str]) -> Labels {
        let mut labels = Labels::new();
        for label in all {
            let (source, rest) = label.split_once(':').expect("a source");
            let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
            labels.insert(source, key, value);
        }
        labels
    }

    fn wanted(all: &[&str]) -> Wanted {
        Wanted::read(all).expect("labels")
    }

    #[test]
    fn labels_say_whose_they_are() {
        let cases = [
            ("a=b", "unspec:a=b"),
            ("a", "unspec:a"),
            ("k8s:a=b=c", "k8s:a=b=c"),
            (":a", "unspec:a"),
            ("container:a.b/c=", "container:a.b/c"),
        ];
        for (text, want) in cases {
            let mut own = OwnLabels::default();
            own.set(&wanted(&[text]), &Labels::new(), |_| true).expect("no reserved label");
            assert_eq!(own.user(), [want], "{text}");
        }
        for (text, want) in [
            ("$host", "reserved:host"),
            ("reserved.world", "reserved:world"),
            ("reserved:=init", "reserved:init"),
        ] {
            let set = OwnLabels::default().set(&wanted(&[text]), &Labels::new(), |_| true);
            assert_eq!(set, Err(Fault::Reserved(want.to_owned())), "{text}");
        }
        let mut own = OwnLabels::default();
        own.set(&wanted(&["", "k8s:", "=x"]), &Labels::new(), |_| true).expect("nothing");
        assert!(own.is_empty(), "labels have keys");
        assert_eq!(Wanted::read(&["a"; 65]), Err(Fault::TooMuch));
        assert_eq!(Wanted::read(&["a".repeat(513)]), Err(Fault::TooMuch));
        for text in ["a=b;k8s:app=db", "a=b;", "k;s:a", "a=\n", "/k8s:a=b", "a=b:c"] {
            let fault = Fault::Unreadable(text.to_owned());
            assert_eq!(Wanted::read(&[text]), Err(fault), "{text:?}");
        }
    }

    #[test]
    fn a_key_has_one_label() {
        let pods = labels(&["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]);
        let accepts = |name: &cilia_crds::LabelKey| name.key != "pod-template-hash";
        let mut own = OwnLabels::default();
        let first = wanted(&["stage=test", "app=db", "k8s:pod-template-hash=1"]);
        own.set(&first, &pods, accepts).expect("fine");
        let merged =
            labels(&["unspec:app=db", "k8s:io.kubernetes.pod.namespace=shop", "unspec:stage=test"]);
        assert_eq!(own.over(&pods), merged);
        assert_eq!(own.user(), ["unspec:stage=test"]);
        let orchestration = labels(&["unspec:app=db", "k8s:io.kubernetes.pod.namespace=shop"]);
        assert_eq!(own.without(&merged), orchestration);
        // A value of the user's label stays until the label is taken back.
        own.set(&wanted(&["stage=live"]), &pods, accepts).expect("fine");
        assert_eq!(own.user(), ["unspec:stage=test"]);
        own.set(&wanted(&[]), &pods, accepts).expect("fine");
        own.set(&wanted(&["stage=live"]), &pods, accepts).expect("fine");
        assert_eq!(own.user(), ["unspec:stage=live"]);
        // What the pod comes to say goes before the user's.
        let later = labels(&["k8s:stage=beta", "k8s:io.kubernetes.pod.namespace=shop"]);
        assert_eq!(own.over(&later).get("k8s", "stage"), Some("beta"));
        assert_eq!(own.over(&later).get("unspec", "stage"), None);
        assert_eq!(own.over(&later).get("unspec", "app"), Some("db"), "it stays");
    }

    #[test]
    fn kubernetes_has_the_last_word_about_its_labels() {
        let pods = labels(&["k8s:app=web"]);
        let mut own = OwnLabels::default();
        own.set(&wanted(&["k8s:app=db", "k8s:x=1"]), &pods, |_| true).expect("fine");
        assert_eq!(own.over(&pods), labels(&["k8s:app=db", "k8s:x=1"]));
        assert_eq!(own.over(&labels(&["k8s:app=web2"])), labels(&["k8s:app=web2", "k8s:x=1"]));
        assert_eq!(own.lasting().over(&pods), labels(&["k8s:app=web", "k8s:x=1"]));
    }

    /// Against one map from keys to labels, as long as the pod has none of the keys.
    #[test]
    fn the_user_s_labels_are_those_that_were_asked_for_first() {
        let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| rand::rng().random());
        eprintln!("CILIA_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let pods = labels(&["k8s:app=web", "k8s:tier=back"]);
        let (mut own, mut model) = (OwnLabels::default(), BTreeMap::new());
        for _ in 0..500 {
            let asked: BTreeMap<String, String> = (0..random.random_range(0..5))
                .map(|_| (format!("k{}", random.random_range(0..6)), random.random_range(0..3)))
                .map(|(key, value)| (key, value.to_string()))
                .collect();
            let texts: Vec<String> =
                asked.iter().map(|(key, value)| format!("{key}={value}")).collect();
            own.set(&Wanted::read(&texts).expect("few"), &pods, |_| true).expect("none reserved");
            model.retain(|key, _| asked.contains_key(key));
            for (key, value) in asked {
                model.entry(key).or_insert(value);
            }
            let want: Vec<String> =
                model.iter().map(|(key, value)| format!("unspec:{key}={value}")).collect();
            assert_eq!(own.user(), want);
            assert_eq!(own.without(&own.over(&pods)), pods);
            assert_eq!(own.over(&pods).len(), pods.len() + want.len());
            let text = serde_json::to_string(&own).expect("text");
            assert_eq!(serde_json::from_str::<OwnLabels>(&text).expect("the same"), own);
        }
    }
}
