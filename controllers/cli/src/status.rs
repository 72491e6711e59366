//! `cilia status`: how the agent of this node is or, from elsewhere, how the cluster is.

mod cluster;
mod diagnosis;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::Value;

use crate::access::{Access, Reach, duration};
use crate::agent::Agent;
use crate::output::{Format, items, text as words};
use crate::paint::Paint;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag")]
pub(crate) struct Arguments {
    /// One line: OK, or what is wrong
    #[arg(long)]
    brief: bool,
    /// Everything
    #[arg(long)]
    verbose: bool,
    /// Allocated addresses too
    #[arg(long)]
    all_addresses: bool,
    /// Controllers that are well too
    #[arg(long)]
    all_controllers: bool,
    /// Every node's health
    #[arg(long)]
    all_nodes: bool,
    /// Every redirect of the proxy
    #[arg(long)]
    all_redirects: bool,
    /// Remote clusters that are ready too
    #[arg(long)]
    all_clusters: bool,
    /// Parts of the agent that are well too
    #[arg(long)]
    all_health: bool,
    /// Whether it is wrong if the agent can't reach the API server
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_k8s_connectivity: bool,
    /// How long an agent may take to answer
    #[arg(long, default_value = "30s", value_parser = duration)]
    timeout: Duration,
    /// Wait until all is well
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration)]
    wait_duration: Duration,
    /// Don't list what runs on each node
    #[arg(long)]
    no_nodes: bool,
}

/// How often is asked while it is waited.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn run(
    access: &Access,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    match access.reach().await? {
        Reach::Here(agent) => one(&agent, arguments, format).await,
        Reach::There(cluster) if access.node.is_some() => {
            let agents = cluster.agents(access.node.as_deref()).await?;
            match agents.as_slice() {
                [agent] => one(&agent.clone().debug(access.debug), arguments, format).await,
                _ => bail!("no agent there"),
            }
        }
        Reach::There(cluster) => cluster::run(&cluster, arguments, format).await,
    }
}

/// Tells what is waited for, each time that it is something else.
#[derive(Debug, Default)]
struct Waiting(String);

impl Waiting {
    fn tell(&mut self, news: String) {
        if news != self.0 {
            eprintln!("waiting: {news}");
            self.0 = news;
        }
    }
}

/// The status of one agent.
async fn one(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    let agent = agent.clone().patience(arguments.timeout);
    let path = if arguments.require_k8s_connectivity {
        "/v1/healthz"
    } else {
        "/v1/healthz?require-k8s-connectivity=false"
    };
    let deadline = Instant::now() + arguments.wait_duration;
    let mut waiting = Waiting::default();
    let status = loop {
        match agent.get(path).await {
            Ok(status) if !arguments.wait || fault(&status).is_none() => break status,
            Ok(status) if Instant::now() >= deadline => {
                let fault = fault(&status).unwrap_or_default();
                bail!("still not well after {:?}: {fault}", arguments.wait_duration)
            }
            Err(error) if !arguments.wait || Instant::now() >= deadline => {
                if arguments.brief {
                    bail!("cilium: daemon unreachable");
                }
                return Err(error);
            }
            Ok(status) => waiting.tell(fault(&status).unwrap_or_default()),
            Err(error) => waiting.tell(format!("{error:#}")),
        }
        tokio::time::sleep(POLL).await;
    };
    if let Some(format) = format {
        format.print(&status)?;
    } else if arguments.brief {
        println!("{}", fault(&status).unwrap_or_else(|| "OK".into()));
    } else {
        let all = arguments.verbose;
        let shown = text::Shown {
            addresses: all || arguments.all_addresses,
            controllers: all || arguments.all_controllers,
            nodes: all || arguments.all_nodes,
            redirects: all || arguments.all_redirects,
            clusters: all || arguments.all_clusters,
            health: all || arguments.all_health,
            verbose: all,
        };
        print!("{}", text::render(&status, shown, std::time::SystemTime::now()));
    }
    Ok(if fault(&status).is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A status with everything that there is to show of it.
pub(crate) fn whole(status: &Value, now: std::time::SystemTime) -> String {
    text::render(status, text::Shown::ALL, now)
}

/// The first thing that isn't well.
fn fault(status: &Value) -> Option<String> {
    let parts = [
        ("kvstore", "kvstore", &status["kvstore"]),
        ("container-runtime", "container runtime", &status["container-runtime"]),
        ("kubernetes", "kubernetes", &status["kubernetes"]),
        ("cilium", "cilium", &status["cilium"]),
        ("cluster", "cilium-health", &status["cluster"]["ciliumHealth"]),
    ];
    let part = parts.into_iter().find_map(|(_, name, part)| {
        let state = words(&part["state"]);
        let well = match state.as_str() {
            "Warning" | "Failure" => false,
            // What does not say how it is is not well.
            state => name != "cilium" || matches!(state, "Ok" | "Disabled"),
        };
        (!well).then(|| format!("error in {name}: {}", words(&part["msg"])))
    });
    part.or_else(|| {
        items(&status["controllers"]).iter().find_map(|controller| {
            let state = &controller["status"];
            (state["consecutive-failure-count"].as_u64().unwrap_or(0) > 0).then(|| {
                format!(
                    "error in controller {}: {}",
                    words(&controller["name"]),
                    words(&state["last-failure-msg"])
                )
            })
        })
    })
}

/// How a line says whether it is well.
fn state(paint: Paint, well: bool) -> String {
    if well { paint.good("OK") } else { paint.bad("error") }
}

#[cfg(test)]
mod tests {
    use super::fault;
    use serde_json::json;

    #[test]
    fn says_what_is_wrong_first() {
        let status = |kubernetes: &str, cilium: &str| json!({"kubernetes": {"state": kubernetes, "msg": "1.36"}, "cilium": {"state": cilium, "msg": "ipcache: starting"}});
        assert_eq!(fault(&status("Ok", "Ok")), None);
        assert_eq!(fault(&status("Disabled", "Ok")), None);
        assert_eq!(
            fault(&status("Ok", "Failure")).as_deref(),
            Some("error in cilium: ipcache: starting")
        );
        assert_eq!(
            fault(&status("Failure", "Failure")).as_deref(),
            Some("error in kubernetes: 1.36")
        );
        assert_eq!(fault(&json!({})).as_deref(), Some("error in cilium: "));
        let mut controller = status("Ok", "Ok");
        controller["controllers"] = json!([{"name": "x", "status": {"consecutive-failure-count": 2, "last-failure-msg": "no"}}]);
        assert_eq!(fault(&controller).as_deref(), Some("error in controller x: no"));
    }
}
