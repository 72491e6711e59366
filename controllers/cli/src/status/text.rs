//! Decides which lines an agent's status has, as Cilium's tool writes them.

mod network;
mod services;

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::output::{items, text};
use crate::table::Table;
use services::services;

/// What is shown beside the usual lines.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag")]
pub(super) struct Shown {
    pub(super) addresses: bool,
    pub(super) controllers: bool,
    pub(super) nodes: bool,
    pub(super) redirects: bool,
    pub(super) clusters: bool,
    pub(super) health: bool,
    pub(super) verbose: bool,
}

impl Shown {
    /// Everything.
    pub(super) const ALL: Self = Self {
        addresses: true,
        controllers: true,
        nodes: true,
        redirects: true,
        clusters: true,
        health: true,
        verbose: true,
    };
}

/// Nodes that are listed without being asked for.
const FEW: usize = 10;

pub(super) fn render(status: &Value, shown: Shown, now: SystemTime) -> String {
    let mut lines = Lines(Table::new(2));
    first(&mut lines, status, shown);
    network::lines(&mut lines, status, shown);
    health(&mut lines, status, shown, now);
    lines.0.render()
}

struct Lines(Table);

impl Lines {
    fn line<T: Into<String>>(&mut self, label: &str, cells: impl IntoIterator<Item = T>) {
        self.0.row([format!("{label}:")].into_iter().chain(cells.into_iter().map(Into::into)));
    }

    /// State and message, in columns of their own.
    fn state(&mut self, label: &str, part: &Value) {
        if !part.is_null() {
            self.line(label, [text(&part["state"]), text(&part["msg"])]);
        }
    }

    /// A table of its own, whose columns don't count for the lines around it.
    fn nested(&mut self, table: &Table) {
        table.render().lines().for_each(|line| self.more(line.to_owned()));
    }

    /// A text under the label of a line above.
    fn more(&mut self, text: String) {
        self.0.row([text]);
    }
}

fn first(lines: &mut Lines, status: &Value, shown: Shown) {
    lines.state("KVStore", &status["kvstore"]);
    lines.state("ContainerRuntime", &status["container-runtime"]);
    let kubernetes = &status["kubernetes"];
    lines.state("Kubernetes", kubernetes);
    let mut kinds: Vec<String> = items(&kubernetes["k8s-api-versions"]).iter().map(text).collect();
    kinds.sort_unstable();
    if !kubernetes.is_null() && text(&kubernetes["state"]) != "Disabled" {
        lines.line("Kubernetes APIs", [format!("[\"{}\"]", kinds.join("\", \""))]);
    }
    proxy_replacement(lines, &status["kube-proxy-replacement"]);
    if let Some(firewall) = status.get("host-firewall") {
        let mode = text(&firewall["mode"]);
        let devices = format!("[{}]", list(&firewall["devices"]));
        let devices = (mode != "Disabled").then_some(devices);
        lines.line("Host firewall", [mode].into_iter().chain(devices));
    }
    if let Some(srv6) = status.get("srv6") {
        let mode = match (yes(&srv6["enabled"]), text(&srv6["srv6EncapMode"])) {
            (true, mode) => format!("Enabled [encap-mode: {mode}]"),
            (false, _) => "Disabled".into(),
        };
        lines.line("SRv6", [mode]);
    }
    if let Some(chaining) = status.get("cni-chaining") {
        lines.line("CNI Chaining", [text(&chaining["mode"])]);
    }
    if let Some(file) = status.get("cni-file") {
        lines.line("CNI Config file", [text(&file["msg"])]);
    }
    let cilium = &status["cilium"];
    lines.line("Cilium", [format!("{}   {}", text(&cilium["state"]), text(&cilium["msg"]))]);
    let mut stale: Vec<String> = status["stale"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(probe, since)| format!("{probe:?} since {}", text(since)))
        .collect();
    stale.sort_unstable();
    if !stale.is_empty() {
        lines.line("Stale status", [stale.join(", ")]);
    }
    monitor(lines, status.get("nodeMonitor"));
    lines.state("Cilium health daemon", &status["cluster"]["ciliumHealth"]);
    if let Some(ipam) = status.get("ipam") {
        lines.line("IPAM", [text(&ipam["status"])]);
        if shown.addresses {
            lines.more("Allocated addresses:".into());
            let mut addresses: Vec<(&String, &Value)> =
                ipam["allocations"].as_object().into_iter().flatten().collect();
            addresses.sort_by_key(|(address, _)| address.parse::<std::net::IpAddr>().ok());
            for (address, owner) in addresses {
                lines.more(format!("  {address} ({})", text(owner)));
            }
        }
    }
}

fn proxy_replacement(lines: &mut Lines, part: &Value) {
    let mode = text(&part["mode"]);
    if mode.is_empty() {
        return;
    }
    let devices: Vec<String> = items(&part["deviceList"])
        .iter()
        .map(|device| {
            let addresses = items(&device["ip"]).iter().map(text);
            let words: Vec<String> = [text(&device["name"])].into_iter().chain(addresses).collect();
            let direct = if device["name"] == part["directRoutingDevice"] {
                " (Direct Routing)"
            } else {
                ""
            };
            words.join(" ") + direct
        })
        .collect();
    let devices = if mode == "False" || devices.is_empty() {
        String::new()
    } else {
        format!("[{}]", devices.join(", "))
    };
    lines.line("KubeProxyReplacement", [mode, devices]);
}

fn monitor(lines: &mut Lines, monitor: Option<&Value>) {
    let Some(monitor) = monitor.filter(|monitor| !monitor.is_null()) else {
        lines.line("NodeMonitor", ["Disabled"]);
        return;
    };
    let [cpus, pages, size] = ["cpus", "npages", "pagesize"].map(|name| text(&monitor[name]));
    lines.line(
        "NodeMonitor",
        [format!("Listening for events on {cpus} CPUs with {pages}x{size} of shared memory")],
    );
    let [lost, unknown] = ["lost", "unknown"].map(|name| monitor[name].as_u64().unwrap_or(0));
    if lost > 0 || unknown > 0 {
        lines
            .0
            .row([String::new(), format!("{lost} events lost, {unknown} unknown notifications")]);
    }
}

fn health(lines: &mut Lines, status: &Value, shown: Shown, now: SystemTime) {
    if let Some(controllers) = status["controllers"].as_array() {
        controller_table(lines, controllers, shown.controllers, now);
    }
    let proxy = &status["proxy"];
    if proxy.is_null() {
        lines.line("Proxy Status", ["No managed proxy redirect"]);
    } else {
        lines.line(
            "Proxy Status",
            [format!(
                "OK, ip {}, {} redirects active on ports {}, Envoy: {}",
                text(&proxy["ip"]),
                text(&proxy["total-redirects"]),
                text(&proxy["port-range"]),
                text(&proxy["envoy-deployment-mode"]),
            )],
        );
        let mut table = Table::new(0);
        table.row(["  Protocol", "Redirect", "Proxy Port"]);
        for redirect in items(&proxy["redirects"]) {
            let cells = ["proxy", "name", "proxy-port"].map(|name| text(&redirect[name]));
            table.row([format!("  {}", cells[0]), cells[1].clone(), cells[2].clone()]);
        }
        if shown.redirects && !items(&proxy["redirects"]).is_empty() {
            lines.nested(&table);
        }
    }
    match status.get("identity-range") {
        Some(range) => {
            let (least, most) = (text(&range["min-identity"]), text(&range["max-identity"]));
            lines.line("Global Identity Range", [format!("min {least}, max {most}")]);
        }
        None => lines.line("Global Identity Range", ["Unknown"]),
    }
    if let Some(hubble) = status.get("hubble") {
        lines.line("Hubble", hubble_cells(hubble));
    }
    if shown.verbose {
        details(lines, status);
    }
    if let Some(encryption) = status.get("encryption") {
        lines.line("Encryption", [text(&encryption["mode"]), text(&encryption["msg"])]);
    }
    match status["cluster"].get("nodes").and_then(Value::as_array) {
        Some(nodes) => {
            let well = nodes.iter().filter(|node| yes(&node["reachable"])).count();
            lines.line("Cluster health", [format!("{well}/{} reachable", nodes.len())]);
            lines.0.row(["  Name", "IP", "Node", "Endpoints"]);
            let most = if shown.nodes { usize::MAX } else { FEW };
            for node in nodes.iter().take(most) {
                let cells = ["name", "ip", "node", "endpoints"].map(|name| text(&node[name]));
                let [name, rest @ ..] = cells;
                lines.0.row([format!("  {name}")].into_iter().chain(rest));
            }
            if nodes.len() > most {
                lines.more("  ...".into());
            }
        }
        None => lines.line("Cluster health", ["Probe disabled"]),
    }
    modules(lines, status, shown.health);
}

fn controller_table(lines: &mut Lines, controllers: &[Value], all: bool, now: SystemTime) {
    let failing =
        |one: &Value| one["status"]["consecutive-failure-count"].as_u64().unwrap_or(0) > 0;
    let well = controllers.iter().filter(|one| !failing(one)).count();
    lines.line("Controller Status", [format!("{well}/{} healthy", controllers.len())]);
    let mut listed: Vec<&Value> = controllers.iter().filter(|one| all || failing(one)).collect();
    listed.sort_by_key(|one| text(&one["name"]));
    if listed.is_empty() {
        return;
    }
    let mut table = Table::new(0);
    table.row(["  Name", "Last success", "Last error", "Count", "Message"]);
    for one in listed {
        let state = &one["status"];
        let message = match text(&state["last-failure-msg"]) {
            none if none.is_empty() => "no error".to_owned(),
            message => message,
        };
        table.closed([
            format!("  {}", text(&one["name"])),
            ago(&state["last-success-timestamp"], now),
            ago(&state["last-failure-timestamp"], now),
            text(&state["consecutive-failure-count"]),
            message,
        ]);
    }
    lines.nested(&table);
}

fn hubble_cells(hubble: &Value) -> Vec<String> {
    let state = format!("{} {}", text(&hubble["state"]), text(&hubble["msg"])).trim().to_owned();
    let observer = &hubble["observer"];
    if observer.is_null() {
        return vec![state];
    }
    let count = |name: &str| observer[name].as_f64().unwrap_or(0.0);
    let (now, most) = (count("current-flows"), count("max-flows").max(1.0));
    vec![
        state,
        format!(
            "Current/Max Flows: {now}/{most} ({:.2}%), Flows/s: {:.2}",
            now / most * 100.0,
            count("seen-flows") / count("uptime").max(1.0)
        ),
        format!("Metrics: {}", text(&hubble["metrics"]["state"])),
    ]
}

fn details(lines: &mut Lines, status: &Value) {
    services(lines, &status["kube-proxy-replacement"]);
    let maps = &status["bpf-maps"];
    if !maps.is_null() {
        let sizing = match maps["dynamic-size-ratio"].as_f64().unwrap_or(0.0) {
            ratio if ratio > 0.0 => format!("dynamic sizing: on (ratio: {ratio:.6})"),
            _ => "dynamic sizing: off".into(),
        };
        lines.line("BPF Maps", [sizing]);
        let mut table = Table::new(0);
        table.row(["  Name", "Size"]);
        for map in items(&maps["maps"]) {
            table.row([format!("  {}", text(&map["name"])), text(&map["size"])]);
        }
        lines.nested(&table);
    }
}

fn modules(lines: &mut Lines, status: &Value, all: bool) {
    let Some(modules) = status["modules"].as_array() else { return };
    let well = |one: &&Value| text(&one["state"]) == "Ok";
    let good = modules.iter().filter(well).count();
    lines.line(
        "Modules Health",
        [format!("Stopped(0) Degraded({}) OK({good})", modules.len() - good)],
    );
    for module in modules.iter().filter(|one| all || !well(one)) {
        let state = if well(&module) { "OK" } else { "DEGRADED" };
        lines.0.row([
            format!("  {}", text(&module["name"])),
            format!("[{state}]"),
            text(&module["msg"]),
        ]);
    }
}

fn yes(value: &Value) -> bool {
    value.as_bool() == Some(true)
}

fn on(value: &Value) -> String {
    if yes(value) { "Enabled".into() } else { "Disabled".into() }
}

fn list(value: &Value) -> String {
    items(value).iter().map(text).collect::<Vec<_>>().join(", ")
}

/// How long ago a moment is, or never.
fn ago(moment: &Value, now: SystemTime) -> String {
    let Some(moment) = moment.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "never".into();
    };
    let since = now.duration_since(SystemTime::from(moment)).unwrap_or_default().as_secs();
    match since {
        0..60 => format!("{since}s ago"),
        60..3600 => format!("{}m{}s ago", since / 60, since % 60),
        _ => format!("{}h{}m{}s ago", since / 3600, since / 60 % 60, since % 60),
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
