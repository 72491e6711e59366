//! Lines about the network between pods, nodes and clusters.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Lines, Shown, list, yes};
use crate::output::{items, text};

pub(super) fn lines(lines: &mut Lines, status: &Value, shown: Shown) {
    let clusters = &status["cluster-mesh"];
    if !clusters.is_null() {
        mesh(lines, clusters, shown.clusters);
    }
    for (label, member) in [("IPv4 BIG TCP", "ipv4-big-tcp"), ("IPv6 BIG TCP", "ipv6-big-tcp")] {
        if let Some(big) = status.get(member) {
            let mode = if yes(&big["enabled"]) { "Enabled" } else { "Disabled" };
            lines.line(label, [mode]);
        }
    }
    if let Some(bandwidth) = status.get("bandwidth-manager") {
        let mode = if yes(&bandwidth["enabled"]) {
            let control = text(&bandwidth["congestionControl"]).to_uppercase();
            format!("EDT with BPF [{control}] [{}]", list(&bandwidth["devices"]))
        } else {
            "Disabled".into()
        };
        lines.line("BandwidthManager", [mode]);
    }
    let routing = &status["routing"];
    if !routing.is_null() {
        let network =
            match (text(&routing["inter-host-routing-mode"]), text(&routing["tunnel-protocol"])) {
                (mode, protocol) if mode == "Tunnel" => format!("Tunnel [{protocol}]"),
                (mode, _) => mode,
            };
        let host = text(&routing["intra-host-routing-mode"]);
        lines.line("Routing", [format!("Network: {network}"), format!("Host: {host}")]);
    }
    if let Some(mode) = status.get("attach-mode") {
        let mode = match text(mode).as_str() {
            "tcx" => "TCX".to_owned(),
            "tc" => "Legacy TC".to_owned(),
            other => other.to_owned(),
        };
        lines.line("Attach Mode", [mode]);
    }
    if let Some(mode) = status.get("datapath-mode") {
        let mode = text(mode);
        lines.line("Device Mode", [if mode.is_empty() { "?".to_owned() } else { mode }]);
    }
    if let Some(masquerading) = status.get("masquerading") {
        lines.line("Masquerading", masquerade(masquerading));
    }
    if let Some(clock) = status.get("clock-source").filter(|_| shown.verbose) {
        match text(&clock["mode"]).as_str() {
            "jiffies" => lines.line(
                "Clock Source for BPF",
                ["jiffies".to_owned(), format!("[{} Hz]", text(&clock["hertz"]))],
            ),
            mode => lines.line("Clock Source for BPF", [mode]),
        }
    }
}

fn masquerade(part: &Value) -> Vec<String> {
    if !yes(&part["enabled"]) {
        return vec!["Disabled".into()];
    }
    let on = |name: &str| if yes(&part["enabledProtocols"][name]) { "Enabled" } else { "Disabled" };
    let families = format!("[IPv4: {}, IPv6: {}]", on("ipv4"), on("ipv6"));
    if text(&part["mode"]) != "BPF" {
        return vec![format!("IPTables {families}")];
    }
    let agent = if yes(&part["ip-masq-agent"]) { " (ip-masq-agent)" } else { "" };
    let ranges = ["snat-exclusion-cidr-v4", "snat-exclusion-cidr-v6"].map(|name| text(&part[name]));
    vec![
        format!("BPF{agent}"),
        format!("[{}]", list(&part["devices"])),
        format!("{} {families}", ranges.join(" ").trim()),
    ]
}

fn mesh(lines: &mut Lines, mesh: &Value, all: bool) {
    let clusters = items(&mesh["clusters"]);
    let ready = clusters.iter().filter(|cluster| yes(&cluster["ready"])).count();
    lines.line("ClusterMesh", [format!("{ready}/{} remote clusters ready", clusters.len())]);
    for cluster in clusters.iter().filter(|cluster| all || !yes(&cluster["ready"])) {
        let count = |name: &str| text(&cluster[name]);
        lines.more(format!(
            "   {}: {}, {} nodes, {} endpoints, {} identities, {} services, {} MCS-API service \
             exports, {} reconnections (last: {})",
            count("name"),
            if yes(&cluster["ready"]) { "ready" } else { "not-ready" },
            count("num-nodes"),
            count("num-endpoints"),
            count("num-identities"),
            count("num-shared-services"),
            count("num-service-exports"),
            count("num-failures"),
            match count("last-failure").as_str() {
                "" => "never",
                other => other,
            },
        ));
        lines.more(format!("   └  {}", count("status")));
        let (config, synced) = (&cluster["config"], &cluster["synced"]);
        if !config.is_null() {
            let mut line = format!(
                "   └  remote configuration: expected={}, retrieved={}",
                yes(&config["required"]),
                yes(&config["retrieved"])
            );
            if yes(&config["retrieved"]) {
                let exports = match config["service-exports-enabled"].as_bool() {
                    Some(true) => "enabled",
                    Some(false) => "disabled",
                    None => "unsupported",
                };
                // Writing to a text can't fail.
                let _ = write!(
                    line,
                    ", cluster-id={}, kvstoremesh={}, sync-canaries={}, service-exports={exports}",
                    text(&config["cluster-id"]),
                    yes(&config["kvstoremesh"]),
                    yes(&config["sync-canaries"]),
                );
            }
            lines.more(line);
        }
        if !synced.is_null() {
            let parts: Vec<String> =
                ["nodes", "endpoints", "identities", "services", "service-exports"]
                    .iter()
                    .filter(|name| synced.get(**name).is_some())
                    .map(|name| format!("{name}={}", yes(&synced[*name])))
                    .collect();
            lines.more(format!("   └  synchronization status: {}", parts.join(", ")));
        }
    }
}
