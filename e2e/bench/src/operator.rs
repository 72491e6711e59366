//! Starts an operator as a child process and reads what it costs from `/proc`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A running operator; killed when dropped.
pub(crate) struct Operator {
    child: Child,
    ticks_per_second: f64,
}

impl Operator {
    /// Starts `command` with `kubeconfig` in place of each `{kubeconfig}`; its output goes to `log`.
    pub(crate) fn start(command: &[String], kubeconfig: &Path, log: &Path) -> Result<Self> {
        let kubeconfig = kubeconfig.to_str().context("the kubeconfig's path is not UTF-8")?;
        let command: Vec<String> =
            command.iter().map(|word| word.replace("{kubeconfig}", kubeconfig)).collect();
        let (program, arguments) = command.split_first().context("no operator command given")?;
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
        // Ticks are 100 or 1000: exact in an f64.
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let ticks_per_second = ticks as f64;
        Ok(Self { child, ticks_per_second })
    }

    /// CPU seconds used so far, user and system.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The command's name is in brackets and may hold blanks; fields count from behind it.
        let fields = stat.rsplit_once(')').context("no ')' in /proc/PID/stat")?.1;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        ensure!(fields.len() > 12, "/proc/PID/stat has {} fields", fields.len());
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / self.ticks_per_second)
    }

    /// Resident memory in MiB: `VmRSS` now, `VmHWM` at its highest.
    pub(crate) fn memory_mib(&self, field: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(field));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kib.with_context(|| format!("no {field} in /proc/PID/status"))?.parse::<f64>()? / 1024.0)
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Fails when it has ended already, which is what we want.
        let _ = self.kill();
    }
}
