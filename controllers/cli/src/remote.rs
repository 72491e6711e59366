//! Runs a command in an agent's pod, where etcd can be reached and its certificates are, and shows what it says.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use tokio::io::AsyncReadExt as _;

use crate::agent::Agent;
use crate::cluster::{AgentPod, CONTAINER, said};
use crate::output::write_bytes;

/// How long it may take; no command there takes longer by itself.
const PATIENCE: Duration = Duration::from_mins(1);
/// The longest answer.
const LONGEST: u64 = 256 << 20;

/// Shows what `cilia WORDS` says in the agent's pod, and ends as it does.
pub(crate) async fn run(agent: &Agent, words: &[String]) -> anyhow::Result<ExitCode> {
    let pod = agent.pod().with_context(|| format!("{} is in no pod", agent.name()))?;
    let ran = tokio::time::timeout(PATIENCE, execute(pod, words)).await;
    let (output, complaint, code) = ran.unwrap_or_else(|_| {
        bail!("cilia {} in pod {}: no answer in {PATIENCE:?}", words.join(" "), pod.name)
    })?;
    write_bytes(&output);
    let complaint = complaint.trim_end();
    match (code, complaint) {
        (0, "") => {}
        (0, complaint) => eprintln!("{complaint}"),
        // It says all that there is to say.
        (code, "") => return Ok(ExitCode::from(code)),
        (_, complaint) => bail!("{complaint}"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn execute(pod: &AgentPod, words: &[String]) -> anyhow::Result<(Vec<u8>, String, u8)> {
    let how = AttachParams::default().container(CONTAINER).stdout(true).stderr(true);
    let command = std::iter::once("cilia").chain(words.iter().map(String::as_str));
    let process = pod.pods.exec(&pod.name, command, &how).await;
    let mut process = process.map_err(said).with_context(|| {
        format!("run `cilia {}` in pod {}/{}", words.join(" "), pod.namespace, pod.name)
    })?;
    let (Some(mut stdout), Some(mut stderr), Some(status)) =
        (process.stdout(), process.stderr(), process.take_status())
    else {
        bail!("pod {} gives no output", pod.name);
    };
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let mut stdout = (&mut stdout).take(LONGEST);
    let mut stderr = (&mut stderr).take(LONGEST);
    let (read, told, status) =
        tokio::join!(stdout.read_to_end(&mut output), stderr.read_to_end(&mut complaint), status);
    read.and(told).with_context(|| format!("read the answer of pod {}", pod.name))?;
    let status = status.with_context(|| format!("pod {} went away meanwhile", pod.name))?;
    let complaint = String::from_utf8_lossy(&complaint).into_owned();
    match code(&status) {
        Some(code) => Ok((output, complaint, code)),
        None => bail!("pod {}: {}", pod.name, status.message.unwrap_or_default()),
    }
}

/// The exit status of a command that was run; none if it was not.
fn code(status: &Status) -> Option<u8> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    codes.find_map(|cause| cause.message.as_ref()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
    use serde_json::json;

    use super::code;

    #[test]
    fn a_command_ends_as_it_does_there() {
        let status = |status| serde_json::from_value::<Status>(status).expect("a status");
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "2"}]}});
        assert_eq!(code(&status(json!({"status": "Success"}))), Some(0));
        assert_eq!(code(&status(failed)), Some(2));
        assert_eq!(
            code(&status(json!({"status": "Failure", "message": "no such container"}))),
            None
        );
    }
}
