//! Decides whether traffic that flows while something happens suffers from it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::pods::Pod;
use super::traffic::make_room;
use crate::Error;

/// How often a message is sent.
const PACE: Duration = Duration::from_millis(2);
/// How long to wait for the last answers.
const DRAIN: Duration = Duration::from_secs(1);

/// A stream of numbered datagrams to an echo server.
#[derive(Debug)]
pub struct Datagrams {
    stop: Arc<AtomicBool>,
    done: tokio::sync::oneshot::Receiver<io::Result<(Tally, Vec<Sent>)>>,
}

/// A datagram, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// When it was sent.
    pub at: Instant,
    /// Whether it came back.
    pub answered: bool,
}

/// How long after the beginning of a span of time the last datagram was sent in it with which it did not go as `answered`
/// says; nothing if it always did.
pub fn settled(sent: &[Sent], span: Range<Instant>, answered: bool) -> Option<Duration> {
    let other = |one: &&Sent| span.contains(&one.at) && one.answered != answered;
    sent.iter().rfind(other).map(|last| last.at.duration_since(span.start))
}

/// What became of a stream of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// How many were sent.
    pub sent: u64,
    /// How many came back.
    pub answered: u64,
    /// The longest time without an answer.
    pub longest_gap: Duration,
}

impl Datagrams {
    /// Starts to send from `pod` to an echo server at `to`.
    pub async fn start(pod: &Pod, to: SocketAddr) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, done) = tokio::sync::oneshot::channel();
        let stopped = stop.clone();
        pod.run(move || {
            let any: SocketAddr =
                if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any)
                .and_then(|socket| socket.connect(to).map(|()| socket))
                .and_then(|socket| make_room(&socket).map(|()| socket));
            std::thread::spawn(move || {
                let tally = socket.and_then(|socket| send(&socket, &stopped));
                // Nobody asks if the test has given up.
                drop(sender.send(tally));
            });
        })
        .await?;
        Ok(Self { stop, done })
    }

    /// Stops and counts.
    pub async fn finish(self) -> Result<Tally, Error> {
        self.journal().await.map(|(tally, _)| tally)
    }

    /// Stops, counts, and tells what became of each datagram, in the order of sending.
    pub async fn journal(self) -> Result<(Tally, Vec<Sent>), Error> {
        self.stop.store(true, Ordering::Relaxed);
        let journal =
            self.done.await.unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
        journal.map_err(|error| Error::Invalid(format!("datagrams: {error}")))
    }
}

fn send(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<(Tally, Vec<Sent>)> {
    socket.set_nonblocking(true)?;
    let mut tally = Tally { sent: 0, answered: 0, longest_gap: Duration::ZERO };
    let mut sent: Vec<Sent> = Vec::new();
    let mut last_answer = Instant::now();
    let mut end: Option<Instant> = None;
    let mut buffer = [0; 64];
    while end.is_none_or(|end| end.elapsed() < DRAIN && tally.answered < tally.sent) {
        if end.is_none() {
            let at = Instant::now();
            if stop.load(Ordering::Relaxed) {
                end = Some(at);
            } else if socket.send(&tally.sent.to_be_bytes()).is_ok() {
                tally.sent += 1;
                sent.push(Sent { at, answered: false });
            }
        }
        while let Ok(size) = socket.recv(&mut buffer) {
            let number = buffer.first_chunk().filter(|_| size == size_of::<u64>());
            let number = number.map(|bytes| u64::from_be_bytes(*bytes));
            let one = number.and_then(|number| sent.get_mut(usize::try_from(number).ok()?));
            if let Some(one) = one.filter(|one| !one.answered) {
                one.answered = true;
                tally.answered += 1;
                tally.longest_gap = tally.longest_gap.max(last_answer.elapsed());
                last_answer = Instant::now();
            }
        }
        std::thread::sleep(PACE);
    }
    Ok((tally, sent))
}

/// A connection over which numbered messages go to and fro.
#[derive(Debug)]
pub struct Connection {
    stop: Arc<AtomicBool>,
    exchanged: Arc<AtomicU64>,
    done: tokio::sync::oneshot::Receiver<io::Result<()>>,
}

impl Connection {
    /// Connects `pod` to an echo server at `to`; an answer later than `patience` breaks it.
    pub async fn open(pod: &Pod, to: SocketAddr, patience: Duration) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let exchanged = Arc::new(AtomicU64::new(0));
        let (sender, done) = tokio::sync::oneshot::channel();
        let (stopped, count) = (stop.clone(), exchanged.clone());
        let opened = pod.run(move || -> io::Result<()> {
            let stream = TcpStream::connect_timeout(&to, patience)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(patience))?;
            std::thread::spawn(move || {
                // Nobody asks if the test has given up.
                drop(sender.send(exchange(stream, &stopped, &count)));
            });
            Ok(())
        });
        opened.await?.map_err(|error| Error::Invalid(format!("connection to {to}: {error}")))?;
        Ok(Self { stop, exchanged, done })
    }

    /// How many messages have come back.
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Whether the connection has broken by itself.
    pub fn broken(&self) -> bool {
        !self.done.is_empty() || self.done.is_terminated()
    }

    /// Ends the connection; an error if it had broken before.
    pub async fn finish(self) -> Result<u64, Error> {
        self.stop.store(true, Ordering::Relaxed);
        let ended =
            self.done.await.unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
        let count = self.exchanged.load(Ordering::Relaxed);
        ended.map(|()| count).map_err(|error| {
            Error::Invalid(format!("the connection broke after {count} messages: {error}"))
        })
    }
}

fn exchange(mut stream: TcpStream, stop: &AtomicBool, exchanged: &AtomicU64) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let number = exchanged.load(Ordering::Relaxed).to_be_bytes();
        stream.write_all(&number)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        if answer != number {
            return Err(io::Error::other("an answer is not what was sent"));
        }
        exchanged.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PACE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Sent, settled};

    #[test]
    fn the_last_that_went_otherwise_counts() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let answers = [true, true, false, true, false, false];
        let sent: Vec<_> =
            (0u64..).zip(answers).map(|(i, answered)| Sent { at: at(i * 10), answered }).collect();
        let late = |from, to, answered| settled(&sent, at(from)..at(to), answered);
        assert_eq!(late(10, 60, false), Some(Duration::from_millis(20)));
        assert_eq!(late(10, 40, true), Some(Duration::from_millis(10)));
        assert_eq!(late(40, 60, false), None);
        assert_eq!(late(60, 90, true), None, "nothing was sent");
    }
}
