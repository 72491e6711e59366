//! Decides how the cluster's namespaces are kept, and who is in them.
//!
//! A namespace lives as long as a file it is mounted on. All of them are in one private mount in
//! the cluster's folder, so nothing of the cluster shows elsewhere on the machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{command, output};
use crate::error::io;
use crate::place::{make_dir, write};
use crate::wait::{Look, until};
use crate::{Error, Layout};

/// How long processes may take to die.
const LIMIT: Duration = Duration::from_secs(15);

/// Prepares the folder for namespaces.
pub(crate) async fn prepare(layout: &Layout) -> Result<(), Error> {
    let pins = layout.pins();
    make_dir(&pins)?;
    // A mount namespace can only be kept in a mount that is private.
    let path = pins.display().to_string();
    output(&mut command("mount", ["--bind", &path, &path])).await?;
    output(&mut command("mount", ["--make-private", &path])).await.map(drop)
}

/// Makes a network namespace and keeps it at `path`.
pub(crate) async fn make_network(path: &Path) -> Result<(), Error> {
    write(path, "")?;
    let pin = format!("--net={}", path.display());
    output(&mut command("unshare", [pin.as_str(), "true"])).await.map(drop)
}

/// Every namespace that is kept in a folder.
pub(crate) fn kept(pins: &Path) -> Vec<PathBuf> {
    fs::read_dir(pins).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Ends every process in one of these namespaces, also what a user started there by other means than
/// ours: it would keep the namespace, and its devices, alive.
pub(crate) async fn end_holders(kept: &[PathBuf]) -> Result<(), Error> {
    until("end of the processes in the cluster's namespaces", LIMIT, || async {
        match holders(kept) {
            Ok(pids) if pids.is_empty() => Look::Done(Ok(())),
            Ok(pids) => {
                for &pid in &pids {
                    // One that is gone already is what we want.
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Look::Not(format!("still there: {pids:?}"))
            }
            Err(error) => Look::Done(Err(error)),
        }
    })
    .await?
}

fn holders(kept: &[PathBuf]) -> Result<BTreeSet<i32>, Error> {
    let kept: BTreeSet<_> = kept.iter().filter_map(|file| identity(file)).collect();
    let mut found = BTreeSet::new();
    let proc = Path::new("/proc");
    for entry in fs::read_dir(proc).map_err(io("read", proc))?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let kinds = ["net", "mnt", "uts", "pid"].map(|kind| entry.path().join("ns").join(kind));
        if kinds.iter().filter_map(|file| identity(file)).any(|id| kept.contains(&id)) {
            found.insert(pid);
        }
    }
    Ok(found)
}

/// What tells one namespace, or file, from another; none if it is gone.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::{holders, kept};

    #[test]
    fn finds_processes_by_their_namespaces() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(holders(&kept(dir.path())).expect("readable").is_empty());
        // A link stands for the mount that only root could make.
        std::os::unix::fs::symlink("/proc/self/ns/net", dir.path().join("n1-net")).expect("link");
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(holders(&kept(dir.path())).expect("readable").contains(&own));
    }
}
