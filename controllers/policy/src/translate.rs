//! Turns label selectors as users write them into selectors that mean what the policy's place
//! implies: its namespace, its cluster, the labels' sources.

use cilia_crds::{LabelSelector, LabelSelectorOperator};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use crate::config::Config;
use crate::error::Error;
use crate::label_syntax;
use crate::selector::{
    CLUSTER, K8S, Key, NAMESPACE, NAMESPACE_LABELS, Operator, RESERVED, Requirement, Selector,
};

/// Where a policy is, as far as its selectors are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The policy's namespace; without it is cluster-wide.
    pub(crate) namespace: Option<&'a str>,
    /// The subject is the `init` identity: its peers may have no namespace either.
    pub(crate) of_init: bool,
    pub(crate) config: &'a Config,
}

/// The requirements of a selector of Cilium's, as they are written.
pub(crate) fn requirements(
    selector: &LabelSelector,
    field: &str,
) -> Result<Vec<Requirement>, Error> {
    let labels = selector.match_labels.iter().map(|(key, value)| {
        let field = format!("{field}.matchLabels[{key:?}]");
        if let Some(fault) = label_syntax::fault_of_value(value) {
            return Err(Error::new(field, fault));
        }
        Ok(Requirement::equals(self::key(key, &field)?, value))
    });
    let expressions = selector.match_expressions.iter().enumerate().map(|(index, expression)| {
        let field = format!("{field}.matchExpressions[{index}]");
        for (index, value) in expression.values.iter().enumerate() {
            if let Some(fault) = label_syntax::fault_of_value(value) {
                return Err(Error::new(format_args!("{field}.values[{index}]"), fault));
            }
        }
        let values = || {
            expression.values.iter().map(|value| value.as_str().into()).collect::<Vec<Box<str>>>()
        };
        let operator = match expression.operator {
            LabelSelectorOperator::In => Operator::In(values()),
            LabelSelectorOperator::NotIn => Operator::NotIn(values()),
            LabelSelectorOperator::Exists => Operator::Exists,
            LabelSelectorOperator::DoesNotExist => Operator::DoesNotExist,
        };
        let key = key(&expression.key, &format!("{field}.key"))?;
        counted(Requirement { key, operator }, expression.values.len(), &field)
    });
    labels.chain(expressions).collect()
}

/// A key that a label can have; its source is whatever is written.
fn key(text: &str, field: &str) -> Result<Key, Error> {
    let key = Key::parse(text);
    match label_syntax::fault_of_key(&key.name) {
        Some(fault) => Err(Error::new(field, fault)),
        None => Ok(key),
    }
}

/// A requirement whose operator and number of values agree.
fn counted(requirement: Requirement, values: usize, field: &str) -> Result<Requirement, Error> {
    match requirement.operator {
        Operator::In(_) | Operator::NotIn(_) if values == 0 => Err(Error::new(
            format_args!("{field}.values"),
            "operators In and NotIn need at least one value",
        )),
        Operator::Exists | Operator::DoesNotExist if values > 0 => Err(Error::new(
            format_args!("{field}.values"),
            "operators Exists and DoesNotExist take no values",
        )),
        _ => Ok(requirement),
    }
}

/// The subject of a policy; and whether the user asked for another namespace, in vain.
pub(crate) fn subject(mut written: Vec<Requirement>, namespace: Option<&str>) -> (Selector, bool) {
    let Some(namespace) = namespace else { return (Selector::new(written), false) };
    let own = Requirement::equals(Key::new(K8S, NAMESPACE), namespace);
    let foreign = |requirement: &Requirement| requirement.key.is_k8s(NAMESPACE);
    let overridden = written
        .iter()
        .any(|requirement| foreign(requirement) && requirement.operator != own.operator);
    written.retain(|requirement| !foreign(requirement));
    written.push(own);
    (Selector::new(written), overridden)
}

impl Scope<'_> {
    /// A peer selector of endpoints.
    pub(crate) fn peer(&self, mut written: Vec<Requirement>) -> Selector {
        if written.iter().any(|requirement| &*requirement.key.source == RESERVED) {
            return Selector::new(written);
        }
        self.complete(&mut written);
        Selector::new(written)
    }

    /// Adds the namespace and the cluster that the place implies.
    pub(crate) fn complete(&self, written: &mut Vec<Requirement>) {
        let names = |name: &str| written.iter().any(|requirement| requirement.key.is_k8s(name));
        let by_namespace_labels =
            written.iter().any(|requirement| requirement.key.name.starts_with(NAMESPACE_LABELS));
        let place = match self.namespace {
            _ if names(NAMESPACE) => None,
            Some(_) if by_namespace_labels => None,
            Some(namespace) => Some(Requirement::equals(Key::new(K8S, NAMESPACE), namespace)),
            None if self.of_init => None,
            None => Some(Requirement::exists(Key::new(K8S, NAMESPACE))),
        };
        let cluster = (self.config.local_cluster && !names(CLUSTER))
            .then(|| Requirement::equals(Key::new(K8S, CLUSTER), &self.config.cluster));
        written.extend(place.into_iter().chain(cluster));
    }
}

/// The requirements of a selector of Kubernetes'; `prefix` goes before every key.
pub(crate) fn kubernetes(
    selector: &meta::LabelSelector,
    prefix: &str,
    field: &str,
) -> Result<Vec<Requirement>, Error> {
    // Values that can't be are the API server's business, which admits them in old objects.
    let key = |name: &str, field: &str| match label_syntax::fault_of_key(name) {
        Some(fault) => Err(Error::new(field, fault)),
        None => Ok(Key::new(K8S, &format!("{prefix}{name}"))),
    };
    let labels = selector.match_labels.iter().flatten().map(|(name, value)| {
        let key = key(name, &format!("{field}.matchLabels[{name:?}]"))?;
        Ok(Requirement::equals(key, value))
    });
    let expressions =
        selector.match_expressions.iter().flatten().enumerate().map(|(index, expression)| {
            let field = format!("{field}.matchExpressions[{index}]");
            let written = expression.values.as_deref().unwrap_or_default();
            let values = written.iter().map(|value| value.as_str().into()).collect();
            let operator = match expression.operator.as_str() {
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    let fault = format!("{other:?} is not one of In, NotIn, Exists, DoesNotExist");
                    return Err(Error::new(format_args!("{field}.operator"), fault));
                }
            };
            let key = key(&expression.key, &format!("{field}.key"))?;
            counted(Requirement { key, operator }, written.len(), &field)
        });
    labels.chain(expressions).collect()
}
