//! The steps of the start that may have to be tried again, or take their time.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cilia_loader::Datapath;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry, Workqueues};
use tokio_util::sync::CancellationToken;

use super::CNI;
use crate::cni;
use crate::config::Settings;
use crate::readiness::Readiness;

/// How long a step waits before it is tried again, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const RETRY: Duration = Duration::from_secs(2);

/// Loads the programs, on a thread of its own: the kernel's verifier takes its time.
pub(super) async fn load(settings: &Settings, node: &cilia_loader::NodeConfig) -> Result<Datapath> {
    let config = cilia_loader::Config {
        bpf_root: settings.bpf_root.clone(),
        ipv4: settings.node.ipv4,
        ipv6: settings.node.ipv6,
        sizes: settings.map_sizes.clone(),
        node: node.clone(),
    };
    let loaded = tokio::task::spawn_blocking(move || Datapath::load(&config)).await?;
    loaded.context("load the datapath")
}

/// Does `step` until it succeeds; meanwhile the gate says what is wrong.
pub(super) async fn retried<T, E, F>(
    what: &'static str,
    step: impl Fn() -> F,
    readiness: &Readiness,
    gate: &'static str,
    workqueues: &Workqueues,
) -> T
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let retry = Retry { base: FIRST_RETRY, cap: RETRY, max: u32::MAX, ..Retry::default() };
    let lanes = Lanes::new(vec![Lane::new(what)], retry, None, workqueues);
    lanes.add(0, gate);
    let (done, ended) = (Mutex::new(None), CancellationToken::new());
    let handle = |job: Job<&'static str>| {
        let (step, done, ended) = (step(), &done, &ended);
        async move {
            let outcome = step.await;
            let outcome =
                outcome.inspect_err(|error| readiness.close(job.key, error.to_string()))?;
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            ended.cancel();
            Ok::<_, E>(Next::Done)
        }
    };
    lanes.run(1, &ended, handle).await;
    match done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(outcome) => outcome,
        None => unreachable!("the lane ends with the step"),
    }
}

/// Tells the container runtime about the plugin, once pods can be connected.
pub(super) async fn announce(
    conflist: Option<cni::conflist::Conflist>,
    readiness: Readiness,
    workqueues: Workqueues,
    stop: CancellationToken,
) {
    let announced = async {
        readiness.wait_for_all_but(CNI).await;
        if let Some(conflist) = conflist {
            let write = || std::future::ready(conflist.write());
            retried("cni-configuration", write, &readiness, CNI, &workqueues).await;
        }
        readiness.open(CNI);
        tracing::info!("ready");
    };
    tokio::select! {
        () = announced => stop.cancelled().await,
        () = stop.cancelled() => {}
    }
}
