//! A TCP proxy whose traffic a test can stall or cut, to be the bad network between us and the API server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// Connections stay open, nothing arrives.
    Stall,
    /// Connections are closed and none is accepted for long.
    Cut,
    /// Each piece of at most 16 KiB is so many milliseconds late, in both directions.
    Slow(u64),
}

/// A proxy to one server; ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
}

impl Proxy {
    /// A proxy on a free loopback port that passes everything on to `server`.
    ///
    /// # Panics
    /// If it cannot listen.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("listen on loopback");
        let address = listener.local_addr().expect("read a listener's address");
        let (mode, modes) = watch::channel(Mode::Pass);
        tokio::spawn(accept(listener, server, modes));
        Self { address, mode }
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to bytes, also on open connections.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mut modes: watch::Receiver<Mode>) {
    loop {
        let inbound = tokio::select! {
            accepted = listener.accept() => accepted,
            ended = ended(&mut modes) => return ended,
        };
        let Ok((inbound, _)) = inbound else { continue };
        if *modes.borrow() == Mode::Cut {
            continue;
        }
        let modes = modes.clone();
        tokio::spawn(async move {
            let Ok(outbound) = TcpStream::connect(server).await else { return };
            let (from_client, to_client) = inbound.into_split();
            let (from_server, to_server) = outbound.into_split();
            tokio::select! {
                () = copy(from_client, to_server, modes.clone()) => {}
                () = copy(from_server, to_client, modes) => {}
            }
        });
    }
}

/// Waits for the end of the [`Proxy`].
async fn ended(modes: &mut watch::Receiver<Mode>) {
    while modes.changed().await.is_ok() {}
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Mode::Cut {
            return;
        }
        tokio::select! {
            changed = modes.changed() => if changed.is_err() { return },
            read = from.read(&mut buffer), if mode != Mode::Stall => match read {
                Ok(count) if count > 0 => {
                    if let Mode::Slow(late) = mode {
                        tokio::time::sleep(Duration::from_millis(late)).await;
                    }
                    if to.write_all(&buffer[..count]).await.is_err() { return }
                }
                _ => return,
            },
        }
    }
}
