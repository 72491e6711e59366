//! Network namespaces for tests: each lives as long as the thread that made it.

use std::future::Future;
use std::path::PathBuf;

use nix::sched::{CloneFlags, unshare};

/// Runs a test as root of a fresh network namespace, which is gone afterwards.
pub(crate) fn in_new_netns<F, W>(work: W)
where
    W: FnOnce() -> F + Send,
    F: Future<Output = ()>,
{
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of devices run as root");
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work());
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Another network namespace, such as a pod's; gone when dropped.
pub(crate) struct PodNetns {
    /// A path that leads to it.
    pub(crate) path: PathBuf,
    _end: std::sync::mpsc::Sender<()>,
}

impl PodNetns {
    pub(crate) fn new() -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of devices run as root");
            let path =
                format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
            tell.send(PathBuf::from(path)).unwrap();
            // Ends with an error once the other side is dropped.
            let _ = ended.recv();
        });
        Self { path: told.recv().unwrap(), _end: end }
    }
}
