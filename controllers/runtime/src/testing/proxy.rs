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
    rule: watch::Sender<Rule>,
}

/// What happens to the bytes of a connection: of one that is older than the last freeze, nothing.
#[derive(Debug, Clone, Copy)]
struct Rule {
    mode: Mode,
    freezes: u32,
}

impl Rule {
    /// For a connection that was made after so many freezes.
    fn of(self, freezes: u32) -> Mode {
        if freezes < self.freezes && self.mode != Mode::Cut { Mode::Stall } else { self.mode }
    }
}

impl Proxy {
    /// A proxy on a free loopback port that passes everything on to `server`.
    ///
    /// # Panics
    /// If it cannot listen.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("listen on loopback");
        let address = listener.local_addr().expect("read a listener's address");
        let (rule, rules) = watch::channel(Rule { mode: Mode::Pass, freezes: 0 });
        tokio::spawn(accept(listener, server, rules));
        Self { address, rule }
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to bytes, also on open connections.
    pub fn set(&self, mode: Mode) {
        self.rule.send_modify(|rule| rule.mode = mode);
    }

    /// Connections that are open now stay so for good, and nothing arrives on them; others are as before.
    pub fn freeze_open(&self) {
        self.rule.send_modify(|rule| rule.freezes += 1);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mut rules: watch::Receiver<Rule>) {
    loop {
        let inbound = tokio::select! {
            accepted = listener.accept() => accepted,
            ended = ended(&mut rules) => return ended,
        };
        let Ok((inbound, _)) = inbound else { continue };
        let Rule { mode, freezes } = *rules.borrow();
        if mode == Mode::Cut {
            continue;
        }
        let rules = rules.clone();
        tokio::spawn(async move {
            let Ok(outbound) = TcpStream::connect(server).await else { return };
            let (from_client, to_client) = inbound.into_split();
            let (from_server, to_server) = outbound.into_split();
            tokio::select! {
                () = copy(from_client, to_server, freezes, rules.clone()) => {}
                () = copy(from_server, to_client, freezes, rules) => {}
            }
        });
    }
}

/// Waits for the end of the [`Proxy`].
async fn ended(rules: &mut watch::Receiver<Rule>) {
    while rules.changed().await.is_ok() {}
}

/// `freezes`: how many there had been when the connection was made.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    freezes: u32,
    mut rules: watch::Receiver<Rule>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let mode = rules.borrow_and_update().of(freezes);
        if mode == Mode::Cut {
            return;
        }
        tokio::select! {
            changed = rules.changed() => if changed.is_err() { return },
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
