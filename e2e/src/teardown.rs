//! Decides what belongs to a cluster, from its name alone, and removes it.
//!
//! The order: processes, so that nobody makes anything new; mounts and namespaces, with which go
//! the pods' mounts, devices and pins; the machine's end of the cable; cgroups; files. Each step
//! finds what is really there, so a half-built or half-removed cluster is no special case.

use std::fs;
use std::path::Path;

use crate::Error;
use crate::cgroup::Cgroups;
use crate::command::{command, output};
use crate::error::io;
use crate::layout::{Layout, STATE_ROOT};
use crate::node::remove as remove_path;
use crate::pins;

/// Removes all of the cluster; says whether there was anything.
pub(crate) async fn remove(layout: &Layout, cgroups: &Cgroups) -> Result<bool, Error> {
    let state = layout.state();
    let cgroup = layout.cgroup();
    let found = state.exists() || !cgroups.members(&cgroup).is_empty();
    cgroups.kill(&cgroup).await?;
    pins::end_holders(&pins::kept(&layout.pins())).await?;
    unmount(&state).await?;
    let device = layout.host_device();
    if Path::new("/sys/class/net").join(&device).exists() {
        // The namespace at its other end may take it away in the meantime.
        drop(output(&mut command("ip", ["link", "del", &device])).await);
    }
    cgroups.remove(&cgroup).await?;
    remove_path(&state)?;
    // The last cluster takes the common folder with it.
    drop(fs::remove_dir(STATE_ROOT));
    Ok(found)
}

/// Unmounts everything at or below a folder or file, the last mounted first.
pub(crate) async fn unmount(state: &Path) -> Result<(), Error> {
    let path = Path::new("/proc/self/mountinfo");
    let table = fs::read_to_string(path).map_err(io("read", path))?;
    for target in below(&table, &state.display().to_string()) {
        output(&mut command("umount", [target])).await?;
    }
    Ok(())
}

fn below<'a>(mountinfo: &'a str, folder: &str) -> Vec<&'a str> {
    let targets = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let mut found: Vec<_> = targets
        .filter(|target| {
            target.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn unmounts_only_what_is_below() {
        let table = "\
1 0 8:1 / / rw - ext4 /dev/vda rw
2 1 8:1 /x /state/a/pins rw - ext4 /dev/vda rw
3 2 0:4 mnt:[1] /state/a/pins/n1 rw - nsfs nsfs rw
4 1 8:1 /x /state/ab/pins rw - ext4 /dev/vda rw";
        assert_eq!(below(table, "/state/a"), ["/state/a/pins/n1", "/state/a/pins"]);
    }
}
