//! Decides in which namespaces and cgroup a program of the cluster runs.
//!
//! The program enters its cgroup before it is executed, so there is no moment in which a crash
//! of ours would leave it unaccounted for.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::Error;
use crate::cgroup::Cgroups;
use crate::command::{command, output_with_input};
use crate::error::io;

/// Enters the cgroups named in `$1` (separated by spaces), then becomes the rest.
const ENTER: &str = r#"for f in $1; do echo $$ >"$f" || exit 1; done; shift; exec "$@""#;

/// Where programs run: on a node, or beside the nodes.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file that keeps the network namespace.
    pub net: PathBuf,
    /// The file that keeps the mount namespace, if it is not the machine's.
    pub mount: Option<PathBuf>,
    /// The file that keeps the namespace of the host's name, if it is not the machine's.
    pub uts: Option<PathBuf>,
    /// The file that keeps the process namespace, if it is not the machine's.
    pub pid: Option<PathBuf>,
    /// The cgroup below which each program gets its own.
    pub cgroup: String,
}

impl Place {
    /// The words that run `words` here, in cgroup `unit` below the place's.
    pub fn words(
        &self,
        cgroups: &Cgroups,
        unit: &str,
        words: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Vec<String>, Error> {
        let cgroup = format!("{}/{unit}", self.cgroup);
        cgroups.create(&cgroup)?;
        let entrances = cgroups.entrances(&cgroup);
        let entrances: Vec<_> = entrances.iter().map(|path| path.display().to_string()).collect();
        let mut all = vec!["sh".to_owned(), "-c".to_owned(), ENTER.to_owned(), "sh".to_owned()];
        all.push(entrances.join(" "));
        all.extend(self.enter());
        all.extend(words.into_iter().map(Into::into));
        Ok(all)
    }

    /// A command that runs here and ends with its caller; for short work, outside any cgroup.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let enter = self.enter();
        command(&enter[0], enter[1..].iter().map(String::as_str).chain(words.iter().copied()))
    }

    /// Runs several `ip` commands at once here.
    pub(crate) async fn ip(&self, lines: &str) -> Result<(), Error> {
        output_with_input(&mut self.command(&["ip", "-batch", "-"]), lines).await.map(drop)
    }

    /// Starts a daemon here; its output goes to `log`.
    pub fn start(
        &self,
        cgroups: &Cgroups,
        daemon: &str,
        words: Vec<String>,
        log: &Path,
    ) -> Result<(), Error> {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.map_err(io("open", log))?;
        let errors = file.try_clone().map_err(io("open", log))?;
        let words = self.words(cgroups, daemon, words)?;
        // A session of its own: neither Ctrl-C nor the end of the terminal is for the daemon.
        let spawned =
            command("setsid", &words).kill_on_drop(false).stdout(file).stderr(errors).spawn();
        spawned.map(drop).map_err(|error| Error::Command {
            command: words.join(" "),
            status: "not started".to_owned(),
            output: error.to_string(),
        })
    }

    /// The processes of a daemon.
    pub fn pids(&self, cgroups: &Cgroups, daemon: &str) -> Vec<i32> {
        cgroups.members(&format!("{}/{daemon}", self.cgroup)).into_iter().collect()
    }

    /// Ends a daemon at once, with everything it started.
    pub async fn stop(&self, cgroups: &Cgroups, daemon: &str) -> Result<(), Error> {
        cgroups.kill(&format!("{}/{daemon}", self.cgroup)).await
    }

    fn enter(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--net={}", self.net.display())];
        words.extend(self.mount.iter().map(|mount| format!("--mount={}", mount.display())));
        words.extend(self.uts.iter().map(|uts| format!("--uts={}", uts.display())));
        words.extend(self.pid.iter().map(|pid| format!("--pid={}", pid.display())));
        words.push("--".to_owned());
        words
    }
}

/// Makes a folder and all above it.
pub(crate) fn make_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(io("create", path))
}

/// Writes a file, making the folder it is in.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    fs::write(path, content).map_err(io("write", path))
}
