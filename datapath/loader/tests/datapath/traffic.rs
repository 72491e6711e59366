//! Real sockets in pods.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::cluster::{LIMIT, PATIENCE, Pod};
use crate::namespace::Namespace;

/// A TCP server in a namespace that answers every byte with the same byte.
pub(crate) fn echo_server(netns: &Namespace, address: SocketAddr) {
    let listener = netns.run(|| TcpListener::bind(address)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
}

fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 65536];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 || stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Connects to an address from a namespace.
pub(crate) fn connect(netns: &Namespace, to: SocketAddr) -> std::io::Result<TcpStream> {
    connect_within(netns, to, LIMIT)
}

/// Connects to an address from a namespace, if that takes no longer than `limit`.
pub(crate) fn connect_within(
    netns: &Namespace,
    to: SocketAddr,
    limit: Duration,
) -> std::io::Result<TcpStream> {
    let stream = netns.run(|| TcpStream::connect_timeout(&to, limit))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes and expects them back.
pub(crate) fn round_trip(stream: &mut TcpStream, bytes: &[u8]) {
    let mut back = vec![0; bytes.len()];
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).unwrap());
        stream.read_exact(&mut back).unwrap();
    });
    assert!(back == bytes, "bytes came back changed");
}

/// Whether bytes sent now come back while a test is patient.
pub(crate) fn answers(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"?").unwrap();
    let answer = stream.read(&mut [0]);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    match answer {
        Ok(count) => count == 1,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Binds a UDP socket in a pod.
pub(crate) fn udp(pod: &Pod, v6: bool, port: u16) -> UdpSocket {
    bind_udp(&pod.netns, pod.ip(v6), port)
}

/// Binds a UDP socket in a namespace.
pub(crate) fn bind_udp(netns: &Namespace, ip: IpAddr, port: u16) -> UdpSocket {
    let socket = netns.run(|| UdpSocket::bind((ip, port))).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Bytes that no other length or offset has.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 251) % 256).unwrap()).collect()
}

/// Pings an address once with a payload.
pub(crate) fn ping(netns: &Namespace, to: IpAddr, size: usize) -> (bool, String) {
    netns.try_command(&format!("ping -n -c 1 -W 2 -s {size} {to}"))
}
