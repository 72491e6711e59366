//! Keeps deletions for an agent that is away: one file each, which it drains when it starts.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// More deletions than this are not kept: the runtime has to come again.
const MAX_ENTRIES: usize = 256;

/// A kept deletion; held under the shared lock until dropped, so that no agent drains it meanwhile.
#[derive(Debug)]
pub(crate) struct Entry {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Entry {
    /// Writes `request` into the queue below `run_dir`.
    pub(crate) fn write(run_dir: &Path, request: &[u8]) -> Result<Self, Error> {
        let queue = run_dir.join("deleteQueue");
        let failed = |operation: &'static str, path: &Path| {
            let object = path.display().to_string();
            move |cause: std::io::Error| Error::io(operation, object, &cause)
        };
        fs::create_dir_all(&queue).map_err(failed("create", &queue))?;
        let lockfile = queue.join("lockfile");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o644)
            .open(&lockfile)
            .map_err(failed("open", &lockfile))?;
        let lock = Flock::lock(file, FlockArg::LockShared)
            .map_err(|(_, cause)| failed("lock", &lockfile)(cause.into()))?;
        let path = queue.join(format!("{}.delete", hex(&Sha256::digest(request))));
        let entries = fs::read_dir(&queue).map_err(failed("list", &queue))?;
        let kept = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "delete"));
        if kept.count() >= MAX_ENTRIES && !path.exists() {
            let cause = std::io::Error::other(format!("already holds {MAX_ENTRIES} deletions"));
            return Err(failed("add to", &queue)(cause));
        }
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let write = || {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(request)?;
            fs::rename(&draft, &path)
        };
        write().map_err(failed("write", &path))?;
        Ok(Self { path, _lock: lock })
    }

    /// Takes the deletion back: the agent has carried it out after all.
    pub(crate) fn withdraw(self) {
        // Left behind, it is carried out again, which does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
