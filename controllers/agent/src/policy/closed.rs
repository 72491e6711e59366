//! Decides what a policy that can't be used still closes: the directions that it has, for those
//! whom it is about.
//!
//! Only a policy that has been edited is closed. It may have been in force before, and what it
//! kept out must not come in because of a typing mistake and a restart. One that was never right
//! has closed nothing, and disturbs nobody.

use cilia_crds::policy::{EgressRule, IngressRule, PolicyRule};
use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_policy::ClusterNetworkPolicy;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;

/// A kind of policy.
pub(super) trait Closed: Resource + Clone {
    /// Its subjects and directions, and nothing that it allows.
    fn closed(&self) -> Self;

    /// The same, of a policy that may have been in force.
    fn closed_if_edited(&self) -> Option<Self> {
        (self.meta().generation > Some(1)).then(|| self.closed())
    }
}

impl Closed for CiliumNetworkPolicy {
    fn closed(&self) -> Self {
        let specs = self.specs.as_ref().map(|specs| specs.iter().map(rule).collect());
        Self { spec: self.spec.as_ref().map(rule), specs, ..self.clone() }
    }
}

impl Closed for CiliumClusterwideNetworkPolicy {
    fn closed(&self) -> Self {
        let specs = self.specs.as_ref().map(|specs| specs.iter().map(rule).collect());
        Self { spec: self.spec.as_ref().map(rule), specs, ..self.clone() }
    }
}

impl Closed for NetworkPolicy {
    fn closed(&self) -> Self {
        let mut closed = self.clone();
        if let Some(spec) = &mut closed.spec {
            let egress = spec.egress.take().is_some_and(|rules| !rules.is_empty());
            spec.ingress = None;
            let types = spec.policy_types.take().filter(|types| !types.is_empty());
            let implied = || {
                let egress = egress.then(|| "Egress".to_owned());
                std::iter::once("Ingress".to_owned()).chain(egress).collect()
            };
            spec.policy_types = Some(types.unwrap_or_else(implied));
        }
        closed
    }
}

impl Closed for ClusterNetworkPolicy {
    /// What of it can't be read closes by itself; the rest is an order that only whole makes sense.
    fn closed(&self) -> Self {
        let mut closed = self.clone();
        closed.spec.ingress.clear();
        closed.spec.egress.clear();
        closed
    }
}

/// An empty item allows nothing, and makes its direction default deny.
fn rule(written: &PolicyRule) -> PolicyRule {
    fn any<A, D>(allows: Option<&Vec<A>>, denies: Option<&Vec<D>>) -> bool {
        allows.is_some_and(|rules| !rules.is_empty())
            || denies.is_some_and(|rules| !rules.is_empty())
    }
    let ingress = any(written.ingress.as_ref(), written.ingress_deny.as_ref());
    let egress = any(written.egress.as_ref(), written.egress_deny.as_ref());
    PolicyRule {
        endpoint_selector: written.endpoint_selector.clone(),
        node_selector: written.node_selector.clone(),
        ingress: ingress.then(|| vec![IngressRule::default()]),
        egress: egress.then(|| vec![EgressRule::default()]),
        enable_default_deny: written.enable_default_deny,
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::CiliumNetworkPolicy;
    use cilia_policy::Config;
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use serde_json::{Value, json};

    /// Which directions a policy closes, ingress first, once it allows nothing.
    fn closes<K: super::Closed + serde::de::DeserializeOwned>(
        generation: i64,
        spec: &Value,
        parse: impl Fn(&K, &Config) -> Result<cilia_policy::Parsed, cilia_policy::Error>,
    ) -> Option<[bool; 2]> {
        let metadata = json!({"name": "p", "namespace": "n", "generation": generation});
        let policy = json!({"metadata": metadata, "spec": spec});
        let policy: K = serde_json::from_value(policy).unwrap();
        assert!(parse(&policy, &Config::default()).is_err(), "{spec}");
        let parsed = parse(&policy.closed_if_edited()?, &Config::default()).ok()?;
        let [rule] = parsed.rules.as_slice() else { panic!("{parsed:?}") };
        Some([&rule.ingress, &rule.egress].map(|section| {
            let section = section.as_ref();
            section.is_some_and(|section| section.default_deny && section.items.is_empty())
        }))
    }

    #[test]
    fn what_was_edited_closes_the_directions_that_it_has() {
        let bad = json!([{"toCIDR": ["10.0.0.0/99"]}]);
        let selector = json!({"matchLabels": {"app": "web"}});
        let cases = [
            (
                "egress",
                json!({"endpointSelector": selector, "egress": bad}),
                2,
                Some([false, true]),
            ),
            ("new", json!({"endpointSelector": selector, "egress": bad}), 1, None),
            (
                "both",
                json!({"endpointSelector": selector, "egress": bad,
                    "ingressDeny": [{"fromEntities": ["world"]}]}),
                2,
                Some([true, true]),
            ),
            ("nobody's", json!({"egress": bad}), 2, None),
        ];
        for (name, spec, generation, want) in cases {
            let got = closes::<CiliumNetworkPolicy>(generation, &spec, cilia_policy::cilium);
            assert_eq!(got, want, "{name}");
        }
        let bad = json!([{"to": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]);
        let cases = [
            ("implied", json!({"podSelector": {}, "egress": bad}), Some([true, true])),
            (
                "said",
                json!({"podSelector": {}, "egress": bad, "policyTypes": ["Egress"]}),
                Some([false, true]),
            ),
        ];
        for (name, spec, want) in cases {
            let got = closes::<NetworkPolicy>(2, &spec, cilia_policy::kubernetes);
            assert_eq!(got, want, "{name}");
        }
    }
}
