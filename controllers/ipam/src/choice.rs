//! Decides out of which pool a pod gets its address.
//!
//! The first that says something counts: the pod's annotations, its namespace's, the pools whose selectors
//! match it, and last the default pool.

use std::collections::BTreeMap;

use cilia_crds::{LabelSelector, LabelSelectorOperator};

use crate::family::Family;

/// Every annotation that says something about pools begins so.
pub const ANNOTATION_PREFIX: &str = "ipam.cilium.io/";
const IP_POOL: &str = "ipam.cilium.io/ip-pool";
const IPV4_POOL: &str = "ipam.cilium.io/ipv4-pool";
const IPV6_POOL: &str = "ipam.cilium.io/ipv6-pool";
const REQUIRE_MATCH: &str = "ipam.cilium.io/require-pool-match";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_NAME: &str = "io.kubernetes.pod.name";

/// A pod that wants an address.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its annotations; those of [`ANNOTATION_PREFIX`] are enough.
    pub annotations: &'a BTreeMap<String, String>,
    /// The labels of its namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// The annotations of its namespace.
    pub namespace_annotations: &'a BTreeMap<String, String>,
}

/// A pool, as far as the choice goes. About 100 bytes, beside its selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectable {
    /// Whether it has IPv4 ranges.
    pub v4: bool,
    /// Whether it has IPv6 ranges.
    pub v6: bool,
    /// Pods that it is for.
    pub pods: Option<LabelSelector>,
    /// Namespaces whose pods it is for.
    pub namespaces: Option<LabelSelector>,
}

/// Why there is no pool for a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// More than one pool claims it.
    #[error(
        "choose {family} pool of pod {pod}: several CiliumPodIPPools select it: {pools}; name one in the annotation {IP_POOL}"
    )]
    Several {
        /// The family.
        family: Family,
        /// Namespace and name.
        pod: String,
        /// The pools.
        pools: String,
    },
    /// It must not fall back to the default pool.
    #[error(
        "choose {family} pool of pod {pod}: no CiliumPodIPPool selects it, and {REQUIRE_MATCH} is set"
    )]
    None {
        /// The family.
        family: Family,
        /// Namespace and name.
        pod: String,
    },
}

/// The pool out of which the pod gets its address of the family.
pub fn choose(
    family: Family,
    pod: Candidate<'_>,
    pools: &BTreeMap<String, Selectable>,
    default: &str,
) -> Result<String, ChoiceError> {
    let by_annotation = [pod.annotations, pod.namespace_annotations]
        .into_iter()
        .find_map(|annotations| annotated(annotations, family));
    if let Some(pool) = by_annotation {
        return Ok(pool.to_owned());
    }
    let who = || format!("{}/{}", pod.namespace, pod.name);
    let selecting: Vec<&str> = pools
        .iter()
        .filter(|(_, pool)| pool.has(family) && pool.selects(pod))
        .map(|(name, _)| name.as_str())
        .collect();
    match selecting.as_slice() {
        [pool] => Ok((*pool).to_owned()),
        [] => {
            let requires = |annotations: &BTreeMap<String, String>| {
                annotations.get(REQUIRE_MATCH).is_some_and(|value| value == "true")
            };
            if requires(pod.annotations) || requires(pod.namespace_annotations) {
                return Err(ChoiceError::None { family, pod: who() });
            }
            Ok(default.to_owned())
        }
        several => Err(ChoiceError::Several { family, pod: who(), pools: several.join(", ") }),
    }
}

fn annotated(annotations: &BTreeMap<String, String>, family: Family) -> Option<&str> {
    let own = match family {
        Family::V4 => IPV4_POOL,
        Family::V6 => IPV6_POOL,
    };
    let value = annotations.get(own).or_else(|| annotations.get(IP_POOL))?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

impl Selectable {
    fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn selects(&self, pod: Candidate<'_>) -> bool {
        if self.pods.is_none() && self.namespaces.is_none() {
            return false;
        }
        let of_pod = |key: &str| match key {
            POD_NAMESPACE => Some(pod.namespace),
            POD_NAME => Some(pod.name),
            key => pod.labels.get(key).map(String::as_str),
        };
        let of_namespace = |key: &str| match key {
            POD_NAMESPACE => Some(pod.namespace),
            key => pod.namespace_labels.get(key).map(String::as_str),
        };
        self.pods.as_ref().is_none_or(|selector| matches(selector, of_pod))
            && self.namespaces.as_ref().is_none_or(|selector| matches(selector, of_namespace))
    }
}

fn matches<'a>(selector: &LabelSelector, value: impl Fn(&str) -> Option<&'a str>) -> bool {
    let labels = selector.match_labels.iter().all(|(key, want)| value(key) == Some(want));
    labels
        && selector.match_expressions.iter().all(|one| {
            let value = value(&one.key);
            let among = value.is_some_and(|value| one.values.iter().any(|want| want == value));
            match one.operator {
                LabelSelectorOperator::In => among,
                LabelSelectorOperator::NotIn => !among,
                LabelSelectorOperator::Exists => value.is_some(),
                LabelSelectorOperator::DoesNotExist => value.is_none(),
            }
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_crds::LabelSelector;

    use super::{Candidate, Selectable, choose};
    use crate::Family;

    type Map = BTreeMap<String, String>;
    type Case<'a> = (
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a [(&'a str, &'a str)],
        &'a [(&'a str, &'a Selectable)],
        &'a str,
        &'a str,
    );

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn selector(pairs: &[(&str, &str)]) -> LabelSelector {
        LabelSelector { match_labels: map(pairs), ..LabelSelector::default() }
    }

    #[test]
    fn the_first_that_says_something_counts() {
        let both = Selectable { v4: true, v6: true, ..Selectable::default() };
        let web = Selectable { pods: Some(selector(&[("app", "web")])), ..both.clone() };
        let staging = Selectable {
            namespaces: Some(selector(&[("stage", "test")])),
            pods: Some(selector(&[("app", "web")])),
            ..both.clone()
        };
        let only4 = Selectable { v6: false, ..web.clone() };
        let named = Selectable {
            pods: Some(selector(&[
                ("io.kubernetes.pod.namespace", "n"),
                ("io.kubernetes.pod.name", "p"),
            ])),
            ..both.clone()
        };
        let ip = |value| [("ipam.cilium.io/ip-pool", value)];
        let require = [("ipam.cilium.io/require-pool-match", "true")];
        let blue = ip("blue");
        let red = ip("red");
        let split = [("ipam.cilium.io/ip-pool", "blue"), ("ipam.cilium.io/ipv6-pool", "six")];
        let cases: &[Case<'_>] = &[
            ("nothing", &[], &[], &[("plain", &both)], "default", "default"),
            ("the pod", &blue, &red, &[("web", &web)], "blue", "blue"),
            ("a family's own", &split, &red, &[], "blue", "six"),
            ("the namespace", &[], &red, &[("web", &web)], "red", "red"),
            ("a selector", &[], &[], &[("web", &web), ("plain", &both)], "web", "web"),
            ("both selectors must match", &[], &[], &[("staging", &staging)], "default", "default"),
            ("only of the family", &[], &[], &[("four", &only4)], "four", "default"),
            ("name and namespace", &[], &[], &[("named", &named)], "named", "named"),
            ("several", &[], &[], &[("a", &web), ("b", &named)], "!several", "!several"),
            ("none, but required", &require, &[], &[("four", &only4)], "four", "!no Cilium"),
            ("required of all in the namespace", &[], &require, &[], "!no Cilium", "!no Cilium"),
            ("an empty annotation says nothing", &ip(""), &[], &[], "default", "default"),
        ];
        let (labels, namespace_labels) = (map(&[("app", "web")]), map(&[("stage", "live")]));
        for (name, of_pod, of_namespace, pools, v4, v6) in cases {
            let (annotations, namespace_annotations) = (map(of_pod), map(of_namespace));
            let pod = Candidate {
                namespace: "n",
                name: "p",
                labels: &labels,
                annotations: &annotations,
                namespace_labels: &namespace_labels,
                namespace_annotations: &namespace_annotations,
            };
            let pools: BTreeMap<String, Selectable> =
                pools.iter().map(|&(name, pool)| (name.to_owned(), pool.clone())).collect();
            for (family, want) in [(Family::V4, v4), (Family::V6, v6)] {
                match (choose(family, pod, &pools, "default"), want.strip_prefix('!')) {
                    (Ok(pool), None) => assert_eq!(pool, **want, "{name}: {family}"),
                    (Err(error), Some(words)) => {
                        assert!(error.to_string().contains(words), "{name}: {error}");
                    }
                    (got, _) => panic!("{name}: {family}: {got:?}, not {want}"),
                }
            }
        }
    }
}
