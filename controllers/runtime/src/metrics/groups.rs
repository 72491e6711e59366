//! Decides which controller groups' runs are counted: those that `controller-group-metrics` names.

use std::collections::HashSet;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

type Runs = Family<[(&'static str, &'static str); 2], Counter>;

#[derive(Debug)]
pub(super) struct Groups {
    named: HashSet<String>,
    runs: Runs,
}

impl Groups {
    /// Of the names, `all` stands for every group and `none` for none.
    pub(super) fn new(names: &[String]) -> Self {
        let groups = names.iter().filter(|group| *group != "none").cloned();
        Self { named: groups.collect(), runs: Runs::default() }
    }

    pub(super) fn any(&self) -> bool {
        !self.named.is_empty()
    }

    pub(super) fn runs(&self) -> Runs {
        self.runs.clone()
    }

    pub(super) fn ran(&self, group: &'static str, well: bool) {
        if self.named.contains("all") || self.named.contains(group) {
            let status = if well { "success" } else { "failure" };
            self.runs.get_or_create(&[("group_name", group), ("status", status)]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    #[test]
    fn counts_the_groups_that_are_named() {
        let shown = |names: &[&str]| {
            let metrics = Metrics::new("cilium_operator");
            metrics.count_groups(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
            metrics.group_ran("one", true);
            metrics.group_ran("two", false);
            let text = metrics.render();
            let lines =
                text.lines().filter(|line| line.starts_with("cilium_operator_controllers_"));
            let mut lines: Vec<String> = lines.map(ToString::to_string).collect();
            lines.sort();
            lines
        };
        let line =
            |labels: &str| format!("cilium_operator_controllers_group_runs_total{{{labels}}} 1");
        let one = line("group_name=\"one\",status=\"success\"");
        let two = line("group_name=\"two\",status=\"failure\"");
        assert_eq!(shown(&["all"]), [one, two.clone()]);
        assert_eq!(shown(&["two", "three"]), [two]);
        assert_eq!(shown(&["none"]), [""; 0]);
        assert_eq!(shown(&[]), [""; 0]);
    }
}
