use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_runtime::config::Config;
use cilia_runtime::testing::eventually;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::trial::Trial;

const VALID: &str = "Policy validation succeeded";
const COMBINED: &str = "spec.egress[0].toEntities: it can't be combined with spec.egress[0].toCIDR";

/// Waits until the condition `Valid` has this status and a message that begins so.
async fn until(api: &Api<DynamicObject>, name: &str, status: &str, message: &str) {
    eventually(|| async {
        let policy = api.get(name).await.expect("read a policy");
        let conditions = &policy.data["status"]["conditions"];
        let fits = conditions.as_array().into_iter().flatten().any(|condition| {
            condition["type"] == "Valid"
                && condition["status"] == status
                && condition["lastTransitionTime"].is_string()
                && condition["message"].as_str().is_some_and(|text| text.starts_with(message))
        });
        if fits { Ok(()) } else { Err(format!("{name} has {conditions}")) }
    })
    .await;
}

async fn create(api: &Api<DynamicObject>, kind: &ApiResource, name: &str, spec: &Value) {
    let policy = DynamicObject::new(name, kind).data(json!({"spec": spec}));
    api.create(&PostParams::default(), &policy).await.expect("create a policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_say_whether_they_can_be_used() {
    let trial = Trial::start(&[]).await;
    let both = json!({"endpointSelector": {}, "egress": [{"toEntities": ["world"], "toCIDR": ["10.0.0.0/8"]}]});
    let port = json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]}]});
    let of_nodes = json!({"nodeSelector": {}, "ingress": [{"fromEntities": ["cluster"]}]});
    let kinds = [
        ApiResource::erase::<CiliumNetworkPolicy>(&()),
        ApiResource::erase::<CiliumClusterwideNetworkPolicy>(&()),
    ];
    let client = || trial.client.clone();
    let apis =
        [Api::namespaced_with(client(), "default", &kinds[0]), Api::all_with(client(), &kinds[1])];
    for ((api, kind), good) in apis.iter().zip(&kinds).zip([&port, &of_nodes]) {
        create(api, kind, "good", good).await;
        create(api, kind, "bad", &both).await;
    }
    let running = trial.run("policy_validation");
    let mended = json!({"spec": {"egress": [{"toEntities": ["world"]}]}});
    for api in &apis {
        until(api, "good", "True", VALID).await;
        until(api, "bad", "False", COMBINED).await;
        let mended = Patch::Merge(&mended);
        api.patch("bad", &PatchParams::default(), &mended).await.expect("change a policy");
        until(api, "bad", "True", VALID).await;
    }
    running.stop().await;

    // At rest a restart writes nothing; what comes then is seen.
    let before = trial.writes(0).await.len();
    assert_eq!(before, 6);
    let running = trial.run("policy_validation");
    for (api, kind) in apis.iter().zip(&kinds) {
        let none = json!({"endpointSelector": {}, "ingress": []});
        create(api, kind, "later", &none).await;
        until(api, "later", "False", "spec: at least one of ingress").await;
    }
    running.stop().await;
    assert_eq!(trial.writes(before).await.len(), 2);
}

#[test]
fn policies_are_judged_by_what_the_agents_are_told() {
    let judged = |arguments: &[&str], spec: Value| {
        let arguments = arguments.iter().map(ToString::to_string);
        let config = Config::load(crate::config::flags(), arguments, []).expect("valid settings");
        let config = super::policy_config(&config);
        let policy = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"name": "policy"}, "spec": {"endpointSelector": {}, "ingress": [spec]}});
        let policy: CiliumNetworkPolicy = serde_json::from_value(policy).expect("a policy");
        cilia_policy::cilium(&policy, &config).map(drop).map_err(|error| error.to_string())
    };
    let port = |port: Value| json!({"toPorts": [{"ports": [port]}]});
    let http = json!({"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{}]}}]});
    let nodes = json!({"fromNodes": [{"matchLabels": {"role": "infra"}}]});
    let cases = [
        (&[][..], nodes.clone(), Some("fromNodes")),
        (&["--enable-node-selector-labels"], nodes, None),
        (&[], http.clone(), None),
        (&["--enable-l7-proxy=false"], http, Some("rules")),
        (&[], port(json!({"protocol": "VRRP"})), Some("port")),
        (&["--enable-extended-ip-protocols"], port(json!({"protocol": "VRRP"})), None),
    ];
    for (arguments, spec, want) in cases {
        let got = judged(arguments, spec.clone());
        match want {
            None => assert_eq!(got, Ok(()), "{arguments:?} {spec}"),
            Some(word) => assert!(
                got.as_ref().is_err_and(|error| error.contains(word)),
                "{arguments:?} {spec}: {got:?}"
            ),
        }
    }
}
