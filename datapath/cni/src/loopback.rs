//! Decides the answers of the plugin `loopback`, which container runtimes call before any other.
//!
//! This program is installed under that name, too, where the node has no such plugin: the pod's `lo`
//! is brought up without the agent.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use serde_json::json;

use crate::environment::{Environment, Verb};
use crate::error::Error;
use crate::netconf::NetConf;
use crate::result;

/// The kernel gives `lo` this number in each network namespace.
const LO: i32 = 1;
/// `RTM_NEWLINK`, as a request that wants to be acknowledged, to set `IFF_UP`.
const NEWLINK: u16 = 16;
const REQUEST_ACK: u16 = 0x5;
const UP: u32 = 0x1;
const MESSAGE: usize = 32;
/// Where an acknowledgement has its errno: after the header.
const ERRNO: std::ops::Range<usize> = 16..20;

/// Whether the program is called as `loopback`.
pub(crate) fn is_name_of(program: Option<&OsStr>) -> bool {
    program.is_some_and(|path| Path::new(path).file_name() == Some(OsStr::new("loopback")))
}

/// Carries out every verb but VERSION.
pub(crate) fn perform(
    environment: &Environment,
    verb: Verb,
    config: &NetConf,
) -> Result<Option<String>, Error> {
    if !matches!(verb, Verb::Add | Verb::Check) {
        // `lo` goes with its namespace.
        return Ok(None);
    }
    let netns = environment.attachment(verb)?.netns;
    let failed = |operation| {
        let object = netns.clone();
        move |cause: Errno| Error::Io { operation, object, cause: cause.desc().to_owned() }
    };
    let file = File::open(&netns).map_err(|cause| Error::io("open", &netns, &cause))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(failed("enter network namespace"))?;
    set_up().map_err(failed("set up lo in network namespace"))?;
    let answer = json!({
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": netns}],
        "ips": [{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}],
    });
    Ok((verb == Verb::Add).then(|| result::convert(&answer, config.version).to_string()))
}

/// Sets up `lo` of the network namespace in which this thread is.
fn set_up() -> Result<(), Errno> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    send(netlink.as_raw_fd(), &request(), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let errno = answer[..length].get(ERRNO).and_then(|bytes| bytes.try_into().ok());
    match errno.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(negative) => Err(Errno::from_raw(-negative)),
        None => Err(Errno::EBADMSG),
    }
}

/// A header (length, type, flags, sequence, port) and an `ifinfomsg` (family, type, index, flags, mask).
fn request() -> Vec<u8> {
    let length = u32::try_from(MESSAGE).unwrap_or_default();
    let mut message = Vec::with_capacity(MESSAGE);
    message.extend(length.to_ne_bytes());
    message.extend(NEWLINK.to_ne_bytes());
    message.extend(REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(LO.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::net::TcpListener;

    use nix::sched::{CloneFlags, unshare};
    use nix::unistd::Uid;

    use super::{MESSAGE, is_name_of, perform, request, set_up};
    use crate::environment::{Environment, Verb};
    use crate::netconf::NetConf;

    #[test]
    fn goes_by_the_programs_name() {
        for (program, wanted) in [
            ("/opt/cni/bin/loopback", true),
            ("loopback", true),
            ("/opt/loopback/cilium-cni", false),
        ] {
            assert_eq!(is_name_of(Some(OsStr::new(program))), wanted, "{program}");
        }
        assert!(!is_name_of(None));
    }

    #[test]
    fn the_request_is_as_long_as_it_says() {
        assert_eq!(request().len(), MESSAGE);
        assert_eq!(request()[..4], 32u32.to_ne_bytes());
    }

    #[test]
    fn brings_lo_up() {
        if !Uid::effective().is_root() {
            return;
        }
        // Threads have namespaces of their own.
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            assert!(connect().is_err(), "lo is down at first");
            set_up().expect("lo up");
            connect().expect("a connection over lo");
        });
        thread.join().expect("the thread");
    }

    fn connect() -> std::io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        std::net::TcpStream::connect(listener.local_addr()?).map(drop)
    }

    #[test]
    fn what_goes_with_the_namespace_needs_nothing() {
        let config = NetConf::parse(
            br#"{"cniVersion": "1.1.0", "name": "cni-loopback", "type": "loopback"}"#,
        )
        .expect("configuration");
        for verb in [Verb::Del, Verb::Gc, Verb::Status] {
            let done = perform(&Environment::default(), verb, &config).expect("success");
            assert_eq!(done, None, "{verb:?}");
        }
        perform(&Environment::default(), Verb::Add, &config).expect_err("ADD needs a namespace");
    }
}
