//! Decides what was on the wire between nodes: each packet in the tunnel with its VNI.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::inside;
use crate::{Error, Node};

const TUNNEL_PORT: u16 = 8472;
const ETHERNET: usize = 14;
const UDP: usize = 8;
const VXLAN: usize = 8;
const POLL_MS: i64 = 50;

/// A packet in the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encapsulated {
    /// The virtual network: the sender's identity.
    pub vni: u32,
    /// The inner sender.
    pub source: IpAddr,
    /// The inner receiver.
    pub destination: IpAddr,
}

/// Listens on a node's devices.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    done: tokio::sync::oneshot::Receiver<Vec<Encapsulated>>,
}

impl Capture {
    /// Starts to listen; everything from now on is caught.
    pub async fn start(node: &Node) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, done) = tokio::sync::oneshot::channel();
        let stopped = stop.clone();
        let opened = inside::path(node.place.net.clone(), open).await?;
        let socket = opened.map_err(|errno| {
            Error::Invalid(format!("cannot listen on the wire of {}: {errno}", node.name()))
        })?;
        std::thread::spawn(move || {
            // Nobody asks if the test has given up.
            drop(sender.send(listen(&socket, &stopped)));
        });
        Ok(Self { stop, done })
    }

    /// Stops, and tells what was in the tunnel.
    pub async fn finish(self) -> Vec<Encapsulated> {
        self.stop.store(true, Ordering::Relaxed);
        self.done.await.unwrap_or_default()
    }
}

fn open() -> nix::Result<OwnedFd> {
    let all = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(POLL_MS))?;
    setsockopt(&socket, sockopt::RcvBuf, &(8 << 20))?;
    Ok(socket)
}

fn listen(socket: &OwnedFd, stop: &AtomicBool) -> Vec<Encapsulated> {
    let mut caught = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(size) => caught.extend(parse(&buffer[..size])),
            // Only when nothing is left to read: what was sent before the stop is wanted.
            Err(_) if stop.load(Ordering::Relaxed) => return caught,
            Err(_) => {}
        }
    }
}

fn parse(frame: &[u8]) -> Option<Encapsulated> {
    let (protocol, _, _, payload) = packet(frame)?;
    if protocol != 17 || port(payload.get(2..4)?) != TUNNEL_PORT {
        return None;
    }
    let vxlan = payload.get(UDP..UDP + VXLAN)?;
    let vni = u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]);
    let (_, source, destination, _) = packet(payload.get(UDP + VXLAN..)?)?;
    Some(Encapsulated { vni, source, destination })
}

/// Protocol, source, destination and payload of an Ethernet frame with an IP packet.
fn packet(frame: &[u8]) -> Option<(u8, IpAddr, IpAddr, &[u8])> {
    let ip = frame.get(ETHERNET..)?;
    match port(frame.get(12..14)?) {
        0x0800 => {
            let address = |at: usize| -> Option<IpAddr> {
                Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?))
            };
            let header = usize::from(ip.first()? & 0xf) * 4;
            Some((*ip.get(9)?, address(12)?, address(16)?, ip.get(header..)?))
        }
        0x86dd => {
            let address = |at: usize| -> Option<IpAddr> {
                Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?))
            };
            Some((*ip.get(6)?, address(8)?, address(24)?, ip.get(40..)?))
        }
        _ => None,
    }
}

fn port(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u16::from(byte))
}

#[cfg(test)]
mod tests {
    use super::{Encapsulated, parse};

    #[test]
    fn reads_the_tunnel() {
        let mut inner = [vec![0; 12], vec![0x08, 0x00, 0x45], vec![0; 19]].concat();
        inner[14 + 12..14 + 16].copy_from_slice(&[10, 0, 0, 1]);
        inner[14 + 16..14 + 20].copy_from_slice(&[10, 0, 1, 2]);
        let mut outer = [vec![0; 12], vec![0x86, 0xdd, 0x60], vec![0; 39]].concat();
        outer[14 + 6] = 17;
        let udp = [0xaa, 0xbb, 0x21, 0x18, 0, 0, 0, 0];
        let vxlan = [8, 0, 0, 0, 0x01, 0x02, 0x03, 0];
        let frame = [outer, udp.to_vec(), vxlan.to_vec(), inner].concat();
        let want = Encapsulated {
            vni: 0x01_02_03,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 1, 2].into(),
        };
        assert_eq!(parse(&frame), Some(want));
        assert_eq!(parse(&frame[..frame.len() - 1]), None, "cut short");
    }
}
