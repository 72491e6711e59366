//! What policies in files say, without a cluster.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use cilia_identity::{Filter, PodLabels};
use cilia_policy::{CidrGroup, Config, Flow, Manifests, Party, PodMeta};
use serde_json::{Value, json};

use super::files::objects;
use crate::output::{Format, text};

/// What becomes of packets in the cluster that the files describe.
pub(super) fn explain(from: &str, to: &str, port: &str, files: &[String]) -> anyhow::Result<Value> {
    let (port, proto) = self::port(port)?;
    let mut cluster = cluster(&objects(files)?)?;
    // Policies of nodes are seen from the node that they are about.
    if let Some(node) = [from, to].iter().find_map(|side| side.strip_prefix("node/")) {
        cluster.stand_on(node);
    }
    let (from, to) = (party(&cluster, from)?, party(&cluster, to)?);
    let port = cilia_policy::port(&cluster.repository, &to, proto, port);
    let flow = Flow { from, to, proto, port: port.map_err(|fault| anyhow!(fault))? };
    let told = cilia_policy::explain(&mut cluster.repository, &flow);
    Ok(json!({"explanation": told, "text": told.to_string()}))
}

/// `80/TCP`, or a port alone, which is TCP's: the port by number or name, and the protocol's number.
pub(super) fn port(text: &str) -> anyhow::Result<(&str, u8)> {
    let (port, proto) = text.split_once('/').unwrap_or((text, "TCP"));
    Ok((port, protocol(proto)?))
}

/// A protocol by name or number.
fn protocol(text: &str) -> anyhow::Result<u8> {
    use cilia_policy::l4::protocol as known;
    Ok(match text.to_ascii_uppercase().as_str() {
        "TCP" => known::TCP,
        "UDP" => known::UDP,
        "SCTP" => known::SCTP,
        "ICMP" | "ICMPV4" => known::ICMP,
        "ICMPV6" => known::ICMPV6,
        other => other.parse().map_err(|_| {
            anyhow!("{text:?} is no protocol: use TCP, UDP, SCTP, ICMP, ICMPv6 or a number")
        })?,
    })
}

/// A cluster out of manifests, with the labels that count by default. Without one of its policies the
/// answers would be wrong, so each must be usable.
fn cluster(objects: &[Value]) -> anyhow::Result<Manifests> {
    // Nothing that policies may ask for is taken to be switched off.
    let config = Config { host_firewall: true, node_selectors: true, ..Config::default() };
    let filter = Filter::new::<&str>(&[], None).map_err(|error| anyhow!("{error}"))?;
    let labels = |pod: PodMeta<'_>| {
        let PodMeta { namespace, service_account, labels, namespace_labels } = pod;
        let cluster = &config.cluster;
        PodLabels { namespace, service_account, cluster, pod: labels, namespace_labels }
            .identity(&filter)
    };
    let cluster = Manifests::read(objects, &config, &labels);
    if let Some((policy, fault)) = cluster.faults.first() {
        bail!("{policy}: {fault}");
    }
    Ok(cluster)
}

/// A side of a flow in manifests.
fn party(cluster: &Manifests, text: &str) -> anyhow::Result<Party> {
    cluster.party(text).map_err(|fault| {
        let known: Vec<&str> = cluster.pods().take(10).collect();
        anyhow!("{fault}; pods of the manifests: {}", known.join(", "))
    })
}

/// Says of every policy in files whether it is valid.
pub(super) fn validate(files: &[String], format: Option<&Format>) -> anyhow::Result<ExitCode> {
    let checked: Vec<Checked> = objects(files)?.iter().map(check).collect();
    let valid = checked.iter().all(|one| one.fault.is_none());
    if let Some(format) = format {
        let show = |one: &Checked| json!({"policy": one.name, "valid": one.fault.is_none(), "fault": one.fault, "notes": one.notes});
        format.print(&checked.iter().map(show).collect())?;
    } else {
        for one in &checked {
            match &one.fault {
                Some(fault) => println!("{}: invalid: {fault}", one.name),
                None => println!("{}: valid", one.name),
            }
            one.notes.iter().for_each(|note| println!("  note: {note}"));
        }
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Checked {
    name: String,
    fault: Option<String>,
    notes: Vec<String>,
}

/// An object's kind, namespace and name.
fn name(object: &Value) -> String {
    let (namespace, name) =
        (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let kind = text(&object["kind"]);
    if namespace.is_empty() {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

/// Checks one object.
fn check(object: &Value) -> Checked {
    // What this node's agent has switched on is not known here: nothing is refused for being off.
    let config = Config { host_firewall: true, node_selectors: true, ..Config::default() };
    let name = name(object);
    if object["kind"] == "CiliumCIDRGroup" {
        return Checked { name, fault: CidrGroup::fault(object), notes: Vec::new() };
    }
    let parsed = match cilia_policy::read(object, &config) {
        Some((_, parsed)) => parsed,
        None => Err(format!(
            "kind: {} is not one of CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, \
             CiliumCIDRGroup, NetworkPolicy, ClusterNetworkPolicy",
            object["kind"]
        )),
    };
    match parsed {
        Ok(parsed) => Checked {
            name,
            fault: None,
            notes: parsed.notes.iter().map(ToString::to_string).collect(),
        },
        Err(fault) => Checked { name, fault: Some(fault), notes: Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use cilia_policy::Flow;
    use serde_json::{Value, json};

    use super::{check, cluster, explain, objects, party, port};

    fn fault(spec: &Value) -> Option<String> {
        check(&json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "p", "namespace": "shop"}, "spec": spec})).fault
    }

    #[test]
    fn says_what_the_agent_would_say() {
        assert_eq!(fault(&json!({"endpointSelector": {}, "ingress": [{}]})), None);
        let unknown =
            fault(&json!({"endpointSelector": {}, "ingress": [{"fromEntities": ["moon"]}]}));
        assert!(unknown.expect("an unknown entity").contains("moon"));
        let port = fault(
            &json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "70000"}]}]}]}),
        );
        assert!(port.expect("a bad port").starts_with("spec.ingress[0].toPorts[0].ports[0].port"));
        assert!(
            check(&json!({"kind": "Pod"}))
                .fault
                .expect("no policy")
                .starts_with("kind: \"Pod\" is not one of")
        );
        let group = |range: &str| {
            let spec = json!({"externalCIDRs": ["10.0.0.0/8", range]});
            check(&json!({"kind": "CiliumCIDRGroup", "metadata": {"name": "g"}, "spec": spec}))
                .fault
        };
        assert_eq!(group("192.0.2.1/32"), None);
        let bad = group("10.0.0.0/33").expect("a bad range");
        assert!(bad.starts_with("spec.externalCIDRs[1]: \"10.0.0.0/33\""), "{bad}");
    }

    #[test]
    fn ports_have_protocols() {
        for (text, want) in [
            ("80/TCP", ("80", 6)),
            ("53/udp", ("53", 17)),
            ("443", ("443", 6)),
            ("8/icmp", ("8", 1)),
            ("http", ("http", 6)),
            ("EchoRequest/ICMPv6", ("EchoRequest", 58)),
            ("0/112", ("0", 112)),
        ] {
            assert_eq!(port(text).expect(text), want);
        }
        assert!(port("80/XTP").is_err() && port("80/300").is_err());
    }

    #[test]
    fn a_cluster_may_be_in_several_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, content: &Value| {
            let path = folder.path().join(name);
            std::fs::write(&path, content.to_string()).expect("write a file");
            path.display().to_string()
        };
        let pod = |name: &str, ports: Value| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "ports": ports}]}})
        };
        let web = pod("web", json!([{"name": "http", "containerPort": 8080}]));
        let pods = json!({"kind": "List", "items": [web, pod("cart", json!([]))]});
        let pods = file("a.json", &pods);
        let policy = json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "web", "namespace": "shop"}, "spec": {
            "endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [
                {"fromEndpoints": [{"matchLabels": {"app": "cart"}}], "toPorts": [{"ports": [{"port": "http"}]}]},
                {"fromEntities": ["health"], "icmps": [{"fields": [{"type": 8}]}]}]}});
        let policy = file("b.yml", &policy);
        file("README.md", &json!("no manifest"));
        let whole = [folder.path().display().to_string()];
        let questions = [
            ("shop/cart", "http", true),
            ("shop/cart", "8080/TCP", true),
            ("shop/cart", "80", false),
            ("host", "http", true),
            ("reserved:world", "http", false),
            ("192.0.2.1", "http", false),
            ("2001:db8::1", "http", false),
            ("256", "http", false),
            ("257", "http", true),
            ("reserved:health", "EchoRequest/ICMP", true),
            ("reserved:health", "0/ICMP", false),
        ];
        for files in [&[pods.clone(), policy][..], &whole] {
            for (from, port, allowed) in questions {
                let told = explain(from, "shop/web", port, files).expect("an answer");
                assert_eq!(told["explanation"]["allowed"], allowed, "{from} {port}: {told}");
            }
        }
        assert_eq!(objects(&whole).expect("objects").len(), 3);
        // Where there is no answer it is said why.
        let nowhere = ["/nowhere.yaml".to_owned()];
        for (from, port, files, why) in [
            ("cluster", "http", &whole, "\"cluster\" is not a pod"),
            ("999", "http", &whole, "there is no identity 999"),
            ("node/n1", "http", &whole, "there is no node n1"),
            ("shop/cart", "http/UDP", &whole, "it names http (8080)"),
            ("shop/cart", "70000", &whole, "port 70000 is not between 0 and 65535"),
            ("shop/cart", "80/XTP", &whole, "\"XTP\" is no protocol"),
            ("shop/cart", "80", &nowhere, "/nowhere.yaml"),
        ] {
            let fault = explain(from, "shop/web", port, files).expect_err(why).to_string();
            assert!(fault.contains(why), "{why}: {fault}");
        }
    }

    #[test]
    fn pods_of_manifests_are_judged_by_their_policies() {
        let pod = |name: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop",
                "labels": {"app": name, "pod-template-hash": "x"}}, "spec": {"containers": [{"name": "c",
                "ports": [{"name": "http", "containerPort": 8080}]}]}})
        };
        let policy = json!({"kind": "NetworkPolicy", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [
                {"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "http"}]}]}});
        let mut objects =
            vec![pod("web"), pod("client"), pod("other"), policy, json!({"kind": "ConfigMap"})];
        let mut manifests = cluster(&objects).expect("manifests");
        for (from, port, allowed) in [
            ("shop/client", 8080, true),
            ("shop/client", 80, false),
            ("shop/other", 8080, false),
            ("192.0.2.1", 8080, false),
        ] {
            let (from, to) = (party(&manifests, from), party(&manifests, "shop/web"));
            let flow = Flow { from: from.expect("from"), to: to.expect("to"), proto: 6, port };
            let told = cilia_policy::explain(&mut manifests.repository, &flow);
            assert_eq!(told.allowed, allowed, "{told}");
        }
        let fault = party(&manifests, "shop/nobody").expect_err("no such pod").to_string();
        assert!(fault.contains("shop/client"), "{fault}");
        // Labels that differ between pods of one Deployment make no identity.
        let labels = party(&manifests, "shop/web").expect("a pod").identity.expect("an identity");
        let labels = manifests.repository.labels(labels).expect("labels");
        assert_eq!(labels.get("k8s", "pod-template-hash"), None);
        objects[3]["spec"]["ingress"][0]["ports"][0]["port"] = json!(70000);
        let fault = cluster(&objects).expect_err("a bad port").to_string();
        assert!(
            fault.starts_with("NetworkPolicy shop/web: spec.ingress[0].ports[0].port"),
            "{fault}"
        );
    }
}
