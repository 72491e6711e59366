//! Selectors of labels, wherever they stand.

use serde_json::{Value, json};

use crate::{begins, is, item, told};

#[test]
fn selectors() {
    let subject = |selector: Value| {
        told(
            "CiliumNetworkPolicy",
            json!({"spec": {"endpointSelector": selector, "ingress": [{}]}}),
        )
    };
    let key = "at most 63 letters, digits, dashes, underscores and dots, the first and the last a letter or \
               digit; a DNS name and a slash may come before them";
    let value = "at most 63 letters, digits, dashes, underscores and dots, the first and the last a letter or digit";
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    for (selector, want) in [
        (
            json!({"matchLabels": {"bad key!": "x"}}),
            format!("matchLabels[\"bad key!\"]: \"bad key!\" is not a label's key: {key}"),
        ),
        (json!({"matchLabels": {"k8s:": "x"}}), "matchLabels[\"k8s:\"]: the key is empty".into()),
        (
            json!({"matchLabels": {"a/b/c": "x"}}),
            format!("matchLabels[\"a/b/c\"]: \"a/b/c\" is not a label's key: {key}"),
        ),
        (
            json!({"matchLabels": {"app": "not this"}}),
            format!("matchLabels[\"app\"]: \"not this\" is not a label's value: {value}"),
        ),
        (
            expression("-x", "Exists", &[]),
            format!("matchExpressions[0].key: \"-x\" is not a label's key: {key}"),
        ),
        (
            expression("a", "In", &["b", "c/d"]),
            format!("matchExpressions[0].values[1]: \"c/d\" is not a label's value: {value}"),
        ),
        (
            expression("a", "In", &[]),
            "matchExpressions[0].values: operators In and NotIn need at least one value".into(),
        ),
        (
            expression("a", "Exists", &["b"]),
            "matchExpressions[0].values: operators Exists and DoesNotExist take no values".into(),
        ),
    ] {
        is(
            &selector.to_string(),
            subject(selector.clone()),
            &format!("spec.endpointSelector.{want}"),
        );
        // Wherever a selector may stand.
        for (section, member) in
            [("ingress", "fromEndpoints"), ("egress", "toRequires"), ("egressDeny", "toEndpoints")]
        {
            let got = item(section, &json!({member: [{}, selector]}));
            is(member, got, &format!("spec.{section}[0].{member}[1].{want}"));
        }
        let services = json!({"toServices": [{"k8sServiceSelector": {"selector": selector}}]});
        let field = "spec.egress[0].toServices[0].k8sServiceSelector.selector";
        is("services", item("egress", &services), &format!("{field}.{want}"));
        let groups = json!({"fromCIDRSet": [{"cidrGroupSelector": selector}]});
        let field = "spec.ingress[0].fromCIDRSet[0].cidrGroupSelector";
        is("groups", item("ingress", &groups), &format!("{field}.{want}"));
    }
    begins(
        "operator",
        subject(expression("a", "Like", &["b"])),
        "spec.endpointSelector.matchExpressions[0].operator: unknown variant `Like`, expected one of `In`",
    );
    // Keys of every source are possible.
    for key in [
        "reserved:init",
        "k8s:io.kubernetes.pod.namespace",
        "any:app",
        "cidr:10.0.0.0/8",
        "app.kubernetes.io/name",
    ] {
        assert_eq!(
            item("ingress", &json!({"fromEndpoints": [{"matchLabels": {key: ""}}]})),
            Ok(vec![]),
            "{key}"
        );
    }
    let network =
        told("NetworkPolicy", json!({"spec": {"podSelector": {"matchLabels": {"a b": "c"}}}}));
    begins(
        "Kubernetes' own",
        network,
        "spec.podSelector.matchLabels[\"a b\"]: \"a b\" is not a label's key",
    );
}
