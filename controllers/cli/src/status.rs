//! `cilia status`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag")]
pub(crate) struct Arguments {
    /// One line: OK, or what is wrong
    #[arg(long)]
    brief: bool,
    /// Allocated addresses too
    #[arg(long)]
    all_addresses: bool,
    /// Everything
    #[arg(long)]
    verbose: bool,
    /// Wait until all is well
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_duration: u64,
}

/// How often the agent is asked while it is waited for.
const POLL: Duration = Duration::from_millis(500);

pub(crate) async fn run(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + Duration::from_secs(arguments.wait_duration);
    let status = loop {
        match agent.get("/v1/healthz").await {
            Ok(status) if !arguments.wait || fault(&status).is_none() => break status,
            Ok(status) if Instant::now() >= deadline => {
                bail!(
                    "still not well after {} s: {}",
                    arguments.wait_duration,
                    fault(&status).unwrap_or_default()
                )
            }
            Err(error) if !arguments.wait || Instant::now() >= deadline => {
                if arguments.brief {
                    bail!("cilium: daemon unreachable");
                }
                return Err(error);
            }
            _ => tokio::time::sleep(POLL).await,
        }
    };
    if let Some(format) = format {
        format.print(&status)?;
    } else if arguments.brief {
        println!("{}", fault(&status).unwrap_or_else(|| "OK".into()));
    } else {
        print!("{}", render(&status, arguments.all_addresses || arguments.verbose));
    }
    Ok(if fault(&status).is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first thing that isn't well.
fn fault(status: &Value) -> Option<String> {
    let parts = [("kvstore", "kvstore"), ("kubernetes", "kubernetes"), ("cilium", "cilium")];
    parts.into_iter().find_map(|(member, name)| {
        let part = status.get(member)?;
        let state = text(&part["state"]);
        matches!(state.as_str(), "Warning" | "Failure")
            .then(|| format!("error in {name}: {}", text(&part["msg"])))
    })
}

fn render(status: &Value, addresses: bool) -> String {
    let mut table = Table::new(2);
    let mut line = |label: &str, content: String| table.row([format!("{label}:"), content]);
    let state = |part: &Value| {
        format!("{}   {}", text(&part["state"]), text(&part["msg"])).trim_end().to_owned()
    };
    for (member, label) in [("kvstore", "KVStore"), ("container-runtime", "ContainerRuntime")] {
        if let Some(part) = status.get(member) {
            line(label, state(part));
        }
    }
    if let Some(kubernetes) = status.get("kubernetes") {
        line("Kubernetes", state(kubernetes));
        let mut kinds: Vec<String> =
            items(&kubernetes["k8s-api-versions"]).iter().map(text).collect();
        kinds.sort_unstable();
        if !kinds.is_empty() {
            line("Kubernetes APIs", format!("{kinds:?}"));
        }
    }
    let mode = |member: &str| status.get(member).map(|part| text(&part["mode"]));
    for (member, label) in [
        ("kube-proxy-replacement", "KubeProxyReplacement"),
        ("host-firewall", "Host firewall"),
        ("cni-chaining", "CNI Chaining"),
    ] {
        if let Some(mode) = mode(member) {
            line(label, mode);
        }
    }
    line("Cilium", state(&status["cilium"]));
    if let Some(monitor) = status.get("nodeMonitor") {
        let lost = monitor["lost"].as_u64().unwrap_or(0);
        let unknown = monitor["unknown"].as_u64().unwrap_or(0);
        let (cpus, pages) = (text(&monitor["cpus"]), text(&monitor["npages"]));
        let bytes = text(&monitor["pagesize"]);
        line(
            "NodeMonitor",
            format!("Listening for events on {cpus} CPUs with {pages}x{bytes} of shared memory"),
        );
        if lost + unknown > 0 {
            line("", format!("{lost} events lost, {unknown} unknown notifications"));
        }
    }
    line("IPAM", text(&status["ipam"]["status"]));
    if addresses {
        line("Allocated addresses", String::new());
        for family in ["ipv4", "ipv6"] {
            for (address, owner) in status["ipam"][family].as_object().into_iter().flatten() {
                line("", format!("  {address} ({})", text(owner)));
            }
        }
    }
    let routing = &status["routing"];
    let network =
        match (text(&routing["inter-host-routing-mode"]), text(&routing["tunnel-protocol"])) {
            (mode, protocol) if mode == "Tunnel" => format!("Tunnel [{protocol}]"),
            (mode, _) => mode,
        };
    line(
        "Routing",
        format!("Network: {network}   Host: {}", text(&routing["intra-host-routing-mode"])),
    );
    line("Attach Mode", text(&status["attach-mode"]).to_uppercase());
    line("Device Mode", text(&status["datapath-mode"]));
    let masquerading = &status["masquerading"];
    let protocols = &masquerading["enabled-protocols"];
    let on = |value: &Value| if value.as_bool() == Some(true) { "Enabled" } else { "Disabled" };
    line(
        "Masquerading",
        match masquerading["enabled"].as_bool() {
            Some(true) => format!(
                "IPTables [IPv4: {}, IPv6: {}]",
                on(&protocols["ipv4"]),
                on(&protocols["ipv6"])
            ),
            _ => "Disabled".into(),
        },
    );
    if let Some(range) = status.get("identity-range") {
        let (least, most) = (text(&range["min-identity"]), text(&range["max-identity"]));
        line("Global Identity Range", format!("min {least}, max {most}"));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::{fault, render};
    use serde_json::json;

    #[test]
    fn says_what_is_wrong_first() {
        let status = |kubernetes: &str, cilium: &str| json!({"kubernetes": {"state": kubernetes, "msg": "1.36"}, "cilium": {"state": cilium, "msg": "ipcache: starting"}});
        assert_eq!(fault(&status("Ok", "Ok")), None);
        assert_eq!(
            fault(&status("Ok", "Failure")).as_deref(),
            Some("error in cilium: ipcache: starting")
        );
        assert_eq!(
            fault(&status("Failure", "Failure")).as_deref(),
            Some("error in kubernetes: 1.36")
        );
        let text = render(&status("Ok", "Failure"), false);
        assert!(text.contains("Cilium:         Failure   ipcache: starting\n"), "{text}");
    }
}
