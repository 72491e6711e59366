//! Hands the datapath's events to everybody who listens: one reader of the ring, many listeners.
//!
//! A listener that can't follow loses events, and is told how many; the datapath never waits.

mod flows;
mod gob;
mod icmp;
mod listen;
mod packet;
mod text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use cilia_loader::Datapath;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

pub use flows::{Flow, Seen};
pub use listen::{SOCKET, serve};
pub use packet::Summary;
pub use text::{action, device, line, matched};

/// Events that a listener may be behind, where `monitor-queue-size` doesn't say.
const BACKLOG: usize = 8192;
/// The most of them: 32 bytes each, and what the oldest listener keeps of packets.
const MOST: usize = 1 << 17;
/// Events read before others get their turn.
const BATCH: usize = 512;

/// What the flags say of events.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Cilium's own monitor may listen, on a socket beside the API's.
    pub socket: bool,
    /// How many events a listener may be behind; 0 for as many as is usual.
    pub backlog: usize,
}

/// An event with the time at which it was read.
#[derive(Debug)]
pub struct Event {
    /// When it was read.
    pub time: SystemTime,
    /// What happened.
    pub what: cilia_loader::Event,
    /// The packet's addresses, ports and flags, as far as they are in its first bytes.
    pub summary: Option<Summary>,
}

/// Events as they come; clones share them.
#[derive(Debug, Clone)]
pub struct Bus {
    sender: broadcast::Sender<Arc<Event>>,
    lost: Arc<AtomicU64>,
    flows: Arc<Mutex<flows::Flows>>,
}

impl Default for Bus {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Bus {
    /// A bus whose listeners may be so many events behind; 0 for as many as is usual.
    pub fn new(backlog: usize) -> Self {
        let backlog = if backlog == 0 { BACKLOG } else { backlog.min(MOST) };
        Self { sender: broadcast::channel(backlog).0, lost: Arc::default(), flows: Arc::default() }
    }

    /// How many listen.
    #[cfg(test)]
    fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    /// The events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    /// The flows that policy has judged lately.
    pub fn flows(&self) -> Vec<(Flow, Seen)> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Hands an event to whom it concerns.
    pub(crate) fn take(&self, what: cilia_loader::Event) {
        let verdict = matches!(what, cilia_loader::Event::Verdict(_));
        // Nobody listens: the ring is emptied all the same.
        let heard = self.sender.receiver_count() > 0;
        if !verdict && !heard {
            return;
        }
        let (time, summary) = (SystemTime::now(), packet::summary(&what));
        if let cilia_loader::Event::Verdict(verdict) = &what {
            let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
            flows.record(verdict, summary.as_ref(), time);
        }
        if heard {
            // The last listener may have gone meanwhile.
            let _ = self.sender.send(Arc::new(Event { time, what, summary }));
        }
    }

    /// Events that found the ring full since the datapath was first loaded.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Reads the ring until `stop`.
    pub async fn run(self, datapath: Arc<Datapath>, stop: CancellationToken) -> Result<(), Error> {
        let ring = datapath.events().map_err(Error::Open)?;
        #[expect(deprecated, reason = "its successor is unsafe; the ring keeps its one descriptor")]
        let mut ring = AsyncFd::with_interest(ring, Interest::READABLE).map_err(Error::Wait)?;
        // What former agents have missed is not lost to those who listen to this one.
        self.lost.store(ring.get_ref().lost().unwrap_or(0), Ordering::Relaxed);
        loop {
            let mut ready = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                ready = ring.readable_mut() => ready.map_err(Error::Wait)?,
            };
            let events = ready.get_inner_mut();
            let mut read = 0;
            while read < BATCH
                && let Some(what) = events.next()
            {
                read += 1;
                self.take(what);
            }
            if let Ok(lost) = events.lost() {
                self.lost.store(lost, Ordering::Relaxed);
            }
            if read < BATCH {
                ready.clear_ready();
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Why events can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ring can't be opened.
    #[error("open the datapath's events: {0}")]
    Open(cilia_loader::Error),
    /// The ring can't be waited for.
    #[error("wait for the datapath's events: {0}")]
    Wait(std::io::Error),
}
