//! Lists what is under a prefix and then follows it; a list replaces what was known.
//!
//! After every break the watch goes on behind the last revision that was seen. If that is not
//! possible (etcd has forgotten it, or is another etcd by now) everything is listed again, and what
//! is not listed any more is reported as deleted: nothing is missed, whatever happened meanwhile.

mod tracker;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::keys::range_end;
use crate::messages::{
    KeyValue, WatchCreate, WatchOrder, WatchProgress, WatchRequest, WatchResponse,
};
use tracker::Tracker;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the answer to the first message of a watch is waited for.
const ANSWER: Duration = Duration::from_secs(8);
/// Batches that wait for their reader.
const BATCHES: usize = 64;

/// What has become of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It is there, new or changed.
    Put(KeyValue),
    /// It is gone.
    Deleted(String),
    /// Everything that was there at the start has been told. Once.
    Listed,
    /// Everything up to this revision has been told.
    Progress(i64),
}

/// What happens under a prefix; ends when dropped.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Vec<Event>>,
    progress: mpsc::UnboundedSender<()>,
    _ends: tokio_util::sync::DropGuard,
}

/// Asks a watch how far it is.
#[derive(Debug, Clone)]
pub struct ProgressRequests(mpsc::UnboundedSender<()>);

impl ProgressRequests {
    /// There will be an [`Event::Progress`] with a revision not before this moment's.
    pub fn request(&self) {
        // A watch that has ended tells nothing.
        let _ = self.0.send(());
    }
}

impl Watch {
    pub(crate) fn start(client: &Client, prefix: &str) -> Self {
        let (sender, events) = mpsc::channel(BATCHES);
        let (progress, requests) = mpsc::unbounded_channel();
        let stop = client.0.stop.child_token();
        let follower = Follower {
            client: client.clone(),
            prefix: prefix.into(),
            tracker: Tracker::default(),
            revision: 0,
            events: sender,
        };
        tokio::spawn({
            let stop = stop.clone();
            async move { stop.run_until_cancelled(follower.run(requests)).await }
        });
        Self { events, progress, _ends: stop.drop_guard() }
    }

    /// What happened next; `None` once the client has ended.
    pub async fn next(&mut self) -> Option<Vec<Event>> {
        self.events.recv().await
    }

    /// To ask how far the watch is.
    pub fn progress(&self) -> ProgressRequests {
        ProgressRequests(self.progress.clone())
    }
}

struct Follower {
    client: Client,
    prefix: String,
    tracker: Tracker,
    /// The last revision that was told; 0 before the first list.
    revision: i64,
    events: mpsc::Sender<Vec<Event>>,
}

/// Why a watch has ended.
enum End {
    /// The history behind the last revision is gone.
    Relist,
    /// It may not be followed any more.
    Forbidden,
    /// etcd has lost writes: the same revisions mean other writes now.
    Rewound,
    /// The member failed.
    Broken(String),
    /// Nobody reads any more.
    Unread,
}

impl Follower {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<()>) {
        let mut pause = FIRST_PAUSE;
        let (mut listed, mut broken) = (false, false);
        loop {
            if !listed {
                match self.list().await {
                    Ok(true) => listed = true,
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, prefix = self.prefix, "list will be tried again");
                        tokio::time::sleep(pause).await;
                        pause = (2 * pause).min(LONGEST_PAUSE);
                        continue;
                    }
                }
            }
            let before = self.revision;
            let end = if broken { self.remembered().await } else { None };
            let end = match end {
                Some(end) => end,
                None => self.follow(&mut requests).await,
            };
            broken = false;
            match end {
                End::Rewound => {
                    tracing::info!(
                        prefix = self.prefix,
                        "etcd has lost writes, or forgotten them: listing again"
                    );
                    self.tracker.doubt();
                    listed = false;
                }
                End::Unread => return,
                End::Forbidden => {
                    listed = false;
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                End::Relist => {
                    tracing::info!(prefix = self.prefix, revision = self.revision, "listing again");
                    listed = false;
                }
                End::Broken(reason) => {
                    tracing::debug!(reason, prefix = self.prefix, "watch broken");
                    broken = true;
                    if self.revision > before {
                        pause = FIRST_PAUSE;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Before a watch goes on: why it must not. The revision alone doesn't tell an etcd that has lost
    /// writes and made others since.
    async fn remembered(&self) -> Option<End> {
        let (key, written) = self.tracker.latest()?;
        match self.client.remembers(&key, written, self.revision).await {
            Ok(true) => None,
            Ok(false) => Some(End::Rewound),
            Err(error) => Some(End::Broken(error.to_string())),
        }
    }

    /// Whether somebody reads it.
    async fn tell(&self, batch: Vec<Event>) -> bool {
        let of = |event: &Event| match event {
            Event::Put(kv) if kv.create_revision == kv.mod_revision => Some("create"),
            Event::Put(_) => Some("modify"),
            Event::Deleted(_) => Some("delete"),
            Event::Listed | Event::Progress(_) => None,
        };
        let actions: BTreeSet<&str> = batch.iter().filter_map(of).collect();
        let start = std::time::Instant::now();
        let told = self.events.send(batch).await.is_ok();
        let seconds = start.elapsed().as_secs_f64();
        // A batch waits as one.
        for action in actions {
            self.client.queued(&self.prefix, action, seconds);
        }
        told
    }

    /// Whether somebody still reads.
    async fn list(&mut self) -> Result<bool, crate::Error> {
        let first = self.revision == 0;
        self.tracker.begin_list();
        let (client, prefix) = (self.client.clone(), self.prefix.clone());
        let mut batches = Vec::new();
        let tracker = &mut self.tracker;
        // Only the first list may be old: later ones must not go back behind what was told.
        let take = |page: Vec<KeyValue>| batches.push(tracker.page(page));
        let revision = client.pages(&prefix, first, take).await?;
        let mut last = self.tracker.end_list();
        if first {
            last.push(Event::Listed);
        }
        last.push(Event::Progress(revision));
        batches.push(last);
        self.revision = revision;
        for batch in batches.into_iter().filter(|batch| !batch.is_empty()) {
            if !self.tell(batch).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn follow(&mut self, requests: &mut mpsc::UnboundedReceiver<()>) -> End {
        let create = WatchCreate {
            key: self.prefix.clone().into(),
            range_end: range_end(&self.prefix),
            start_revision: self.revision + 1,
            progress_notify: true,
            fragment: true,
        };
        let (orders, outbound) = mpsc::unbounded_channel();
        let order = |order| WatchRequest { order: Some(order) };
        let _ = orders.send(order(WatchOrder::Create(create)));
        let outbound = tokio_stream::wrappers::UnboundedReceiverStream::new(outbound);
        let connection = self.client.0.connection.clone();
        let opened = connection.stream::<_, WatchResponse>(WATCH, outbound.boxed()).await;
        let (member, mut answers) = match opened {
            Ok(opened) => opened,
            Err(status) => return End::Broken(status.message().into()),
        };
        let mut created = false;
        let mut rewinds = self.client.rewinds();
        loop {
            let answer = tokio::select! {
                answer = answers.message() => answer,
                Some(()) = requests.recv() => {
                    let _ = orders.send(order(WatchOrder::Progress(WatchProgress {})));
                    continue;
                }
                () = tokio::time::sleep(ANSWER), if !created => {
                    connection.failed(&member);
                    return End::Broken("the watch was not begun in time".into());
                }
                Ok(()) = rewinds.changed() => return End::Rewound,
                () = self.events.closed() => return End::Unread,
            };
            let answer = match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => return End::Broken("the member ended the watch".into()),
                Err(status) => {
                    connection.failed(&member);
                    return End::Broken(status.message().into());
                }
            };
            let header = answer.header.clone().unwrap_or_default();
            connection.answered_by(header.cluster_id);
            if answer.canceled {
                return if answer.compact_revision > 0 {
                    End::Relist
                } else if answer.cancel_reason.contains("permission denied") {
                    // The list will say which right is missing.
                    End::Forbidden
                } else {
                    connection.ended(&member, &answer.cancel_reason);
                    End::Broken(answer.cancel_reason)
                };
            }
            if answer.created {
                created = true;
                if header.revision < self.revision {
                    // An etcd that has less than was told: it lags behind, or has lost writes.
                    return End::Rewound;
                }
                continue;
            }
            let quiet = answer.events.is_empty();
            let mut events = self.tracker.apply(answer.events);
            if !answer.fragment && header.revision >= self.revision {
                self.revision = header.revision;
                if quiet || !events.is_empty() {
                    events.push(Event::Progress(header.revision));
                }
            }
            if !events.is_empty() && !self.tell(events).await {
                return End::Unread;
            }
        }
    }
}
