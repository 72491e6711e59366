//! Frames as they are on a wire.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::cluster::LIMIT;
use crate::namespace::Namespace;

/// Every frame that any device of a namespace sends or receives.
pub(crate) struct Capture {
    socket: OwnedFd,
}

impl Capture {
    pub(crate) fn start(netns: &Namespace) -> Self {
        let socket = netns.run(|| {
            socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::empty(),
                Some(SockProtocol::EthAll),
            )
            .unwrap()
        });
        setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(100)).unwrap();
        Self { socket }
    }

    /// The first frame for which `pick` has something, within the limit.
    pub(crate) fn find<T>(&self, pick: impl Fn(&[u8]) -> Option<T>) -> T {
        self.within(LIMIT, pick).unwrap_or_else(|| panic!("no such frame within {LIMIT:?}"))
    }

    /// As [`Self::find`], for as long as is said.
    pub(crate) fn within<T>(
        &self,
        limit: Duration,
        pick: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + limit;
        let mut buffer = vec![0; 70_000];
        while Instant::now() < end {
            if let Ok(count) = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())
                && let Some(found) = pick(&buffer[..count])
            {
                return Some(found);
            }
        }
        None
    }
}

/// The number and the inner frame of a VXLAN frame over IPv4.
pub(crate) fn vxlan(frame: &[u8]) -> Option<(u32, &[u8])> {
    const INNER: usize = 14 + 20 + 8 + 8;
    let port = frame.get(36..38)?;
    if frame[12..14] != [8, 0] || frame[23] != 17 || port != 8472u16.to_be_bytes() {
        return None;
    }
    let number = frame.get(46..50)?;
    Some((u32::from_be_bytes([0, number[0], number[1], number[2]]), &frame[INNER..]))
}
