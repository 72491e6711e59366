//! Makes the unix sockets on which the agent serves, and decides who may use them: their owner, and the group
//! `cilium` where there is one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Owner and group may connect.
const MODE: u32 = 0o660;
/// The sockets' group, where there is one of this name.
const GROUP: &str = "cilium";

/// Why a socket can't be served.
#[derive(Debug, thiserror::Error)]
#[error("serve {}: {cause}", path.display())]
pub struct Error {
    /// The socket.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: std::io::Error,
}

/// The socket at `path`; one that a former agent left is replaced.
pub fn bind(path: &Path) -> Result<UnixListener, Error> {
    let failed = |cause| Error { path: path.to_owned(), cause };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE)).map_err(failed)?;
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    if let Some(group) = group(&groups)
        && let Err(error) = std::os::unix::fs::chown(path, None, Some(group))
    {
        tracing::warn!(%error, path = %path.display(), "the group {GROUP} can't be given the socket");
    }
    Ok(listener)
}

/// The number of the sockets' group in the lines of group(5), if there is such a group.
fn group(lines: &str) -> Option<u32> {
    let mut groups = lines.lines().map(|line| line.split(':'));
    groups.find_map(|mut group| (group.next()? == GROUP).then(|| group.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::group;

    #[test]
    fn the_group_is_found_by_name() {
        let lines = "root:x:0:\nciliums:x:9:\ncilium:x:1234:me,you\n";
        assert_eq!(group(lines), Some(1234));
        assert_eq!(group("root:x:0:\ncilium:x\ncilium\n"), None);
    }
}
