//! Decides what is said of each part of kube-proxy's replacement.

use serde_json::Value;

use super::{Lines, list, on, yes};
use crate::output::{items, text};
use crate::table::Table;

/// The details, in Cilium's order. Nothing of an agent that doesn't tell.
pub(super) fn services(lines: &mut Lines, replacement: &Value) {
    let features = &replacement["features"];
    if features.is_null() {
        return;
    }
    let enabled = |name: &str| on(&features[name]["enabled"]);
    let ports = &features["nodePort"];
    let node_port = yes(&ports["enabled"]);
    let of_ports = |name: &str| text(&ports[name]);
    lines.more("KubeProxyReplacement Details:".into());
    let mut table = Table::new(0);
    let mut row = |name: &str, value: String| table.row([format!("  {name}"), value]);
    row("Status:", text(&replacement["mode"]));
    row("Socket LB:", enabled("socketLB"));
    row("Socket LB Tracing:", enabled("socketLBTracing"));
    let coverage = if yes(&features["bpfSocketLBHostnsOnly"]) { "Hostns-only" } else { "Full" };
    row("Socket LB Coverage:", coverage.into());
    if node_port {
        let mode = of_ports("mode");
        let direct = matches!(mode.as_str(), "DSR" | "Hybrid");
        row("Mode:", mode);
        if direct {
            row("  DSR Dispatch Mode:", of_ports("dsrMode"));
        }
        let selection = match of_ports("algorithm").as_str() {
            "Maglev" => format!("Maglev (Table Size: {})", of_ports("lutSize")),
            other => other.to_owned(),
        };
        row("Backend Selection:", selection);
    }
    row("Session Affinity:", enabled("sessionAffinity"));
    let translation = &features["nat46X64"];
    if yes(&translation["enabled"]) {
        table.row(["  NAT46/64 Support:"]);
        let gateway = &translation["gateway"];
        table.row(["  - Services:".to_owned(), on(&translation["service"]["enabled"])]);
        table.row(["  - Gateway:".to_owned(), on(&gateway["enabled"])]);
        if yes(&gateway["enabled"]) && !items(&gateway["prefixes"]).is_empty() {
            table.row(["    Prefixes:".to_owned(), list(&gateway["prefixes"])]);
        }
    } else {
        table.row(["  NAT46/64 Support:", "Disabled"]);
    }
    let acceleration = of_ports("acceleration");
    if node_port && !acceleration.is_empty() {
        table.row(["  XDP Acceleration:".to_owned(), acceleration]);
    }
    table.row(["  Services:"]);
    let range = format!("Enabled (Range: {}-{})", of_ports("portMin"), of_ports("portMax"));
    let off = || "Disabled".to_owned();
    for (name, value) in [
        ("ClusterIP", "Enabled".to_owned()),
        // Cilium has a blank behind these.
        ("NodePort", if node_port { range } else { off() } + " "),
        ("LoadBalancer", on(&ports["enabled"]) + " "),
        ("externalIPs", enabled("externalIPs") + " "),
        ("HostPort", enabled("hostPort")),
    ] {
        table.row([format!("  - {name}:"), value]);
    }
    let annotations = items(&features["annotations"]);
    if annotations.is_empty() {
        table.row(["  Annotations:", "(n/a)"]);
    } else {
        table.row(["  Annotations:"]);
        for one in annotations {
            table.row([format!("  - {}", text(one))]);
        }
    }
    lines.nested(&table);
}
