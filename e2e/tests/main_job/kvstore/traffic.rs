//! Traffic between pods that are allowed to talk, and from one that is not, for as long as something is done to the cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::live::{Connection, Datagrams};
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::wait::{Look, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(super) const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_mins(2);
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two new connections.
const PACE: Duration = Duration::from_millis(50);

/// A client that is allowed, its twin on the other node, its peers on both, and a stranger.
pub(super) struct Cast {
    namespace: String,
    pub(super) client: Pod,
    pub(super) near: Pod,
    pub(super) far: Pod,
    pub(super) stranger: Pod,
}

/// What flows.
pub(super) struct Traffic {
    datagrams: Vec<(String, Datagrams)>,
    connections: Vec<(String, Connection)>,
    denied: Vec<Datagrams>,
    stop: Arc<AtomicBool>,
    /// New connections: how many there were, and what went wrong.
    fresh: JoinHandle<(usize, Vec<String>)>,
}

impl Cast {
    /// Makes the pods and the policy, and waits until both are so.
    pub(super) async fn gather(stage: &Stage, namespace: &str) -> Result<Self> {
        pods::namespace(stage, namespace, &json!({})).await?;
        let plan = |name, node, side| Plan::idle(namespace, name).on(node).label("side", side);
        let plans = [
            plan("client", "n1", "client"),
            plan("near", "n1", "server"),
            plan("far", "n2", "server"),
            plan("stranger", "n2", "none"),
            plan("twin", "n2", "client").label("app", "client"),
        ];
        let found = pods::run(stage, &plans).await?;
        let found = <[Pod; 5]>::try_from(found).ok().context("five pods")?;
        let [client, near, far, stranger, twin] = found;
        stage.apply(&policy(namespace)).await?;
        let cast = Self { namespace: namespace.to_owned(), client, near, far, stranger };
        for pod in [&cast.client, &cast.near, &cast.far] {
            serve(pod, PORT).await?;
        }
        for server in [&cast.near, &cast.far] {
            for client in [&cast.client, &twin] {
                reached(client, server).await?;
            }
            until("refusal of the stranger", LIMIT, || async {
                let address = server.ipv4.into();
                match reaches(&cast.stranger, address, PORT, Protocol::Udp, false).await {
                    Ok(()) => Look::Not("it is let in".to_owned()),
                    Err(_) => Look::Done(()),
                }
            })
            .await?;
        }
        Ok(cast)
    }

    /// A pod that may talk to the servers. Its labels are the client's own, or, with a `name` for them, new.
    pub(super) fn plan(&self, name: &str, node: &str, labels: Option<&str>) -> Plan {
        let plan = Plan::idle(&self.namespace, name).on(node).label("side", "client");
        plan.label("app", labels.unwrap_or("client"))
    }

    /// Lets everything flow.
    pub(super) async fn start(&self) -> Result<Traffic> {
        let (client, near, far) = (&self.client, &self.near, &self.far);
        let (mut datagrams, mut connections) = (Vec::new(), Vec::new());
        for (from, to) in [(client, near), (client, far), (far, client)] {
            for ip in to.addresses() {
                let (name, to) = (format!("{} to {ip}", from.name), SocketAddr::new(ip, PORT));
                datagrams.push((name.clone(), Datagrams::start(from, to).await?));
                connections.push((name, Connection::open(from, to, PATIENCE).await?));
            }
        }
        let mut denied = Vec::new();
        for server in [near, far] {
            let to = SocketAddr::new(server.ipv4.into(), PORT);
            denied.push(Datagrams::start(&self.stranger, to).await?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (from, to, stopped) = (client.clone(), [near.clone(), far.clone()], stop.clone());
        let fresh = tokio::spawn(async move {
            let (mut count, mut errors) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let to = &to[count % 2];
                for protocol in [Protocol::Udp, Protocol::Tcp] {
                    // A datagram that is lost is not sent again.
                    let reached = reaches(&from, to.ipv4.into(), PORT, protocol, false).await;
                    errors.extend(reached.err());
                    count += 1;
                }
                tokio::time::sleep(PACE).await;
            }
            (count, errors)
        });
        Ok(Traffic { datagrams, connections, denied, stop, fresh })
    }
}

impl Traffic {
    /// Stops, and says how much there was; nothing may have been lost, or let in.
    pub(super) async fn finish(self, during: &str) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let (mut sent, mut gap) = (0, Duration::ZERO);
        for (name, stream) in self.datagrams {
            let tally = stream.finish().await?;
            ensure!(tally.sent > 100, "{during}: {name} sent only {}", tally.sent);
            ensure!(tally.answered == tally.sent, "{during}: {name}: {tally:?}");
            (sent, gap) = (sent + tally.sent, gap.max(tally.longest_gap));
        }
        for (name, connection) in self.connections {
            connection.finish().await.with_context(|| format!("{during}: {name}"))?;
        }
        let mut refused = 0;
        for stream in self.denied {
            let tally = stream.finish().await?;
            ensure!(tally.answered == 0, "{during}: the stranger was let in: {tally:?}");
            refused += tally.sent;
        }
        let (fresh, errors) = self.fresh.await?;
        ensure!(errors.is_empty(), "{during}: of {fresh} new connections failed: {errors:?}");
        println!(
            "  {during}: 0 of {sent} datagrams lost (longest gap {} ms), {fresh} new connections, \
             {refused} datagrams of the stranger refused",
            gap.as_millis()
        );
        Ok(())
    }
}

/// Waits until one pod reaches another by all protocols and families.
pub(super) async fn reached(from: &Pod, to: &Pod) -> Result<()> {
    for ip in to.addresses() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            until(&format!("reach of {} from {}", to.name, from.name), LIMIT, || async {
                let reached = reaches(from, ip, PORT, protocol, false).await;
                reached.map_or_else(Look::Not, Look::Done)
            })
            .await?;
        }
    }
    Ok(())
}

/// Lets the clients, and nobody else, ask the servers.
fn policy(namespace: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": namespace, "name": "servers"},
        "spec": {
            "endpointSelector": {"matchLabels": {"side": "server"}},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"side": "client"}}]}],
        },
    })
}
