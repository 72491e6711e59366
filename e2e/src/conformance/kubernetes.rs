//! Decides which of Kubernetes' end-to-end tests run, and how they are spread over processes.
//!
//! Most of a test's time is waiting for pods, and each has namespaces of its own: some run side
//! by side.

use std::path::Path;
use std::process::Stdio;

use futures::future::try_join_all;
use serde::Deserialize;

use super::{End, Verdict, load_images};
use crate::command::{command, output};
use crate::error::io;
use crate::{Cluster, Error, Progress, Suite};

/// What the tests of `NetworkPolicy` have in their names.
const NETWORK_POLICY: &str = "NetworkPolicy between server and client";
/// Tests that need a kernel with SCTP.
const NEEDS_SCTP: &str = "[Feature:SCTPConnectivity]";

/// Runs the tests of `NetworkPolicy` whose names contain one of `words` (all, if there is none).
///
/// Tests of SCTP connectivity are left out where the kernel has no SCTP.
pub async fn network_policy(
    cluster: &Cluster,
    words: &[&str],
    processes: usize,
    progress: &Progress,
) -> Result<Vec<Verdict>, Error> {
    let program = Suite::Kubernetes.program(progress).await?;
    load_images(cluster, Suite::Kubernetes, &program, progress).await?;
    let tests = wanted(&list(&program).await?, words);
    if tests.is_empty() {
        return Err(Error::Invalid(format!("no test's name contains any of {words:?}")));
    }
    progress.say(format!("running {} tests in {processes} processes", tests.len()));
    let dir = tempfile::tempdir().map_err(io("make a folder in", &std::env::temp_dir()))?;
    let groups = spread(&tests, processes.max(1));
    let runs = groups.iter().enumerate().map(|(index, group)| {
        let report = dir.path().join(format!("{index}.json"));
        let program = &program;
        async move { run(program, cluster, group, &report).await }
    });
    let mut verdicts: Vec<_> = try_join_all(runs).await?.into_iter().flatten().collect();
    verdicts.sort_by(|a, b| a.test.cmp(&b.test));
    if verdicts.len() != tests.len() {
        let (ran, wanted) = (verdicts.len(), tests.len());
        return Err(Error::Invalid(format!("of {wanted} tests the suite ran {ran}")));
    }
    Ok(verdicts)
}

async fn list(program: &Path) -> Result<String, Error> {
    output(&mut command(program, ["--list-tests"])).await
}

/// The names in the suite's list: each line is `FILE:LINE: NAME`.
fn wanted(list: &str, words: &[&str]) -> Vec<String> {
    let sctp = Path::new("/proc/net/sctp").exists();
    list.lines()
        .filter_map(|line| line.split_once(": ").map(|(_, name)| name.trim()))
        .filter(|name| name.contains(NETWORK_POLICY))
        .filter(|name| sctp || !name.contains(NEEDS_SCTP))
        .filter(|name| words.is_empty() || words.iter().any(|word| name.contains(word)))
        .map(str::to_owned)
        .collect()
}

fn spread(tests: &[String], processes: usize) -> Vec<Vec<String>> {
    let mut groups = vec![Vec::new(); processes.min(tests.len())];
    for (index, test) in tests.iter().enumerate() {
        let group = index % groups.len();
        groups[group].push(test.clone());
    }
    groups
}

async fn run(
    program: &Path,
    cluster: &Cluster,
    tests: &[String],
    report: &Path,
) -> Result<Vec<Verdict>, Error> {
    let focus: Vec<_> = tests.iter().map(|test| literal(test)).collect();
    let mut suite = command(program, ["--provider=skeleton", "--disable-log-dump"]);
    suite
        .arg(format!("--kubeconfig={}", cluster.layout.kubeconfig().display()))
        .arg(format!("--ginkgo.focus={}", focus.join("|")))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // It exits with an error if a test fails; the report has the news.
    suite.status().await.map_err(io("run", program))?;
    let text = std::fs::read_to_string(report).map_err(io("read the report", report))?;
    verdicts(&text)
}

/// A regular expression (Go's) that matches `text` alone.
fn literal(text: &str) -> String {
    let special = |c: char| "\\.+*?()|[]{}^$".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    #[serde(default)]
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

fn verdicts(report: &str) -> Result<Vec<Verdict>, Error> {
    let reports: Vec<Report> = serde_json::from_str(report)
        .map_err(|error| Error::Invalid(format!("the suite's report: {error}")))?;
    let ran = reports.into_iter().flat_map(|report| report.spec_reports).filter_map(|spec| {
        if matches!(spec.state.as_str(), "skipped" | "pending") {
            return None;
        }
        let passed = spec.state == "passed";
        if spec.leaf_node_type != "It" {
            // Set-up and tear-down are worth a line only when they fail.
            let text = format!("{}: {}", spec.leaf_node_type, spec.failure.message);
            return (!passed).then_some(Verdict { test: text.clone(), end: End::Failed(text) });
        }
        let why = format!("{}: {}", spec.state, spec.failure.message);
        let end = if passed { End::Passed } else { End::Failed(why) };
        Some(Verdict { test: spec.leaf_node_text, end })
    });
    Ok(ran.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "The following spec names can be used with 'ginkgo run --focus/skip':
    a.go:80: [sig-network] Netpol NetworkPolicy between server and client should (egress) deny [Feature:NetworkPolicy]
    a.go:90: [sig-network] Netpol NetworkPolicy between server and client should allow [Feature:NetworkPolicy]
    b.go:10: [sig-network] Services should serve
";

    #[test]
    fn tests_are_chosen_by_words() {
        assert_eq!(wanted(LIST, &[]).len(), 2);
        assert_eq!(wanted(LIST, &["should allow", "nothing"]).len(), 1);
    }

    #[test]
    fn a_name_is_taken_literally() {
        assert_eq!(literal("a (b) [c]"), r"a \(b\) \[c\]");
    }

    #[test]
    fn groups_have_all_tests_once() {
        let tests: Vec<_> = (0..7).map(|i| i.to_string()).collect();
        let mut all: Vec<_> = spread(&tests, 3).into_iter().flatten().collect();
        all.sort();
        assert_eq!(all, tests);
    }

    #[test]
    fn a_report_is_read() {
        let report = r#"[{"SpecReports": [
            {"LeafNodeType": "It", "LeafNodeText": "a", "State": "passed"},
            {"LeafNodeType": "It", "LeafNodeText": "b", "State": "failed", "Failure": {"Message": "no"}},
            {"LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped"},
            {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"}]}]"#;
        let found = verdicts(report).expect("a report");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].end, End::Passed);
        assert_eq!(found[1].end, End::Failed("failed: no".to_owned()));
    }
}
