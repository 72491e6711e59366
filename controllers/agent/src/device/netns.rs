//! Work inside another network namespace.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};

use super::{Error, Netlink};

/// Where the node's network namespaces are, as the agent's container sees them.
const MOUNTED: &str = "/var/run/cilium/netns";

/// A network namespace, kept open.
#[derive(Debug, Clone)]
pub struct Netns {
    path: PathBuf,
    file: Arc<File>,
}

impl Netns {
    /// Opens the namespace that the runtime calls `path`; where the agent does not see it there,
    /// it looks below its own mount of the node's namespaces.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = match File::open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => path
                .file_name()
                .and_then(|name| File::open(Path::new(MOUNTED).join(name)).ok())
                .ok_or(cause),
            opened => opened,
        };
        let failed = |cause| Error::Netns { path: path.to_owned(), cause };
        let file = file.map_err(failed)?;
        let own = std::fs::metadata("/proc/thread-self/ns/net").map_err(failed)?;
        let other = file.metadata().map_err(failed)?;
        if (own.dev(), own.ino()) == (other.dev(), other.ino()) {
            return Err(failed(io::Error::other("it is the node's own")));
        }
        Ok(Self { path: path.to_owned(), file: Arc::new(file) })
    }

    /// The open file, to hand devices over.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` on a thread of its own inside the namespace.
    ///
    /// A thread that has changed its namespace must serve nothing else, so it ends with the work.
    pub async fn run<T, W, F>(&self, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: FnOnce(Netlink) -> F + Send + 'static,
        F: Future<Output = Result<T, Error>>,
    {
        let (done, outcome) = tokio::sync::oneshot::channel();
        let netns = self.clone();
        let inside = move || {
            let failed = |cause| Error::Netns { path: netns.path.clone(), cause };
            setns(&*netns.file, CloneFlags::CLONE_NEWNET).map_err(|cause| failed(cause.into()))?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(failed)?;
            runtime.block_on(async { work(Netlink::connect()?).await })
        };
        let failed = |cause| Error::Netns { path: self.path.clone(), cause };
        std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn(move || done.send(inside()))
            .map_err(failed)?;
        outcome.await.unwrap_or_else(|_| Err(failed(io::Error::other("the work inside broke off"))))
    }
}
