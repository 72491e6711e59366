//! Decides what it means that one pod reaches another: a request comes back unchanged.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use super::pods::Pod;
use crate::Error;
use crate::command::{command, output};

/// How long an answer may take; a lost handshake packet is sent again after one second.
pub const PATIENCE: Duration = Duration::from_secs(4);
/// The largest datagram that IPv4 and IPv6 both carry.
pub const LARGEST_DATAGRAM: usize = 65_000;
/// A payload that takes many packets.
pub const LARGE: usize = 64 * 1024;
const SMALL: usize = 32;
/// Bytes that a socket for datagrams holds until its thread gets to run: six seconds of a datagram each 2 ms
/// and 1,280 bytes of memory for each, from four senders. Else a busy machine loses what the network did not.
const ROOM: usize = 16 << 20;

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// A datagram, in fragments if it is large.
    Udp,
    /// An echo request, in fragments if it is large.
    Icmp,
}

/// All of them.
pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp];

/// Opens echo servers for TCP and UDP in the pod's network, on `port` of both families.
///
/// They serve as long as the test runs, or the pod is there.
pub async fn serve(pod: &Pod, port: u16) -> Result<(), Error> {
    let opened = pod.run(move || -> io::Result<()> {
        let any = SocketAddr::from(([0u16; 8], port));
        let listener = TcpListener::bind(any)?;
        let socket = UdpSocket::bind(any)?;
        make_room(&socket)?;
        std::thread::spawn(move || echo_connections(&listener));
        std::thread::spawn(move || echo_datagrams(&socket));
        Ok(())
    });
    opened.await?.map_err(|error| Error::Invalid(format!("cannot serve in {}: {error}", pod.name)))
}

/// Lets a socket hold what arrives while its thread does not run.
pub(super) fn make_room(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::RcvBufForce, &ROOM)?)
}

fn echo_connections(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let (mut reader, mut writer) = (&stream, &stream);
            // A peer that goes away ends the copy.
            drop(io::copy(&mut reader, &mut writer));
        });
    }
}

fn echo_datagrams(socket: &UdpSocket) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok((size, peer)) = socket.recv_from(&mut buffer) {
        // A datagram that cannot be sent is one that is lost.
        drop(socket.send_to(&buffer[..size], peer));
    }
}

/// Sends a payload from `pod` to `peer` and checks that it comes back.
pub async fn reaches(
    pod: &Pod,
    peer: IpAddr,
    port: u16,
    protocol: Protocol,
    large: bool,
) -> Result<(), String> {
    let to = SocketAddr::new(peer, port);
    let done = match protocol {
        Protocol::Tcp => {
            let size = if large { LARGE } else { SMALL };
            pod.run(move || tcp(to, size)).await.map_err(|error| error.to_string())?
        }
        Protocol::Udp => {
            let size = if large { LARGEST_DATAGRAM } else { SMALL };
            pod.run(move || udp(to, size)).await.map_err(|error| error.to_string())?
        }
        Protocol::Icmp => {
            let size = if large { LARGEST_DATAGRAM } else { SMALL };
            return ping(pod, peer, size).await.map_err(|error| error.to_string());
        }
    };
    done.map_err(|error| format!("{} to {to} by {protocol:?}, large: {large}: {error}", pod.name))
}

fn payload(size: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from(i % 251).unwrap_or_default()).collect()
}

fn tcp(to: SocketAddr, size: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let sent = payload(size);
    let mut writer = stream.try_clone()?;
    let copy = sent.clone();
    let sending = std::thread::spawn(move || writer.write_all(&copy));
    let mut got = vec![0; size];
    stream.read_exact(&mut got)?;
    sending.join().map_err(|_| io::Error::other("the sender panicked"))??;
    same(&sent, &got)
}

fn udp(to: SocketAddr, size: usize) -> io::Result<()> {
    let any: SocketAddr =
        if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let sent = payload(size);
    socket.send(&sent)?;
    let mut got = vec![0; 1 << 16];
    let size = socket.recv(&mut got)?;
    same(&sent, &got[..size])
}

fn same(sent: &[u8], got: &[u8]) -> io::Result<()> {
    if sent == got { Ok(()) } else { Err(io::Error::other("what came back is not what was sent")) }
}

async fn ping(pod: &Pod, peer: IpAddr, size: usize) -> Result<(), Error> {
    let netns = format!("--net=/proc/{}/ns/net", pod.pid);
    let (size, peer) = (size.to_string(), peer.to_string());
    let patience = PATIENCE.as_secs().to_string();
    let words = [&netns, "--", "ping", "-n", "-c", "1", "-W", &patience, "-s", &size, &peer];
    output(&mut command("nsenter", words)).await.map(drop)
}
