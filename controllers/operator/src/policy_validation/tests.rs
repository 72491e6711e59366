use cilia_crds::CiliumNetworkPolicy;
use cilia_runtime::config::Config;
use cilia_runtime::testing::eventually;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::trial::Trial;

fn policy(name: &str, spec: &Value) -> CiliumNetworkPolicy {
    let object = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).expect("a policy")
}

/// Waits until the condition `Valid` has this status and a message that begins so.
async fn until(api: &Api<CiliumNetworkPolicy>, name: &str, status: &str, message: &str) {
    eventually(|| async {
        let policy = api.get(name).await.expect("read a policy");
        let conditions = policy.status.map(|status| status.conditions).unwrap_or_default();
        let fits = conditions.iter().any(|condition| {
            condition.condition_type == "Valid"
                && condition.status == status
                && condition.last_transition_time.is_some()
                && condition.message.as_deref().is_some_and(|text| text.starts_with(message))
        });
        if fits { Ok(()) } else { Err(format!("{name} has {conditions:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_say_whether_they_can_be_used() {
    let trial = Trial::start(&[]).await;
    let api: Api<CiliumNetworkPolicy> = Api::namespaced(trial.client.clone(), "default");
    let port = |port: &str| json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}]}]});
    let both = json!({"endpointSelector": {}, "egress": [{"toEntities": ["world"], "toCIDR": ["10.0.0.0/8"]}]});
    for (name, spec) in [("good", port("80")), ("bad", both)] {
        api.create(&PostParams::default(), &policy(name, &spec)).await.expect("create a policy");
    }
    let running = trial.run("policy_validation");
    until(&api, "good", "True", "Policy validation succeeded").await;
    until(
        &api,
        "bad",
        "False",
        "spec.egress[0].toEntities: it can't be combined with spec.egress[0].toCIDR",
    )
    .await;

    let mended = json!({"spec": {"egress": [{"toEntities": ["world"]}]}});
    api.patch("bad", &PatchParams::default(), &Patch::Merge(mended))
        .await
        .expect("change a policy");
    until(&api, "bad", "True", "Policy validation succeeded").await;
    running.stop().await;

    // At rest a restart writes nothing; what comes then is seen.
    let before = trial.writes(0).await.len();
    assert_eq!(before, 3);
    let running = trial.run("policy_validation");
    api.create(
        &PostParams::default(),
        &policy("later", &json!({"endpointSelector": {}, "ingress": []})),
    )
    .await
    .expect("create a policy");
    until(&api, "later", "False", "spec: at least one of ingress").await;
    running.stop().await;
    assert_eq!(trial.writes(before).await.len(), 1);
}

#[test]
fn policies_are_judged_by_what_the_agents_are_told() {
    let judged = |arguments: &[&str], spec: Value| {
        let arguments = arguments.iter().map(ToString::to_string);
        let config = Config::load(crate::config::flags(), arguments, []).expect("valid settings");
        let config = super::policy_config(&config);
        let policy = policy("policy", &json!({"endpointSelector": {}, "ingress": [spec]}));
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
