//! The API server is away for a minute.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::chart;
use cilia_e2e::scenario::live::{Connection, Datagrams};
use cilia_e2e::scenario::pods::{self, Plan};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::wait::{Look, until};
use serde_json::json;

const PORT: u16 = 7000;
const AWAY: Duration = Duration::from_mins(1);
const LIMIT: Duration = Duration::from_mins(3);
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn traffic_flows_and_all_converges(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "away", &json!({})).await?;
    let plans =
        [("here", "n1"), ("far", "n2")].map(|(name, node)| Plan::idle("away", name).on(node));
    let found = pods::run(stage, &plans).await?;
    let [here, far] = &found[..] else { anyhow::bail!("two pods") };
    for pod in &found {
        serve(pod, PORT).await?;
    }
    let to = far.addresses().map(|ip| SocketAddr::new(ip, PORT));
    for address in to {
        let what = format!("reach of {address}");
        until(&what, LIMIT, || async {
            let reached = reaches(here, address.ip(), PORT, Protocol::Udp, false).await;
            reached.map_or_else(Look::Not, Look::Done)
        })
        .await?;
    }
    let stream = Datagrams::start(here, to[0]).await?;
    let connection = Connection::open(here, to[1], PATIENCE).await?;
    let (control_plane, cgroups) = (stage.cluster.control_plane(), stage.cluster.cgroups());
    control_plane.stop_api_server(cgroups).await?;
    let gone = Instant::now();
    let outcome = until("the end of the server's absence", 2 * AWAY, || async {
        for address in to {
            // New connections, too, are nobody's business but the kernels'.
            if let Err(error) = reaches(here, address.ip(), PORT, Protocol::Tcp, false).await {
                return Look::Done(Err(error));
            }
        }
        let left = AWAY.saturating_sub(gone.elapsed());
        if left.is_zero() { Look::Done(Ok(())) } else { Look::Not(format!("{left:?} to go")) }
    })
    .await;
    control_plane.resume_api_server(cgroups, &stage.cluster.tools, &stage.cluster.options)?;
    control_plane.ready(&stage.cluster.tools).await?;
    outcome?.map_err(anyhow::Error::msg)?;
    let tally = stream.finish().await?;
    ensure!(tally.answered == tally.sent, "{tally:?}");
    connection.finish().await?;

    chart::ready(stage).await?;
    let now = stage.list("pods", Some("away")).await?;
    for pod in &found {
        let same = now.iter().any(|other| other["metadata"]["uid"] == pod.uid.as_str());
        ensure!(same, "{} did not stay", pod.name);
    }
    // What was held up is done: a new pod is known on both nodes.
    let new = pods::run(stage, &[Plan::idle("away", "new").on("n2")]).await?;
    serve(&new[0], PORT).await?;
    until("reach of a new pod", LIMIT, || async {
        match reaches(here, new[0].ipv4.into(), PORT, Protocol::Tcp, false).await {
            Ok(()) => Look::Done(()),
            Err(error) => Look::Not(error),
        }
    })
    .await?;
    pods::leave(stage, "away").await?;
    Ok(())
}
