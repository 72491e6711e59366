//! `cilia debuginfo`: what an agent knows, as a text to paste into a report.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Context as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::{endpoint, service, status};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Into this file, which only its owner may read [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let info = agent.get("/v1/debuginfo").await?;
    if let Some(format) = format {
        return format.print(&info);
    }
    let report = report(&info, SystemTime::now());
    let Some(file) = &arguments.file else {
        print!("{report}");
        return Ok(());
    };
    write(file, &report).with_context(|| format!("write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

fn write(file: &std::path::Path, report: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)?.write_all(report.as_bytes())
}

/// Sections under headings of Markdown.
fn report(info: &Value, now: SystemTime) -> String {
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let environment: Vec<String> = items(&info["environment-variables"]).iter().map(text).collect();
    let policy = &info["policy"];
    let sections = [
        ("Cilia version", text(&info["cilium-version"])),
        ("Kernel version", text(&info["kernel-version"])),
        ("Cilium status", status::whole(&info["cilium-status"], now)),
        ("Endpoint list", endpoint::list(items(&info["endpoint-list"]), true).render()),
        ("Service list", service::list(items(&info["service-list"]), false).render()),
        (
            "Policy get",
            format!("{}\nRevision: {}", text(&policy["policy"]), text(&policy["revision"])),
        ),
        ("Cilium environment keys", environment.join("\n")),
        ("Process", pretty(&info["subsystem"])),
    ];
    let mut report = "# Cilium debug information\n".to_owned();
    for (title, body) in sections {
        // Writing to a text can't fail.
        let _ = write!(report, "\n#### {title}\n\n```\n{}\n```\n", body.trim_end());
    }
    report
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::report;

    #[test]
    fn a_report_has_its_sections() {
        let info = json!({"cilium-version": "0.1.0 x86_64", "kernel-version": "6.18.5",
            "cilium-status": {"cilium": {"state": "Ok", "msg": "0.1.0"}}, "endpoint-list": [{"id": 7}],
            "service-list": [], "policy": {"policy": "[]", "revision": 3}, "environment-variables": ["K8S_NODE_NAME:n1"]});
        let report = report(&info, SystemTime::UNIX_EPOCH);
        for part in [
            "# Cilium debug information\n",
            "\n#### Kernel version\n\n```\n6.18.5\n```\n",
            "Cilium:",
            "Revision: 3",
            "K8S_NODE_NAME:n1",
        ] {
            assert!(report.contains(part), "{part}: {report}");
        }
    }
}
