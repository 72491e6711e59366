//! Who is meant.

use cilia_policy::CidrGroup;
use serde_json::{Value, json};

use crate::{begins, is, item};

#[test]
fn peers() {
    for (name, section, written, want) in [
        (
            "a long prefix",
            "egress",
            json!({"toCIDR": ["10.0.0.0/33"]}),
            "toCIDR[0]: \"10.0.0.0/33\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "a name",
            "ingress",
            json!({"fromCIDR": ["::/0", "example.org"]}),
            "fromCIDR[1]: \"example.org\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "nothing",
            "ingressDeny",
            json!({"fromCIDR": [""]}),
            "fromCIDR[0]: \"\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "an address in a set",
            "egress",
            json!({"toCIDRSet": [{"cidr": "192.0.2.1"}]}),
            "toCIDRSet[0].cidr: \"192.0.2.1\" is not a prefix: write 192.0.2.1/32",
        ),
        (
            "an address as exception",
            "egress",
            json!({"toCIDRSet": [{"cidr": "fd00::/8", "except": ["fd00::1"]}]}),
            "toCIDRSet[0].except[0]: \"fd00::1\" is not a prefix: write fd00::1/128",
        ),
        (
            "an exception outside",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/8"]}]}),
            "toCIDRSet[0].except[1]: 11.0.0.0/8 is not inside of 10.0.0.0/8",
        ),
        (
            "an exception that is wider",
            "ingress",
            json!({"fromCIDRSet": [{"cidr": "10.0.0.0/16", "except": ["10.0.0.0/8"]}]}),
            "fromCIDRSet[0].except[0]: 10.0.0.0/8 is not inside of 10.0.0.0/16",
        ),
        (
            "an exception of another family",
            "egressDeny",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["fd00::/16"]}]}),
            "toCIDRSet[0].except[0]: fd00::/16 is not inside of 10.0.0.0/8",
        ),
        (
            "no range",
            "egress",
            json!({"toCIDRSet": [{"except": ["10.0.0.0/8"]}]}),
            "toCIDRSet[0]: exactly one of cidr, cidrGroupRef and cidrGroupSelector is required",
        ),
        (
            "a range and a group",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "cidrGroupRef": "net"}]}),
            "toCIDRSet[0]: exactly one of cidr, cidrGroupRef and cidrGroupSelector is required",
        ),
        (
            "two kinds",
            "egress",
            json!({"toEndpoints": [{}], "toEntities": ["world"]}),
            "toEntities: it can't be combined with spec.egress[0].toEndpoints: write two items instead",
        ),
        (
            "services and ranges",
            "egress",
            json!({"toServices": [{"k8sService": {"serviceName": "a"}}], "toCIDR": ["::/0"]}),
            "toServices: it can't be combined with spec.egress[0].toCIDR: write two items instead",
        ),
        (
            "nodes",
            "ingress",
            json!({"fromNodes": [{}]}),
            "fromNodes: it needs enable-node-selector-labels, which is off",
        ),
        (
            "two ways to name a name",
            "egress",
            json!({"toFQDNs": [{"matchName": "a.org", "matchPattern": "*.org"}]}),
            "toFQDNs[0]: matchName and matchPattern exclude each other",
        ),
        (
            "no name",
            "egress",
            json!({"toFQDNs": [{}]}),
            "toFQDNs[0]: one of matchName and matchPattern is required",
        ),
        (
            "no DNS name",
            "egress",
            json!({"toFQDNs": [{"matchName": "https://a.org"}]}),
            "toFQDNs[0].matchName: \"https://a.org\" is not a name: letters, digits, dashes, underscores and dots are possible",
        ),
        (
            "no pattern",
            "egress",
            json!({"toFQDNs": [{"matchPattern": "*.a.org/x"}]}),
            "toFQDNs[0].matchPattern: \"*.a.org/x\" is not a pattern: at most 255 letters, digits, dashes, underscores, dots and stars",
        ),
    ] {
        is(name, item(section, &written), &format!("spec.{section}[0].{want}"));
    }
    for (name, section, written, want) in [
        (
            "an unknown entity",
            "ingress",
            json!({"fromEntities": ["host", "moon"]}),
            "fromEntities[1]: unknown variant `moon`, expected one of `all`, `world`",
        ),
        (
            "an entity in capitals",
            "egress",
            json!({"toEntities": ["World"]}),
            "toEntities[0]: unknown variant `World`",
        ),
        (
            "a selector instead of selectors",
            "ingress",
            json!({"fromEndpoints": {"matchLabels": {"a": "b"}}}),
            "fromEndpoints: invalid type: map, expected a sequence",
        ),
        (
            "an unknown mode",
            "ingress",
            json!({"authentication": {"mode": "perhaps"}}),
            "authentication.mode: unknown variant `perhaps`, expected one of `disabled`",
        ),
        // Valid, but hardly meant so.
        (
            "an exception that is all",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]}),
            "toCIDRSet[0].except[0]: 10.0.0.0/8 leaves nothing of 10.0.0.0/8",
        ),
        (
            "a service without a name",
            "egress",
            json!({"toServices": [{"k8sService": {"namespace": "a"}}]}),
            "toServices[0].k8sService.serviceName: without a name no service is meant",
        ),
        (
            "a name of a member that is wrong",
            "ingress",
            json!({"fromEndpoint": [{}]}),
            "fromEndpoint: there is no such field: it is ignored",
        ),
    ] {
        begins(name, item(section, &written), &format!("spec.{section}[0].{want}"));
    }
    let group = |ranges: Value| {
        CidrGroup::fault(&json!({"metadata": {"name": "g"}, "spec": {"externalCIDRs": ranges}}))
    };
    assert_eq!(group(json!(["10.0.0.0/8", "192.0.2.1"])), None);
    assert_eq!(
        group(json!(["10.0.0.0/8", "10.0.0.0/8/8"])).as_deref(),
        Some(
            "spec.externalCIDRs[1]: \"10.0.0.0/8/8\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address"
        )
    );
    let fault = group(json!("10.0.0.0/8")).expect("no list");
    assert!(fault.starts_with("spec.externalCIDRs: invalid type: string"), "{fault}");
}
