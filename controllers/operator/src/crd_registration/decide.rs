//! Decides which kinds to register, whether an installed definition is too old, and whether it is in use.

use cilia_runtime::config::Config;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

const VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// The kinds of `all` that `config` asks for.
pub(super) fn wanted(
    all: Vec<CustomResourceDefinition>,
    config: &Config,
) -> Vec<CustomResourceDefinition> {
    let endpoints = !config.bool("disable-endpoint-crd");
    let policies = config.bool("enable-cilium-network-policy");
    let clusterwide = config.bool("enable-cilium-clusterwide-network-policy");
    let is_wanted = |crd: &CustomResourceDefinition| match crd.spec.names.kind.as_str() {
        "CiliumEndpoint" => endpoints,
        "CiliumEndpointSlice" => endpoints && config.bool("enable-cilium-endpoint-slice"),
        "CiliumNetworkPolicy" => policies,
        "CiliumClusterwideNetworkPolicy" => clusterwide,
        "CiliumCIDRGroup" => policies || clusterwide,
        _ => true,
    };
    all.into_iter().filter(is_wanted).collect()
}

/// Whether `installed` lacks a schema or is of an older version than `ours`.
pub(super) fn needs_update(
    installed: &CustomResourceDefinition,
    ours: &CustomResourceDefinition,
) -> bool {
    let has_schema =
        installed.spec.versions.first().is_some_and(|version| version.schema.is_some());
    !has_schema || version(installed).is_none_or(|version| Some(version) < self::version(ours))
}

/// `installed` with our labels and spec.
pub(super) fn updated(
    installed: CustomResourceDefinition,
    ours: &CustomResourceDefinition,
) -> CustomResourceDefinition {
    let mut crd = installed;
    crd.metadata.labels.clone_from(&ours.metadata.labels);
    crd.spec = ours.spec.clone();
    crd.spec.preserve_unknown_fields = Some(false);
    crd
}

/// How far the API server is with a definition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its objects can be used.
    Established,
    /// Another definition has its names.
    Rejected(String),
    /// Neither yet.
    Pending,
}

pub(super) fn progress(crd: &CustomResourceDefinition) -> Progress {
    let conditions =
        crd.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let condition = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    if let Some(names) = condition("NamesAccepted").filter(|names| names.status == "False") {
        return Progress::Rejected(names.message.clone().unwrap_or_default());
    }
    match condition("Established") {
        Some(established) if established.status == "True" => Progress::Established,
        _ => Progress::Pending,
    }
}

/// The schema version of a definition: three numbers; `None` if there is none that can be read.
fn version(crd: &CustomResourceDefinition) -> Option<[u64; 3]> {
    let text = crd.labels().get(VERSION_LABEL)?;
    let numbers: Vec<u64> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::{Progress, needs_update, progress, updated, wanted};
    use cilia_runtime::config::{Config, Flags};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    fn crd(version: Option<&str>, schema: bool) -> CustomResourceDefinition {
        let labels = version.map(|v| serde_json::json!({"io.cilium.k8s.crd.schema.version": v}));
        let schema = if schema {
            serde_json::json!({"openAPIV3Schema": {"type": "object"}})
        } else {
            serde_json::Value::Null
        };
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "x", "labels": labels, "resourceVersion": "7"},
            "spec": {
                "group": "cilium.io", "scope": "Cluster", "names": {"kind": "X", "plural": "xs"},
                "versions": [{"name": "v2", "served": true, "storage": true, "schema": schema}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn only_older_definitions_are_replaced() {
        let ours = crd(Some("1.32.3"), true);
        let cases = [
            (Some("1.32.3"), true, false),
            (Some("1.32.10"), true, false),
            (Some("2.0.0"), true, false),
            (Some("1.32.2"), true, true),
            (Some("1.9.9"), true, true),
            (Some("1.32"), true, true),
            (Some("soon"), true, true),
            (None, true, true),
            (Some("1.32.3"), false, true),
        ];
        for (version, schema, want) in cases {
            assert_eq!(needs_update(&crd(version, schema), &ours), want, "{version:?} {schema}");
        }
        let old = crd(Some("1.0.0"), false);
        assert!(!needs_update(&updated(old.clone(), &ours), &ours), "updating settles");
        assert_eq!(updated(old, &ours).metadata.resource_version.as_deref(), Some("7"), "guarded");
    }

    #[test]
    fn settings_choose_the_kinds() {
        let cases: &[(&[&str], usize, &[&str])] = &[
            (&[], 8, &["CiliumEndpointSlice"]),
            (&["--enable-cilium-endpoint-slice"], 9, &[]),
            (
                &["--enable-cilium-endpoint-slice", "--disable-endpoint-crd"],
                7,
                &["CiliumEndpoint", "CiliumEndpointSlice"],
            ),
            (&["--enable-cilium-network-policy=false"], 7, &["CiliumNetworkPolicy"]),
            (
                &[
                    "--enable-cilium-network-policy=false",
                    "--enable-cilium-clusterwide-network-policy=false",
                ],
                5,
                &["CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "CiliumCIDRGroup"],
            ),
        ];
        for (args, count, absent) in cases {
            let config =
                Config::load(Flags::operator(), args.iter().map(ToString::to_string), []).unwrap();
            let kinds: Vec<String> = wanted(cilia_crds::all(), &config)
                .into_iter()
                .map(|crd| crd.spec.names.kind)
                .collect();
            assert_eq!(kinds.len(), *count, "{args:?}: {kinds:?}");
            assert!(
                kinds.iter().all(|kind| !absent.contains(&kind.as_str())),
                "{args:?}: {kinds:?}"
            );
        }
    }

    #[test]
    fn reads_the_conditions() {
        let with = |conditions: &[(&str, &str)]| {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(type_, status)| serde_json::json!({"type": type_, "status": status, "message": "taken"}))
                .collect();
            let mut crd = crd(None, true);
            crd.status = Some(
                serde_json::from_value(serde_json::json!({"conditions": conditions})).unwrap(),
            );
            progress(&crd)
        };
        assert_eq!(progress(&crd(None, true)), Progress::Pending);
        assert_eq!(with(&[("NamesAccepted", "True")]), Progress::Pending);
        assert_eq!(
            with(&[("NamesAccepted", "True"), ("Established", "True")]),
            Progress::Established
        );
        let rejected = with(&[("Established", "True"), ("NamesAccepted", "False")]);
        assert_eq!(rejected, Progress::Rejected("taken".into()));
    }
}
