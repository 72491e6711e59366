//! Reads objects as users and the API server write them, and writes them again.

use cilia_crds::ciliumendpoint::EndpointStatus;
use cilia_crds::policy::PolicyRule;
use cilia_crds::{
    CiliumCidrGroup, CiliumClusterwideNetworkPolicy, CiliumEndpoint, CiliumEndpointSlice,
    CiliumIdentity, CiliumNetworkPolicy, CiliumNode, CiliumNodeConfig, CiliumPodIpPool,
    CoreCiliumEndpoint, NumericIdentity,
};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const BACKEND_POLICY: &str = include_str!("../../config/samples/ciliumnetworkpolicy.yaml");
const IDENTITY: &str = include_str!("../../config/samples/ciliumidentity.yaml");

/// Reading and writing loses nothing, and tolerates fields of a later version.
fn round_trip<K>(sample: &str)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize,
{
    let written: Value = serde_saphyr::from_str(sample).expect("a sample is YAML");
    let kind = K::kind(&());
    let object: K = serde_json::from_value(written.clone()).expect(&kind);
    assert_eq!(serde_json::to_value(&object).expect(&kind), written, "{kind}");
    assert_eq!(written["kind"], *kind);
    assert_eq!(written["apiVersion"], *K::api_version(&()));

    let mut later = written.clone();
    add_unknown(&mut later);
    let object: K = serde_json::from_value(later).expect(&kind);
    assert_eq!(serde_json::to_value(&object).expect(&kind), written, "{kind}, unknown fields");
}

/// A field that nobody knows in every object but free-form ones.
fn add_unknown(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let strings = !object.is_empty() && object.values().all(Value::is_string);
            for inner in object.values_mut() {
                add_unknown(inner);
            }
            if !strings {
                object.insert("from-a-later-version".to_owned(), json!([{"a": null}, 1]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(add_unknown),
        _ => {}
    }
}

#[test]
fn samples_are_read_and_written_without_loss() {
    round_trip::<CiliumCidrGroup>(include_str!("../../config/samples/ciliumcidrgroup.yaml"));
    round_trip::<CiliumClusterwideNetworkPolicy>(include_str!(
        "../../config/samples/ciliumclusterwidenetworkpolicy.yaml"
    ));
    round_trip::<CiliumEndpoint>(include_str!("../../config/samples/ciliumendpoint.yaml"));
    round_trip::<CiliumEndpointSlice>(include_str!(
        "../../config/samples/ciliumendpointslice.yaml"
    ));
    round_trip::<CiliumIdentity>(IDENTITY);
    round_trip::<CiliumNetworkPolicy>(&with_default_family(BACKEND_POLICY));
    round_trip::<CiliumNode>(include_str!("../../config/samples/ciliumnode.yaml"));
    round_trip::<CiliumNodeConfig>(include_str!("../../config/samples/ciliumnodeconfig.yaml"));
    round_trip::<CiliumPodIpPool>(include_str!("../../config/samples/ciliumpodippool.yaml"));
}

/// As the API server stores it: with the schema's one default filled in.
fn with_default_family(policy: &str) -> String {
    policy.replace("- type: 8", "- family: IPv4\n        type: 8")
}

#[test]
fn entries_keep_their_order() {
    let object = json!({
        "metadata": {"name": "ces-1"},
        "endpoints": [{"name": "z"}, {"name": "a"}, {"name": "m"}],
    });
    let slice: CiliumEndpointSlice = serde_json::from_value(object).expect("a slice");
    let names = slice.endpoints.iter().map(|endpoint| endpoint.name.as_deref());
    assert_eq!(names.collect::<Vec<_>>(), [Some("z"), Some("a"), Some("m")]);
    let written = serde_json::to_string(&slice).expect("a slice is JSON");
    assert!(written.contains(r#"[{"name":"z"},{"name":"a"},{"name":"m"}]"#), "{written}");
    assert!(
        written.starts_with(r#"{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumEndpointSlice""#)
    );
}

#[test]
fn an_empty_list_of_peers_is_not_an_absent_one() {
    let rule = |item: Value| -> PolicyRule {
        let rule = json!({"endpointSelector": {}, "ingress": [item]});
        serde_json::from_value(rule).expect("a rule")
    };
    let peers = |item: Value| {
        let ingress = rule(item).ingress.expect("a section");
        ingress[0].from_endpoints.as_ref().map(Vec::len)
    };
    assert_eq!(peers(json!({})), None);
    assert_eq!(peers(json!({"fromEndpoints": []})), Some(0));
    assert_eq!(peers(json!({"fromEndpoints": [{}]})), Some(1));
    for item in [json!({}), json!({"fromEndpoints": []}), json!({"fromEndpoints": [{}]})] {
        let written = serde_json::to_value(rule(item.clone())).expect("a rule is JSON");
        assert_eq!(written["ingress"][0], item);
        assert_eq!(written["endpointSelector"], json!({}));
    }
}

#[test]
fn numbers_out_of_range_spoil_nothing_else() {
    let endpoint: CiliumEndpoint = serde_json::from_value(json!({
        "metadata": {"name": "a"},
        "status": {
            "id": 7,
            "encryption": {"key": -1},
            "named-ports": [{"name": "far", "port": 70000}, {"name": "near", "port": 80}],
        },
    }))
    .expect("an endpoint");
    let status = endpoint.status.expect("a status");
    assert_eq!(status.encryption.expect("encryption").key, None);
    let ports: Vec<_> = status.named_ports.iter().map(|port| port.port).collect();
    assert_eq!(ports, [None, Some(80)]);

    let rule: PolicyRule = serde_json::from_value(json!({
        "endpointSelector": {},
        "ingress": [{"icmps": [{"fields": [{"type": 99_999_999_999_i64}]}]}],
    }))
    .expect("a rule");
    assert!(rule.ingress.is_some());
}

#[test]
fn identities_know_their_number_and_labels() {
    let mut identity: CiliumIdentity = serde_saphyr::from_str(IDENTITY).expect("an identity");
    assert_eq!(identity.number(), Some(NumericIdentity(41234)));
    assert_eq!(identity.labels().get("k8s", "app"), Some("frontend"));
    for name in ["not-a-number", "0041234", "-1", "4294967296"] {
        identity.metadata.name = Some(name.to_owned());
        assert_eq!(identity.number(), None, "{name}");
    }
}

/// What agents and the operator hold or read by the ten thousand stays small.
#[test]
fn the_numerous_are_small() {
    assert!(size_of::<CoreCiliumEndpoint>() <= 168, "{}", size_of::<CoreCiliumEndpoint>());
    assert!(size_of::<EndpointStatus>() <= 480, "{}", size_of::<EndpointStatus>());
}
