//! A child process that never outlives the test that started it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

/// A running child; killed when dropped, and by the kernel when the test process dies.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// Ends the thread that started the child: the kernel's parent-death signal goes by thread.
    _end_of_parent: mpsc::Sender<()>,
}

impl Process {
    pub(super) fn start(program: &Path, arguments: &[String], log: &Path) -> Self {
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
        Self { child, _end_of_parent: end_of_parent }
    }

    /// How the process ended, if it did.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
