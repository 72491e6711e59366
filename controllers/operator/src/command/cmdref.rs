//! `--cmdref`: a page of Markdown for each command.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// Writes the pages of `command` and all below it into `folder`.
pub(super) fn write(mut command: clap::Command, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    command.build();
    page(&mut command, folder)
}

fn page(command: &mut clap::Command, folder: &Path) -> anyhow::Result<()> {
    let path = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_long_help();
    let mut text = format!("## {path}\n\n{about}\n\n```\n{}\n```\n", usage.to_string().trim_end());
    let below: Vec<String> = command
        .get_subcommands()
        .filter(|below| below.get_name() != "help" && !below.is_hide_set())
        .map(|below| {
            let name = format!("{path} {}", below.get_name());
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            format!("* [{name}]({}) - {about}\n", file(&name))
        })
        .collect();
    if !below.is_empty() {
        text.push_str("\n### See also\n\n");
        text.extend(below);
    }
    let target = folder.join(file(&path));
    fs::write(&target, text).with_context(|| format!("write {}", target.display()))?;
    for below in command.get_subcommands_mut() {
        if below.get_name() != "help" {
            page(below, folder)?;
        }
    }
    Ok(())
}

fn file(path: &str) -> String {
    format!("{}.md", path.replace(' ', "_"))
}
