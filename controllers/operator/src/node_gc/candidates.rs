//! Decides which `CiliumNodes` have been without a node for long enough.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// A `CiliumNode`, as far as this duty cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Somebody else removes it, or it is to stay.
    pub(super) exempt: bool,
}

/// The nodes that were missing at the last look, by uid, with when that was first seen.
#[derive(Debug, Default)]
pub(super) struct Candidates(HashMap<String, Duration>);

impl Candidates {
    /// The nodes to remove, given all there are `now`. Forgets whoever is there again.
    pub(super) fn look(
        &mut self,
        cilium_nodes: &[Node],
        kube_nodes: &HashSet<String>,
        now: Duration,
        grace: Duration,
    ) -> Vec<Node> {
        let missing = |node: &&Node| !node.exempt && !kube_nodes.contains(&node.name);
        let missing: Vec<&Node> = cilium_nodes.iter().filter(missing).collect();
        let before = std::mem::take(&mut self.0);
        let since = |node: &Node| before.get(&node.uid).copied().unwrap_or(now);
        self.0 = missing.iter().map(|node| (node.uid.clone(), since(node))).collect();
        let overdue = |node: &&Node| now.saturating_sub(since(node)) >= grace;
        missing.into_iter().filter(overdue).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::{Candidates, Node};

    fn node(name: &str, uid: &str, exempt: bool) -> Node {
        let resource_version = "1".to_owned();
        Node { name: name.to_owned(), uid: uid.to_owned(), resource_version, exempt }
    }

    #[test]
    fn waits_out_the_grace_each_time() {
        let all = [node("valid", "1", false), node("invalid", "2", false), node("kept", "3", true)];
        let there = |names: &[&str]| names.iter().map(ToString::to_string).collect::<HashSet<_>>();
        let mut candidates = Candidates::default();
        let mut look = |all: &[Node], there: &HashSet<String>, minute: u64| {
            let (now, grace) = (Duration::from_mins(minute), Duration::from_mins(5));
            let garbage = candidates.look(all, there, now, grace).into_iter();
            garbage.map(|node| node.name).collect::<Vec<_>>()
        };
        let (without, with) = (there(&["valid"]), there(&["valid", "invalid"]));
        assert_eq!(look(&all, &without, 0), [""; 0], "NODEGC-01");
        assert_eq!(look(&all, &without, 5), ["invalid"], "NODEGC-02");
        assert_eq!(look(&all, &with, 6), [""; 0]);
        assert_eq!(look(&all, &without, 10), [""; 0], "NODEGC-03: full grace again");
        assert_eq!(look(&all, &without, 14), [""; 0]);
        let again = [node("invalid", "4", false)];
        assert_eq!(look(&again, &without, 15), [""; 0], "another of the same name");
        assert_eq!(look(&again, &without, 20), ["invalid"]);
    }
}
