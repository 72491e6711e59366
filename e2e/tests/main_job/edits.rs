//! The labels of running pods are edited under traffic: what policies say of them counts within a second, on either
//! side of a policy and on either node, and who may talk before and after loses no packet.
//!
//! Only when asked for, since it is measured by waiting: `make live`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::live::{Datagrams, Sent, settled};
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::serve;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::asked_for;

const PORT: u16 = 7300;
/// How often each label comes and goes.
const ROUNDS: usize = 4;
/// For how long an edit is looked at.
const SPAN: Duration = Duration::from_secs(2);
/// What an edit may take, on a machine that does something else, too; a second is what is aimed at.
const LIMIT: Duration = Duration::from_millis(1500);
/// A label whose value never was there: each edit asks for an identity that there is not yet.
const FRESH: &str = "edit";

/// A label that decides about a stream of datagrams.
struct Case {
    name: &'static str,
    edited: &'static [&'static str],
    label: &'static str,
    /// Whether the label lets through.
    opens: bool,
    /// Who sends to whom.
    streams: [(&'static str, &'static str); 2],
}

const CASES: [Case; 4] = [
    Case {
        name: "who sends, by the receiver's policy",
        edited: &["near", "far"],
        label: "friend",
        opens: true,
        streams: [("near", "server"), ("far", "server")],
    },
    Case {
        name: "whom the policy of what comes is about",
        edited: &["guarded"],
        label: "guarded",
        opens: false,
        streams: [("near", "guarded"), ("far", "guarded")],
    },
    Case {
        name: "who receives, by the sender's policy",
        edited: &["target"],
        label: "friend",
        opens: true,
        streams: [("picky-near", "target"), ("picky-far", "target")],
    },
    Case {
        name: "whom the policy of what goes is about",
        edited: &["mute-near", "mute-far"],
        label: "mute",
        opens: false,
        streams: [("mute-near", "target"), ("mute-far", "target")],
    },
];

const PODS: [(&str, &str); 9] = [
    ("server", "n1"),
    ("near", "n1"),
    ("far", "n2"),
    ("guarded", "n1"),
    ("target", "n1"),
    ("picky-near", "n1"),
    ("picky-far", "n2"),
    ("mute-near", "n1"),
    ("mute-far", "n2"),
];

fn exists(label: &str) -> Value {
    json!({"matchExpressions": [{"key": label, "operator": "Exists"}]})
}

fn policies(namespace: &str) -> Value {
    let friends = [json!({"podSelector": exists("friend")})];
    let picky = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["picky-near", "picky-far"]}]});
    let specs = [
        (
            "server",
            json!({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"from": friends}]}),
        ),
        ("guarded", json!({"podSelector": exists("guarded"), "policyTypes": ["Ingress"]})),
        (
            "picky",
            json!({"podSelector": picky, "policyTypes": ["Egress"], "egress": [{"to": friends}]}),
        ),
        ("mute", json!({"podSelector": exists("mute"), "policyTypes": ["Egress"]})),
    ];
    let items = specs.map(|(name, spec)| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        })
    });
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

pub(crate) async fn count_within_a_second(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, "edits", &json!({})).await?;
    let found =
        pods::run(stage, &PODS.map(|(name, node)| Plan::idle("edits", name).on(node))).await?;
    let pod = |name: &str| found.iter().find(|pod| pod.name == name).expect("it was planned");
    for name in ["server", "guarded", "target"] {
        serve(pod(name), PORT).await?;
    }
    stage.apply(&policies("edits")).await?;
    tokio::time::sleep(SPAN).await;
    let client = stage.client().await?;
    let mut late = Vec::new();
    for case in &CASES {
        let mut streams = Vec::new();
        for (from, to) in case.streams {
            let to = SocketAddr::new(pod(to).ipv4.into(), PORT);
            streams.push(Datagrams::start(pod(from), to).await?);
        }
        tokio::time::sleep(SPAN / 4).await;
        let mut edits = Vec::new();
        for round in 0..ROUNDS {
            for set in [true, false] {
                edits.push((Instant::now(), set == case.opens));
                for name in case.edited {
                    let fresh = format!("{}-{round}-{set}", case.label);
                    edit(
                        &client,
                        pod(name),
                        &[(case.label, set.then_some("yes")), (FRESH, Some(&fresh))],
                    )
                    .await?;
                }
                tokio::time::sleep(SPAN).await;
            }
        }
        for ((from, to), stream) in case.streams.into_iter().zip(streams) {
            let (_, sent) = stream.journal().await?;
            let slowest = tell(case, from, to, &edits, &sent)?;
            if slowest > LIMIT {
                late.push(format!("{}: {from} to {to} after {slowest:?}", case.name));
            }
        }
    }
    ensure!(late.is_empty(), "{}", late.join("; "));
    pods::leave(stage, "edits").await?;
    Ok(())
}

/// Tells how long edits took to count for a stream; the slowest.
fn tell(
    case: &Case,
    from: &str,
    to: &str,
    edits: &[(Instant, bool)],
    sent: &[Sent],
) -> Result<Duration> {
    let mut delays = [Vec::new(), Vec::new()];
    for &(at, open) in edits {
        let delay = settled(sent, at..at + SPAN, open).unwrap_or_default();
        delays[usize::from(open)].push(delay);
    }
    let shown = delays.each_ref().map(|all| {
        let millis: Vec<_> = all.iter().map(|delay| delay.as_millis().to_string()).collect();
        millis.join(", ")
    });
    println!(
        "  {}: {from} to {to}: closed after {} ms, open after {} ms",
        case.name, shown[0], shown[1]
    );
    let slowest = delays.iter().flatten().max().copied().unwrap_or_default();
    if slowest.is_zero() {
        bail!("{}: {from} to {to}: the label decides nothing", case.name);
    }
    Ok(slowest)
}

async fn edit(client: &Client, pod: &Pod, labels: &[(&str, Option<&str>)]) -> Result<()> {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let api: Api<core::Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    api.patch(&pod.name, &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(crate) async fn lose_nothing_that_is_allowed(stage: &Stage) -> Result<()> {
    const VALUES: [&str; 2] = ["1", "2"];
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, "versions", &json!({})).await?;
    let plans = [("here", "n1"), ("near", "n1"), ("far", "n2")]
        .map(|(name, node)| Plan::idle("versions", name).on(node).label("version", VALUES[0]));
    let found = pods::run(stage, &plans).await?;
    let [here, near, far] = &found[..] else { anyhow::bail!("three pods") };
    for pod in &found {
        serve(pod, PORT).await?;
    }
    let either = json!([{"podSelector": {"matchExpressions": [
        {"key": "version", "operator": "In", "values": VALUES},
    ]}}]);
    stage
        .apply(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "versions", "name": "either"},
            "spec": {
                "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": either}], "egress": [{"to": either}],
            },
        }))
        .await?;
    tokio::time::sleep(SPAN).await;
    let mut streams = Vec::new();
    for (from, to) in [(here, near), (near, here), (here, far), (far, here)] {
        for ip in to.addresses() {
            let to = SocketAddr::new(ip, PORT);
            streams.push((from.name.clone(), to, Datagrams::start(from, to).await?));
        }
    }
    let client = stage.client().await?;
    let mut edits = 0;
    for round in 0..2 * ROUNDS {
        for pod in [here, near, far] {
            let fresh = format!("{}-{round}", pod.name);
            let version = VALUES[(round + 1) % VALUES.len()];
            edit(&client, pod, &[("version", Some(version)), (FRESH, Some(&fresh))]).await?;
            edits += 1;
            tokio::time::sleep(SPAN / 4).await;
        }
    }
    let (mut sent, mut lost) = (0, Vec::new());
    for (from, to, stream) in streams {
        let tally = stream.finish().await?;
        sent += tally.sent;
        if tally.answered != tally.sent {
            lost.push(format!("{from} to {to}: {tally:?}"));
        }
    }
    println!("  {edits} edits, {sent} datagrams");
    ensure!(lost.is_empty(), "lost: {}", lost.join("; "));
    pods::leave(stage, "versions").await?;
    Ok(())
}
