//! Reads the deletions that plugins kept while the agent was away.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::endpoint::Error;

/// The queue, locked against plugins.
#[derive(Debug)]
pub(super) struct Queue {
    directory: PathBuf,
    _lock: Flock<File>,
}

/// A kept deletion.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) text: Vec<u8>,
}

impl Queue {
    /// Locks the queue below `run_dir`, waiting for plugins that write to it.
    pub(super) async fn lock(run_dir: &Path) -> Result<Self, Error> {
        let directory = run_dir.join("deleteQueue");
        let path = directory.clone();
        // A plugin holds the lock for as long as it writes one file and tries one request.
        let locked = tokio::task::spawn_blocking(move || {
            fs::create_dir_all(&directory)?;
            let file =
                OpenOptions::new().create(true).append(true).open(directory.join("lockfile"))?;
            let lock = Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, cause)| io::Error::from(cause))?;
            Ok(Self { directory, _lock: lock })
        });
        let locked = locked.await.unwrap_or_else(|broken| Err(io::Error::other(broken)));
        locked.map_err(|cause| Error::File { operation: "lock", path, cause })
    }

    /// Everything that is kept.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, Error> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |cause| Error::File { operation, path, cause }
        };
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed("list", &self.directory))? {
            let path = entry.map_err(failed("list", &self.directory))?.path();
            if path.extension().is_some_and(|extension| extension == "delete") {
                let text = fs::read(&path).map_err(failed("read", &path))?;
                entries.push(Entry { path, text });
            }
        }
        Ok(entries)
    }
}

impl Entry {
    /// It has been carried out.
    pub(super) fn remove(&self) -> Result<(), Error> {
        let removed = fs::remove_file(&self.path);
        removed.map_err(|cause| Error::File { operation: "remove", path: self.path.clone(), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[tokio::test]
    async fn what_is_kept_is_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Queue::lock(dir.path()).await.unwrap().entries().unwrap().is_empty());
        std::fs::write(dir.path().join("deleteQueue/1.delete"), "{}").unwrap();
        std::fs::write(dir.path().join("deleteQueue/2.draft-9"), "half").unwrap();
        let queue = Queue::lock(dir.path()).await.unwrap();
        let entries = queue.entries().unwrap();
        assert_eq!((entries.len(), entries[0].text.as_slice()), (1, &b"{}"[..]));
        entries[0].remove().unwrap();
        assert!(queue.entries().unwrap().is_empty());
    }
}
