//! Kubernetes' own tests of network policies, those in which implementations differ.

use anyhow::{Result, ensure};
use cilia_e2e::Progress;
use cilia_e2e::conformance::{End, kubernetes, summary};
use cilia_e2e::scenario::Stage;

/// `make conformance` runs all of them. Cilium 1.19 fails three of these.
const TESTS: &[&str] = &[
    "should allow egress access to server in CIDR block",
    "should enforce except clause while egress access to server in CIDR block",
    "should ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed",
    "should allow ingress access from updated pod",
    "should support a 'default-deny-all' policy",
    "should allow ingress access from namespace on one named port",
    "should enforce multiple, stacked policies with overlapping podSelectors",
    "should not allow access by TCP when a policy specifies only UDP",
];
/// A test waits for pods most of its time.
const PROCESSES: usize = 4;

pub(crate) async fn kubernetes_finds_its_policies_enforced(stage: &Stage) -> Result<()> {
    let progress = Progress::quiet();
    let verdicts = kubernetes::network_policy(&stage.cluster, TESTS, PROCESSES, &progress).await?;
    ensure!(verdicts.len() == TESTS.len(), "{} tests ran: {}", verdicts.len(), summary(&verdicts));
    ensure!(verdicts.iter().all(|verdict| verdict.end == End::Passed), "{}", summary(&verdicts));
    Ok(())
}
