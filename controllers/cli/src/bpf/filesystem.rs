//! `cilia bpf fs`: where maps and programs are pinned.

use anyhow::Context as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Command {
    /// How it is mounted
    Show,
}

pub(super) async fn run(
    agent: &Agent,
    Command::Show: Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let maps = agent.get("/v1/map").await?;
    let mount = Some(&maps["filesystem"]).filter(|mount| mount.is_object());
    let mount =
        mount.context("the agent sees no BPF file system: it can't have pinned anything")?;
    match format {
        Some(format) => format.print(mount)?,
        None => shown(mount).print(),
    }
    Ok(())
}

fn shown(mount: &Value) -> Table {
    let mut table = Table::new(5);
    let optional: Vec<String> = items(&mount["optional-fields"]).iter().map(text).collect();
    let one = |name: &str| text(&mount[name]);
    let rows = [
        ("MountID:", one("mount-id")),
        ("ParentID:", one("parent-id")),
        ("StDev:", one("device")),
        ("Root:", one("root")),
        ("MountPoint:", one("mount-point")),
        ("MountOptions:", one("mount-options")),
        ("OptionFields:", format!("[{}]", optional.join(" "))),
        ("FilesystemType:", one("type")),
        ("MountSource:", one("source")),
        ("SuperOptions:", one("super-options")),
    ];
    for (name, value) in rows {
        table.row([name.to_owned(), value]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::shown;

    #[test]
    fn a_mount_in_lines() {
        let mount = json!({"mount-id": 40, "parent-id": 30, "device": "0:32", "root": "/", "mount-point": "/sys/fs/bpf",
            "mount-options": "rw", "optional-fields": ["shared:9"], "type": "bpf", "source": "bpf", "super-options": "rw,mode=700"});
        let text = shown(&mount).render();
        assert!(text.starts_with("MountID:          40\nParentID:         30\n"), "{text}");
        assert!(text.contains("OptionFields:     [shared:9]\nFilesystemType:   bpf\n"), "{text}");
    }
}
