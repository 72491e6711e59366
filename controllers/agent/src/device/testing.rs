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

/// Runs a test in a fresh network and mount namespace with loopback, on a runtime of two threads.
pub(crate) fn in_private_node<F, W>(work: W)
where
    W: FnOnce() -> F + Send,
    F: Future<Output = ()>,
{
    use nix::mount::{MsFlags, mount};
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
                .expect("tests of devices run as root");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            // Threads of the runtime are children of this one, and so live in its namespaces.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let netlink = super::Netlink::connect().unwrap();
                let loopback = netlink.need_link("lo").await.unwrap();
                netlink.set_up(&loopback, loopback.mtu, true).await.unwrap();
                add_uplink(&netlink).await;
                work().await;
            });
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A device with the address 192.0.2.1 and a default route, as nodes have one.
async fn add_uplink(netlink: &super::Netlink) {
    use super::netlink::End;
    use netlink_packet_route::address::AddressScope;
    let end = |name| End { name, mac: super::name::Mac::random(), netns: None };
    netlink.add_veth(end("eth0"), end("wire"), 1500).await.unwrap();
    for name in ["eth0", "wire"] {
        let link = netlink.need_link(name).await.unwrap();
        netlink.set_up(&link, 1500, true).await.unwrap();
    }
    let link = netlink.need_link("eth0").await.unwrap();
    let address = "192.0.2.1/24".parse().unwrap();
    netlink.add_address(&link, address, AddressScope::Universe).await.unwrap();
    let gateway = "192.0.2.254".parse().unwrap();
    let route = super::Route::direct("0.0.0.0/0".parse().unwrap(), link.index).via(gateway);
    netlink.set_route(&route).await.unwrap();
}
