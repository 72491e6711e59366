//! Decides how a test does something in a pod's network: on a thread that has entered it.

use std::fs::File;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};

use crate::Error;
use crate::error::io;

/// Runs `work` in the network namespace of process `pid`, on a thread of its own.
///
/// Sockets made there stay there, whoever uses them afterwards.
pub async fn process<T, F>(pid: i32, work: F) -> Result<T, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    path(PathBuf::from(format!("/proc/{pid}/ns/net")), work).await
}

/// Runs `work` in the network namespace kept at `path`, on a thread of its own.
pub async fn path<T, F>(path: PathBuf, work: F) -> Result<T, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // Never a thread of the runtime: it would stay in the namespace.
    std::thread::spawn(move || {
        let entered = enter(&path).map(|()| work());
        // Nobody listens any more if the test has given up.
        drop(sender.send(entered));
    });
    receiver.await.unwrap_or_else(|_| Err(Error::Invalid("a thread in a pod panicked".to_owned())))
}

fn enter(path: &PathBuf) -> Result<(), Error> {
    let file = File::open(path).map_err(io("open", path))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| io("enter", path)(errno.into()))
}
