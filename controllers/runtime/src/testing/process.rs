//! A child process that never outlives the test that started it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::eventually_for;

/// A running child; killed when dropped, and by the kernel when the test process dies.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Ends the thread that started the child: the kernel's parent-death signal goes by thread.
    _end_of_parent: mpsc::Sender<()>,
}

impl Process {
    /// Starts `program`; what it prints goes to the file `log`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(program: &Path, arguments: &[String], log: &Path) -> Self {
        let output = File::create(log).expect("create a log file");
        let errors = output.try_clone().expect("share a log file");
        // setpriv(1) asks the kernel for the signal, which takes an unsafe call to do in-process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let (started, child) = mpsc::channel();
        let (end_of_parent, wait) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _ = started.send(command.spawn());
            let _ = wait.recv();
        });
        let child = child.recv().expect("start a thread").unwrap_or_else(|error| {
            panic!("start {} by setpriv (of util-linux): {error}", program.display())
        });
        Self { child, log: log.into(), _end_of_parent: end_of_parent }
    }

    /// How the process ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    pub async fn end_within(&mut self, limit: Duration) -> ExitStatus {
        eventually_for(limit, || std::future::ready(self.ended().ok_or("still running"))).await
    }

    /// Sends the process a signal.
    ///
    /// # Panics
    /// If there is no such process any more.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid is an i32"));
        kill(pid, signal).expect("signal a child");
    }

    /// What the process has printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
