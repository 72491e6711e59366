//! `cilia policy`.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use cilia_identity::{Filter, PodLabels};
use cilia_policy::{Config, Flow, Manifests, Party, PodMeta};
use http::Method;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The policies in use
    Get,
    /// The peer selectors in use, and whom they select
    Selectors,
    /// Checks policies in a file (- for standard input) as the agent does
    Validate {
        /// YAML or JSON, one object or several
        file: String,
    },
    /// What becomes of packets from one side to another, which rules make it so, and what to add
    Explain {
        /// Who sends: NAMESPACE/POD, an identity's number or an address; in manifests node/NAME too
        from: String,
        /// Who receives
        to: String,
        /// The receiver's port, as 80/TCP; for ICMP the type, as 8/ICMP
        port: String,
        /// Manifests (pods, namespaces, policies) instead of the cluster; - for standard input
        #[arg(short, long)]
        filename: Option<String>,
    },
    /// Which flows that passed lately at this node's endpoints a change of policies would cut
    Diff {
        /// The changed policies, YAML or JSON; - for standard input
        #[arg(short, long)]
        filename: String,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Get => {
            let answer = agent.get("/v1/policy").await?;
            if let Some(format) = format {
                format.print(&answer)?;
            } else {
                println!("{}\nRevision: {}", text(&answer["policy"]), text(&answer["revision"]));
                for fault in items(&answer["faults"]) {
                    println!("Not used: {}: {}", text(&fault["policy"]), text(&fault["fault"]));
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Selectors => {
            let answer = agent.get("/v1/policy/selectors").await?;
            match format {
                Some(format) => format.print(&answer)?,
                None => selectors(items(&answer)).print(),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Validate { file } => validate(file, format),
        Command::Explain { from, to, port, filename } => {
            let (port, proto) = parse_port(port)?;
            let told = if let Some(file) = filename {
                let mut cluster = cluster(&objects(file)?)?;
                // Policies of nodes are seen from the node that they are about.
                if let Some(node) = [from, to].iter().find_map(|side| side.strip_prefix("node/")) {
                    cluster.stand_on(node);
                }
                let (from, to) = (party(&cluster, from)?, party(&cluster, to)?);
                let flow = Flow { from, to, proto, port };
                let told = cilia_policy::explain(&mut cluster.repository, &flow);
                json!({"explanation": told, "text": told.to_string()})
            } else {
                let (from, to) = (crate::agent::segment(from), crate::agent::segment(to));
                let path =
                    format!("/v1/policy/explain?from={from}&to={to}&proto={proto}&port={port}");
                agent.get(&path).await?
            };
            match format {
                Some(format) => format.print(&told["explanation"])?,
                None => println!("{}", text(&told["text"])),
            }
            // As a test: whether it passes.
            let passes = told["explanation"]["allowed"] == true;
            Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Diff { filename } => {
            let policies = Value::Array(objects(filename)?);
            let answer = agent.change(Method::POST, "/v1/policy/diff", Some(&policies)).await?;
            match format {
                Some(format) => format.print(&answer)?,
                None => println!("{}", diff(&answer)),
            }
            let cuts = !items(&answer["cut"]).is_empty();
            Ok(if cuts { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// `80/TCP`, or a port alone, which is TCP's.
fn parse_port(text: &str) -> anyhow::Result<(u16, u8)> {
    let (port, proto) = text.split_once('/').unwrap_or((text, "TCP"));
    let number = port.parse().with_context(|| format!("{port:?} is no port"))?;
    Ok((number, protocol(proto)?))
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

fn selectors(listed: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["SELECTOR", "LABELS", "USERS", "IDENTITIES"]);
    for one in listed {
        let mut identities = items(&one["identities"]).iter().map(text);
        let labels: Vec<String> = items(&one["labels"]).iter().map(text).collect();
        table.row([
            text(&one["selector"]),
            labels.join(", "),
            text(&one["users"]),
            identities.next().unwrap_or_default(),
        ]);
        identities.for_each(|identity| table.row(["", "", "", &identity]));
    }
    table
}

/// Which flows a change cuts, and why.
fn diff(answer: &Value) -> String {
    let cut = items(&answer["cut"]);
    let mut lines = Vec::new();
    for one in cut {
        let flow = &one["flow"];
        let peer = match text(&flow["peer"]["address"]) {
            address if address.is_empty() => text(&flow["peer"]["identity"]),
            address => format!("{address} (identity {})", text(&flow["peer"]["identity"])),
        };
        let proto = flow["proto"].as_u64().and_then(|proto| u8::try_from(proto).ok()).unwrap_or(0);
        let proto = cilia_policy::l4::protocol::name(proto)
            .map_or_else(|| proto.to_string(), str::to_owned);
        let way = if flow["direction"] == "egress" { "to" } else { "from" };
        let (pod, port, count) = (text(&flow["pod"]), text(&flow["port"]), text(&flow["count"]));
        lines.push(format!("{pod} {way} {peer}, {port}/{proto}, seen {count} times:"));
        lines.extend(text(&one["text"]).lines().map(|line| format!("  {line}")));
    }
    lines.push(format!("{} of {} flows would be cut", cut.len(), text(&answer["flows"])));
    lines.join("\n")
}

/// The objects in a file; what lists hold, instead of the lists.
fn objects(file: &str) -> anyhow::Result<Vec<Value>> {
    let content = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("read {file}"))?
    };
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&content).with_context(|| format!("read {file}"))?;
    let listed = |object: Value| match &object["items"] {
        Value::Array(items) if text(&object["kind"]).ends_with("List") => items.clone(),
        _ => vec![object],
    };
    let objects: Vec<Value> =
        objects.into_iter().filter(|object| !object.is_null()).flat_map(listed).collect();
    if objects.is_empty() {
        bail!("{file} has no object");
    }
    Ok(objects)
}

fn validate(file: &str, format: Option<&Format>) -> anyhow::Result<ExitCode> {
    let checked: Vec<Checked> = objects(file)?.iter().map(check).collect();
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
    let parsed = cilia_policy::read(object, &config).map_or_else(
        || {
            Err("kind: it is not CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, NetworkPolicy or \
                 ClusterNetworkPolicy"
                .to_owned())
        },
        |(_, parsed)| parsed,
    );
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
    use super::{check, cluster, diff, parse_port, party, selectors};
    use cilia_policy::Flow;
    use serde_json::{Value, json};

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
        assert!(check(&json!({"kind": "Pod"})).fault.is_some());
    }

    #[test]
    fn selectors_have_a_row_for_each_identity() {
        let listed = [
            json!({"selector": "{app=client}", "labels": ["CiliumNetworkPolicy shop/a", "NetworkPolicy shop/b"],
                "users": 2, "identities": [5000, 5001]}),
            json!({"selector": "{app=none}", "labels": [], "users": 1, "identities": []}),
        ];
        let shown = selectors(&listed).render();
        let rows: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["SELECTOR", "LABELS", "USERS", "IDENTITIES"]);
        let first = "{app=client} CiliumNetworkPolicy shop/a, NetworkPolicy shop/b 2 5000";
        assert_eq!(rows[1].join(" "), first);
        assert_eq!((rows[2].join(" "), rows[3].join(" ")), ("5001".into(), "{app=none} 1".into()));
    }

    #[test]
    fn a_change_says_what_it_cuts_and_why() {
        let flow = json!({"pod": "shop/web", "direction": "ingress", "proto": 6, "port": 80, "count": 3,
            "peer": {"identity": 5000, "address": "10.0.1.5"}});
        let mut answer = json!({"flows": 7, "cut": [{"flow": flow, "text": "egress: allowed\ningress: dropped"}]});
        assert_eq!(
            diff(&answer),
            "shop/web from 10.0.1.5 (identity 5000), 80/TCP, seen 3 times:\n  egress: allowed\n  \
             ingress: dropped\n1 of 7 flows would be cut"
        );
        answer["cut"][0]["flow"]["direction"] = json!("egress");
        answer["cut"][0]["flow"]["peer"]["address"] = Value::Null;
        assert!(diff(&answer).starts_with("shop/web to 5000, 80/TCP"), "{}", diff(&answer));
        assert_eq!(diff(&json!({"flows": 0, "cut": []})), "0 of 0 flows would be cut");
    }

    #[test]
    fn ports_have_protocols() {
        for (text, want) in
            [("80/TCP", (80, 6)), ("53/udp", (53, 17)), ("443", (443, 6)), ("8/icmp", (8, 1))]
        {
            assert_eq!(parse_port(text).expect(text), want);
        }
        assert!(parse_port("http/TCP").is_err() && parse_port("80/XTP").is_err());
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
