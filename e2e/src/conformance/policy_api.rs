//! Decides which conformance tests of `ClusterNetworkPolicy` run: what the API calls standard.

use std::fs::File;

use serde_json::json;

use super::{End, Verdict, load_images};
use crate::command::command;
use crate::error::io;
use crate::scenario::{Stage, chart};
use crate::{Error, Progress, Suite};

/// The suite's one Go test, whose subtests are the conformance tests.
const ROOT: &str = "TestConformance/";
/// The labels that make an identity in this run. Some tests select single pods of a `StatefulSet`
/// by their names, which by default don't, as in Cilium: each would cost an identity.
const LABELS: &[(&str, &str)] = &[
    ("reserved", ".*"),
    ("k8s", "io.kubernetes.pod.namespace"),
    ("k8s", "io.cilium.k8s."),
    ("k8s", "conformance-"),
    ("k8s", "statefulset.kubernetes.io/pod-name"),
    ("k8s", "k8s-app"),
];

/// What a client says of SCTP where its kernel has none.
const NO_SCTP: &str = "protocol not supported";

/// Installs the API's definitions and runs its standard tests.
///
/// Tests of SCTP are left out where the kernel has none. Others that come to SCTP after TCP and UDP
/// can't be judged then.
pub async fn standard(stage: &Stage, progress: &Progress) -> Result<Vec<Verdict>, Error> {
    let cluster = &stage.cluster;
    let program = Suite::PolicyApi.program(progress).await?;
    choose_labels(stage).await?;
    load_images(cluster, Suite::PolicyApi, &program, progress).await?;
    let definitions = Suite::definitions().await?;
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster.kubectl_with_input(&apply, &definitions).await?;
    progress.say("ClusterNetworkPolicy installed; running its tests");
    let mut suite = command(&program, ["-test.v", "-test.run=^TestConformance$"]);
    if !std::path::Path::new("/proc/net/sctp").exists() {
        suite.arg("-test.skip=^TestConformance$/SCTP");
    }
    suite.env("KUBECONFIG", cluster.layout.kubeconfig());
    // It takes a quarter of an hour: what it says can be followed there.
    let log = std::env::temp_dir().join(format!("{}-policy-api.log", cluster.layout.name()));
    let file = File::create(&log).map_err(io("create", &log))?;
    let errors = file.try_clone().map_err(io("open", &log))?;
    progress.say(format!("its output goes to {}", log.display()));
    suite.stdout(file).stderr(errors).status().await.map_err(io("run", &program))?;
    let text = std::fs::read_to_string(&log).map_err(io("read", &log))?;
    let verdicts = verdicts(&text);
    if verdicts.is_empty() {
        let end: Vec<_> = text.lines().rev().take(20).collect();
        let end: Vec<_> = end.into_iter().rev().collect();
        return Err(Error::Invalid(format!("the suite ran no test: {}", end.join("\n"))));
    }
    Ok(verdicts)
}

/// Has agents and operators go by [`LABELS`].
async fn choose_labels(stage: &Stage) -> Result<(), Error> {
    let prefixes: Vec<_> =
        LABELS.iter().map(|(source, prefix)| json!({"source": source, "prefix": prefix})).collect();
    let file = json!({"version": 1, "valid-prefixes": prefixes}).to_string();
    let mounted = "/tmp/cilium/config-map/label-prefix.json";
    let data =
        json!({"data": {"label-prefix.json": file, "label-prefix-file": mounted}}).to_string();
    let namespace = format!("--namespace={}", chart::NAMESPACE);
    let patch =
        ["patch", "configmap", "cilium-config", &namespace, "--type=merge", "--patch", &data];
    stage.cluster.kubectl(&patch).await?;
    chart::restart(stage).await
}

/// The subtests' results out of what `go test -v` prints. A test with subtests is told by them.
fn verdicts(printed: &str) -> Vec<Verdict> {
    let ended: Vec<(bool, &str)> = printed.lines().filter_map(ended).collect();
    let is_leaf = |name: &str| {
        !ended.iter().any(|(_, other)| other.strip_prefix(name).is_some_and(|r| r.starts_with('/')))
    };
    let told = ended.iter().filter(|(_, name)| is_leaf(name)).filter_map(|&(passed, name)| {
        let test = name.strip_prefix(ROOT)?.to_owned();
        let end = match (passed, complaints(printed, name)) {
            (true, _) => End::Passed,
            (false, why) if why.contains(NO_SCTP) => End::CannotBeJudged("the kernel has no SCTP"),
            (false, why) => End::Failed(why),
        };
        Some(Verdict { test, end })
    });
    told.collect()
}

/// Whether a test passed, and its name, if the line says so.
fn ended(line: &str) -> Option<(bool, &str)> {
    let line = line.trim_start();
    let passed = line.strip_prefix("--- PASS: ").map(|rest| (true, rest));
    let (passed, rest) = passed.or_else(|| Some((false, line.strip_prefix("--- FAIL: ")?)))?;
    Some((passed, rest.rsplit_once(" (").map_or(rest, |(name, _)| name)))
}

/// What a test printed while it ran.
fn complaints(text: &str, name: &str) -> String {
    let start = format!("=== RUN   {name}");
    let own = text.lines().skip_while(|line| *line != start).skip(1);
    own.take_while(|line| !line.starts_with("=== RUN")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_told_with_their_complaints() {
        let text = "=== RUN   TestConformance
=== RUN   TestConformance/A
=== RUN   TestConformance/A/one
    x.go:1: not reached
=== RUN   TestConformance/A/two
=== RUN   TestConformance/A/three
    x.go:2: OTHER: protocol not supported
--- FAIL: TestConformance (2.00s)
    --- FAIL: TestConformance/A (1.00s)
        --- FAIL: TestConformance/A/one (0.50s)
        --- PASS: TestConformance/A/two (0.50s)
        --- FAIL: TestConformance/A/three (0.50s)
";
        let found = verdicts(text);
        let expected = [
            Verdict {
                test: "A/one".to_owned(),
                end: End::Failed("    x.go:1: not reached".to_owned()),
            },
            Verdict { test: "A/two".to_owned(), end: End::Passed },
            Verdict {
                test: "A/three".to_owned(),
                end: End::CannotBeJudged("the kernel has no SCTP"),
            },
        ];
        assert_eq!(found, expected);
    }
}
