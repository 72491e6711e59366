//! One replica of the operator.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use cilia_runtime::testing::{Process, Signal, eventually_for, free_ports};

/// The operator as a process; killed when dropped.
pub struct Replica {
    process: Process,
    folder: tempfile::TempDir,
}

impl Replica {
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> Self {
        Self::with_max(super::storm::MAX, kubeconfig, arguments)
    }

    /// Starts one that puts so many endpoints into a slice.
    pub fn with_max(max: usize, kubeconfig: &Path, arguments: &[&str]) -> Self {
        let [port] = free_ports();
        let folder = tempfile::tempdir().expect("make a folder");
        let mut all = vec![
            format!("--k8s-kubeconfig-path={}", kubeconfig.display()),
            format!("--operator-api-serve-addr=127.0.0.1:{port}"),
            "--ipam=kubernetes".to_owned(),
            "--identity-allocation-mode=crd".to_owned(),
            "--enable-cilium-endpoint-slice".to_owned(),
            format!("--ces-max-ciliumendpoints-per-ces={max}"),
        ];
        all.extend(arguments.iter().map(ToString::to_string));
        let program = Path::new(env!("CARGO_BIN_EXE_cilia-operator"));
        let process = Process::start(program, &all, &folder.path().join("log"));
        Self { process, folder }
    }

    pub async fn until_leading(&mut self) {
        self.until("all CRDs are there").await;
    }

    /// Waits until its log says so.
    pub async fn until(&mut self, text: &str) {
        eventually_for(Duration::from_secs(30), async || {
            let output = self.process.output();
            if output.contains(text) { Ok(()) } else { Err(output) }
        })
        .await;
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub async fn end_within(&mut self, limit: Duration) -> ExitStatus {
        self.process.end_within(limit).await
    }

    /// Ends it as a crash would.
    pub fn kill(self) {
        let Self { process, folder } = self;
        drop(process);
        drop(folder);
    }
}
