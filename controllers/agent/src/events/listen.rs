//! Tells Cilium's own monitor (`cilium-dbg monitor`) of events, on the socket that it knows, beside the API's.
//!
//! A listener that reads slowly holds up nobody: the connection to it fills, what it can't be told in time is
//! left out, and it is told how many. The same goes for events that found the kernel's ring full.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use super::Bus;
use super::gob::{self, Payload};
use crate::socket;

/// The socket's name, beside the API's.
pub const SOCKET: &str = "monitor1_2.sock";

/// Who may listen at the same time: each costs the agent a bit for every event.
const MOST: usize = 16;
/// Bytes that are written at once.
const CHUNK: usize = 64 << 10;
/// Between two attempts to take a connection, when there are no more descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves events at `path` until `stop`.
pub async fn serve(path: &Path, bus: Bus, stop: CancellationToken) -> Result<(), socket::Error> {
    let listener = socket::bind(path)?;
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let connection = match accepted {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "a listener to events can't be taken in");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!("{MOST} listen to events already: one more was sent away");
            continue;
        };
        let (bus, stop) = (bus.clone(), stop.clone());
        tokio::spawn(async move {
            let (from, to) = connection.into_split();
            tokio::select! {
                () = stop.cancelled() => {}
                () = gone(from) => {}
                // Who can't be written to is gone.
                _ = tell(bus, to) => {}
            }
            drop(place);
        });
    }
}

/// Waits until the other side closes. What it says means nothing.
async fn gone(mut from: impl AsyncRead + Unpin) {
    let mut ignored = [0; 256];
    while from.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

/// Writes events as they come.
async fn tell(bus: Bus, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut events = bus.subscribe();
    let (mut stream, mut lost) = (Vec::new(), bus.lost());
    gob::begin(&mut stream);
    loop {
        // The definition goes out with the first event, as Go's encoder does it.
        let mut next = match events.recv().await {
            Ok(event) => Ok(event),
            Err(RecvError::Lagged(count)) => Err(TryRecvError::Lagged(count)),
            Err(RecvError::Closed) => return Ok(()),
        };
        loop {
            match next {
                Ok(event) => {
                    let record = cilia_loader::event::encode(&event.what);
                    gob::add(&mut stream, Payload::Record(&record));
                }
                Err(TryRecvError::Lagged(count)) => gob::add(&mut stream, Payload::Lost(count)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
            if stream.len() >= CHUNK {
                break;
            }
            next = events.try_recv();
        }
        // One reader counts for all; more than before are missing in the stream of each.
        let now = bus.lost();
        if now > lost {
            gob::add(&mut stream, Payload::Lost(now - lost));
            lost = now;
        }
        to.write_all(&stream).await?;
        stream.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use cilia_loader::Event;
    use cilia_loader::event::{DropEvent, Packet, encode};
    use cilia_runtime::testing::eventually;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;
    use tokio_util::sync::CancellationToken;

    use super::{MOST, serve};
    use crate::events::Bus;
    use crate::events::gob::{self, Payload};

    fn drop_of(ifindex: u32) -> Event {
        let packet =
            Packet { endpoint: 7, hash: 9, length: 60, ipv6: false, bytes: vec![1, 2, 3, 4] };
        Event::Drop(DropEvent {
            packet,
            reason: 133,
            ext_error: 0,
            source_identity: 100,
            destination_identity: 2,
            destination_endpoint: 0,
            ifindex,
        })
    }

    fn stream(payloads: &[Payload<'_>]) -> Vec<u8> {
        let mut stream = Vec::new();
        gob::begin(&mut stream);
        for payload in payloads {
            gob::add(&mut stream, *payload);
        }
        stream
    }

    async fn read(connection: &mut UnixStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        connection.read_exact(&mut bytes).await.expect("the stream goes on");
        bytes
    }

    #[tokio::test]
    async fn listeners_hear_what_happens_from_then_on_and_one_too_many_is_sent_away() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bus, stop) =
            (folder.path().join("monitor1_2.sock"), Bus::new(4), CancellationToken::new());
        let served = tokio::spawn({
            let (path, bus, stop) = (path.clone(), bus.clone(), stop.clone());
            async move { serve(&path, bus, stop).await }
        });
        eventually(async || path.exists().then_some(()).ok_or("no socket yet")).await;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);

        let heard = async |count: usize| {
            eventually(async || match bus.listeners() {
                now if now == count => Ok(()),
                now => Err(format!("{now} listen, not {count}")),
            })
            .await;
        };
        let mut first = UnixStream::connect(&path).await.unwrap();
        heard(1).await;
        bus.take(drop_of(1));
        let record = encode(&drop_of(1));
        let want = stream(&[Payload::Record(&record)]);
        assert_eq!(read(&mut first, want.len()).await, want);

        // What a listener says is of no interest; it still listens.
        first.write_all(b"hello").await.unwrap();
        let mut others = Vec::new();
        for _ in 1..MOST {
            others.push(UnixStream::connect(&path).await.unwrap());
        }
        heard(MOST).await;
        let mut last = UnixStream::connect(&path).await.unwrap();
        assert_eq!(last.read(&mut [0; 16]).await.unwrap(), 0, "one too many");
        // Whoever goes makes room, though nothing happens meanwhile.
        drop(others);
        heard(1).await;

        // More than are kept, in one go: the oldest are missing, and counted.
        for ifindex in 0..7 {
            bus.take(drop_of(ifindex));
        }
        let records: Vec<Vec<u8>> = (3..7).map(|ifindex| encode(&drop_of(ifindex))).collect();
        let mut want = Vec::new();
        gob::add(&mut want, Payload::Lost(3));
        for record in &records {
            gob::add(&mut want, Payload::Record(record));
        }
        assert_eq!(read(&mut first, want.len()).await, want);

        stop.cancel();
        served.await.unwrap().unwrap();
        assert_eq!(first.read(&mut [0; 16]).await.unwrap(), 0, "the agent ends");
    }
}
