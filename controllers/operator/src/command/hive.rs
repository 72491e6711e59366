//! `hive`: the parts of the operator, and what starts after what.

use std::fmt::Write as _;

use crate::wiring::{Duty, duties};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// The order of starts as a graph for graphviz
    DotGraph,
}

/// What every replica does, in the order in which it starts.
const EVERYWHERE: &[&str] = &["api", "metrics", "shell", "leader_election"];
/// What comes before the duties of a leader.
const FIRST: &str = "crd_registration";

pub(super) fn show(command: Option<&Command>) -> String {
    let (ready, led): (Vec<Duty>, Vec<Duty>) =
        duties().into_iter().partition(|duty| duty.stands_by);
    let names = |duties: &[Duty]| duties.iter().map(|duty| duty.name).collect::<Vec<_>>();
    let (ready, led) = (names(&ready), names(&led));
    let mut shown = String::new();
    if command.is_none() {
        let everywhere = EVERYWHERE.iter().copied().chain(ready);
        shown.push_str("Cells on every replica, in the order in which they start:\n\n");
        shown.extend(everywhere.map(|name| format!("  {name}\n")));
        shown.push_str("\nCells on the leader, in the order in which they start:\n\n");
        shown.extend(std::iter::once(FIRST).chain(led).map(|name| format!("  {name}\n")));
        return shown;
    }
    shown.push_str("digraph G {\n");
    let mut edge = |from: &str, to: &str| {
        let _ = writeln!(shown, "  {from:?} -> {to:?};");
    };
    for pair in EVERYWHERE.windows(2) {
        edge(pair[0], pair[1]);
    }
    for name in &ready {
        edge("leader_election", name);
    }
    edge("leader_election", FIRST);
    for name in &led {
        edge(FIRST, name);
    }
    shown.push_str("}\n");
    shown
}
