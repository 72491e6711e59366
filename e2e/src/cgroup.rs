//! Decides where a cluster's processes are counted, and finds and ends them there.
//!
//! Every daemon enters its cgroup before it runs, and everything it starts stays below, so
//! membership is the one truth about what belongs to a cluster: it survives any crash of ours.
//! Works with cgroup v2 alone, v1, and v1 with v2 beside it; nothing else differs between them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Error;
use crate::error::io;
use crate::wait::{Look, until};

/// How long processes may take to die, or a cgroup to become removable.
const LIMIT: Duration = Duration::from_secs(15);

/// The cgroup hierarchies of this machine.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    v2: bool,
    cpuset: bool,
}

impl Cgroups {
    /// The hierarchies mounted below `/sys/fs/cgroup`.
    pub fn detect() -> Result<Self, Error> {
        let path = Path::new("/proc/self/mountinfo");
        let table = fs::read_to_string(path).map_err(io("read", path))?;
        let hierarchies = parse(&table);
        if hierarchies.is_empty() {
            return Err(Error::Missing {
                what: "a cgroup hierarchy below /sys/fs/cgroup".to_owned(),
                remedy: "mount cgroup2 there".to_owned(),
            });
        }
        Ok(Self { hierarchies })
    }

    /// The folder of `path` in the v2 hierarchy, where programs can be attached.
    pub fn unified(&self, path: &str) -> Option<PathBuf> {
        self.hierarchies.iter().find(|h| h.v2).map(|h| h.mount.join(path))
    }

    /// Makes `path` in every hierarchy, with all controllers usable in it.
    pub fn create(&self, path: &str) -> Result<(), Error> {
        for hierarchy in &self.hierarchies {
            hierarchy.create(path)?;
        }
        Ok(())
    }

    /// The files to which a process writes its pid to enter `path`.
    pub fn entrances(&self, path: &str) -> Vec<PathBuf> {
        self.hierarchies.iter().map(|h| h.mount.join(path).join("cgroup.procs")).collect()
    }

    /// Every process at or below `path`, in any hierarchy.
    pub fn members(&self, path: &str) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for dir in tree(&hierarchy.mount.join(path)) {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        // 0 stands for a process of another pid namespace: not ours to touch.
        pids.remove(&0);
        pids
    }

    /// Ends every process at or below `path`, and waits until they are gone.
    pub async fn kill(&self, path: &str) -> Result<(), Error> {
        let mut first = true;
        until(&format!("end of the processes in {path}"), LIMIT, || {
            let members = self.members(path);
            // A wrapper ends after what it wraps, if it is let: then nobody is orphaned, to be
            // waited for by a process 1 that may be in no hurry.
            let gentle = std::mem::take(&mut first);
            for &pid in members.iter().filter(|&&pid| !(gentle && wraps(pid))) {
                // One that is gone already is what we want.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let look = if members.is_empty() {
                Look::Done(())
            } else {
                Look::Not(format!("still there: {members:?}"))
            };
            async move { look }
        })
        .await
    }

    /// Removes `path` and all below it from every hierarchy; it must be empty of processes.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        until(&format!("removal of cgroup {path}"), LIMIT, || {
            let mut left = None;
            for hierarchy in &self.hierarchies {
                let mut dirs = tree(&hierarchy.mount.join(path));
                dirs.reverse();
                for dir in dirs {
                    if let Err(error) = fs::remove_dir(&dir) {
                        left = Some(format!("{}: {error}", dir.display()));
                    }
                }
            }
            async move { left.map_or(Look::Done(()), Look::Not) }
        })
        .await
    }
}

impl Hierarchy {
    fn create(&self, path: &str) -> Result<(), Error> {
        let mut parent = self.mount.clone();
        for part in path.split('/') {
            let dir = parent.join(part);
            if self.v2 {
                delegate(&parent);
            }
            if !dir.is_dir() {
                fs::create_dir(&dir).map_err(io("create", &dir))?;
            }
            if self.cpuset {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    copy_if_empty(&parent.join(file), &dir.join(file))?;
                }
            }
            parent = dir;
        }
        Ok(())
    }
}

/// Lets children of `dir` use every controller it has; some cannot be passed on, and kubelet
/// complains better than we could about one it needs.
fn delegate(dir: &Path) {
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        drop(fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}")));
    }
}

/// Whether a process only waits for one that it has put into other namespaces.
fn wraps(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| matches!(name.trim(), "nsenter" | "unshare"))
}

/// A v1 cpuset takes no process until its cpus and memory nodes are set.
fn copy_if_empty(from: &Path, to: &Path) -> Result<(), Error> {
    let now = fs::read_to_string(to).map_err(io("read", to))?;
    if now.trim().is_empty() {
        let value = fs::read_to_string(from).map_err(io("read", from))?;
        fs::write(to, value.trim()).map_err(io("write", to))?;
    }
    Ok(())
}

/// `dir` and every folder below it, parents first; empty if it is not there.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if dir.is_dir() {
        found.push(dir.to_owned());
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(tree(&entry.path()));
            }
        }
    }
    found
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next().unwrap_or_default(), left.next().unwrap_or_default());
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let hierarchy = Hierarchy {
            mount: PathBuf::from(mount),
            v2: kind == "cgroup2",
            cpuset: kind == "cgroup" && options.split(',').any(|option| option == "cpuset"),
        };
        let ours = kind.starts_with("cgroup") && root == "/" && mount.starts_with("/sys/fs/cgroup");
        if ours && !found.contains(&hierarchy) {
            found.push(hierarchy);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::parse;

    const V1: &str = "\
25 1 0:23 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:24 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
27 25 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
28 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 25 0:26 /n1 /run/cilium/cgroupv2 rw - cgroup2 cgroup2 rw";
    const V2: &str = "30 1 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn finds_the_hierarchies() {
        let show = |table| -> Vec<(String, bool, bool)> {
            let all = parse(table).into_iter();
            all.map(|h| (h.mount.display().to_string(), h.v2, h.cpuset)).collect()
        };
        let at = |path: &str| format!("/sys/fs/cgroup{path}");
        assert_eq!(
            show(V1),
            [
                (at("/cpuset"), false, true),
                (at("/pids"), false, false),
                (at("/unified"), true, false)
            ]
        );
        assert_eq!(show(V2), [(at(""), true, false)]);
    }
}
