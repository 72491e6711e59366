//! The page about the command line has a row for each command with its arguments.

use clap::{Arg, Command, CommandFactory as _};

use crate::Arguments;

const PAGE: &str = include_str!("../../../docs/cli.md");

/// An argument as the page names it.
fn shown(argument: &Arg) -> String {
    let value = || {
        let names = argument.get_value_names().unwrap_or_default();
        names.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>().join(" ")
    };
    let short = argument.get_short().map(|letter| format!("-{letter}, ")).unwrap_or_default();
    match argument.get_long() {
        None => argument.get_id().as_str().to_uppercase(),
        Some(long) if argument.get_action().takes_values() => {
            format!("{short}--{long} {}", value())
        }
        Some(long) => format!("{short}--{long}"),
    }
}

fn rows(command: &Command, path: &str, rows: &mut Vec<String>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let path = format!("{path} {}", below.get_name()).trim().to_owned();
        if below.has_subcommands() {
            self::rows(below, &path, rows);
            continue;
        }
        let own = below.get_arguments().filter(|one| !one.is_hide_set() && !one.is_global_set());
        let own: Vec<String> = own.map(|one| format!("`{}`", shown(one))).collect();
        rows.push(format!("| `{path}` | {} |", own.join(", ")).replace("|  |", "| |"));
    }
}

#[test]
fn every_command_is_in_the_documentation() {
    let mut all = Vec::new();
    rows(&Arguments::command(), "", &mut all);
    let missing: Vec<&str> = all
        .iter()
        .map(String::as_str)
        .filter(|row| !PAGE.lines().any(|line| line == *row))
        .collect();
    assert!(missing.is_empty(), "docs/cli.md lacks these rows:\n{}", missing.join("\n"));
    let known = PAGE.lines().skip_while(|line| *line != "| command | arguments |").skip(2);
    let known = known.take_while(|line| line.starts_with('|'));
    let odd: Vec<&str> = known.filter(|line| !all.iter().any(|row| row == line)).collect();
    assert!(odd.is_empty(), "docs/cli.md has rows of no command:\n{}", odd.join("\n"));
}
