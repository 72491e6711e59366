//! Decides which settings result from several sources.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::json;

/// What a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    ConfigMap,
    NodeConfig,
    Node,
}

/// Where settings come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What a source says.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) source: Source,
    pub(super) settings: BTreeMap<String, String>,
}

/// Which settings sources after the first may change.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    /// If there are any, only these.
    pub(super) allow: Vec<String>,
    /// Otherwise all but these.
    pub(super) deny: Vec<String>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "config-map",
            Self::NodeConfig => "cilium-node-config",
            Self::Node => "node",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.kind.name(), self.namespace, self.name)
    }
}

impl Source {
    /// Reads `config-map:[ns/]name`, `cilium-node-config:[ns][/name]` or `node:[name]`.
    pub(super) fn parse(text: &str, namespace: &str, node: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let or = |text: &str, otherwise: &str| {
            if text.is_empty() { otherwise.to_owned() } else { text.to_owned() }
        };
        let (kind, namespace, name) = match kind {
            "config-map" => match rest.split_once('/') {
                Some((of, name)) => (Kind::ConfigMap, or(of, namespace), name.to_owned()),
                None => (Kind::ConfigMap, namespace.to_owned(), rest.to_owned()),
            },
            "cilium-node-config" => {
                let (of, name) = rest.split_once('/').unwrap_or((rest, ""));
                (Kind::NodeConfig, or(of, namespace), name.to_owned())
            }
            "node" => (Kind::Node, String::new(), or(rest, node)),
            _ => {
                return Err(format!(
                    "{text:?}: use config-map:[NAMESPACE/]NAME, cilium-node-config:[NAMESPACE][/NAME] \
                     or node:[NAME]"
                ));
            }
        };
        if name.is_empty() && kind != Kind::NodeConfig {
            return Err(format!("{text:?} names no object"));
        }
        Ok(Self { kind, namespace, name })
    }
}

impl Filter {
    fn admits(&self, setting: &str) -> bool {
        let is_in = |list: &[String]| list.iter().any(|one| one == setting);
        if self.allow.is_empty() { !is_in(&self.deny) } else { is_in(&self.allow) }
    }
}

/// The settings, later sources over earlier ones, with where they come from; and warnings.
pub(super) fn merge(found: Vec<Found>, filter: &Filter) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut settings, mut warnings) = (BTreeMap::new(), Vec::new());
    let sources: Vec<_> = found
        .iter()
        .map(|Found { source, .. }| {
            json!({"kind": source.kind.name(), "namespace": source.namespace, "name": source.name})
        })
        .collect();
    for (index, Found { source, settings: of }) in found.into_iter().enumerate() {
        for (setting, value) in of {
            if setting.contains(['/', '\\']) || setting == "." || setting == ".." {
                warnings.push(format!("{source}: {setting:?} can't be a file's name: left out"));
            } else if index > 0 && !filter.admits(&setting) {
                warnings.push(format!("{source}: {setting} may not be changed there: left out"));
            } else {
                settings.insert(setting, value);
            }
        }
    }
    // As Go writes a list that has nothing in it.
    let keys = |list: &[String]| if list.is_empty() { json!(null) } else { json!(list) };
    let overrides =
        json!({"allowConfigKeys": keys(&filter.allow), "denyConfigKeys": keys(&filter.deny)});
    settings.insert("config-sources".into(), json!(sources).to_string());
    settings.insert("config-sources-overrides".into(), overrides.to_string());
    (settings, warnings)
}

/// Whether a selector means an object with these labels; an unknown operator means none.
pub(super) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    equal.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| {
            let value = labels.get(&expression.key);
            let among = || {
                value.is_some_and(|value| expression.values.iter().flatten().any(|v| v == value))
            };
            match expression.operator.as_str() {
                "In" => among(),
                "NotIn" => !among(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{Filter, Found, Source, merge, selects};

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn sources_have_forms() {
        let cases = [
            ("config-map:cilium-config", "config-map:ns/cilium-config"),
            ("config-map:other/c", "config-map:other/c"),
            ("cilium-node-config:", "cilium-node-config:ns/"),
            ("cilium-node-config:a/b", "cilium-node-config:a/b"),
            ("node:", "node:/n1"),
            ("node:n2", "node:/n2"),
        ];
        for (text, want) in cases {
            assert_eq!(Source::parse(text, "ns", "n1").expect(text).to_string(), want);
        }
        assert!(Source::parse("secret:x", "ns", "n1").is_err());
        assert!(Source::parse("config-map:", "ns", "n1").is_err());
    }

    #[test]
    fn later_sources_win_where_they_may() {
        let found = |source: &str, settings: &[(&str, &str)]| Found {
            source: Source::parse(source, "ns", "n1").expect(source),
            settings: map(settings),
        };
        let sources = || {
            vec![
                found("config-map:c", &[("mtu", "1500"), ("debug", "false"), ("a/b", "1")]),
                found("cilium-node-config:ns/x", &[("mtu", "9000"), ("debug", "true")]),
            ]
        };
        let cases = [
            (&[][..], &[][..], "9000", "true"),
            (&["mtu"], &[], "9000", "false"),
            (&[], &["mtu"], "1500", "true"),
            (&["mtu"], &["mtu"], "9000", "false"),
        ];
        for (allow, deny, mtu, debug) in cases {
            let list = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            let filter = Filter { allow: list(allow), deny: list(deny) };
            let (settings, warnings) = merge(sources(), &filter);
            assert_eq!((settings["mtu"].as_str(), settings["debug"].as_str()), (mtu, debug));
            assert!(!settings.contains_key("a/b") && !warnings.is_empty());
            let want = json!([{"kind": "config-map", "namespace": "ns", "name": "c"},
                {"kind": "cilium-node-config", "namespace": "ns", "name": "x"}]);
            assert_eq!(settings["config-sources"], want.to_string());
        }
    }

    #[test]
    fn selectors_mean_what_kubernetes_says() {
        let labels = map(&[("zone", "a")]);
        let cases = [
            (json!({}), true),
            (json!({"matchLabels": {"zone": "a"}}), true),
            (json!({"matchLabels": {"zone": "b"}}), false),
            (
                json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b", "a"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "rack", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "Near"}]}), false),
        ];
        for (selector, want) in cases {
            let parsed = serde_json::from_value(selector.clone()).expect("a selector");
            assert_eq!(selects(&parsed, &labels), want, "{selector}");
        }
    }
}
