//! Gives every label set one number, however many agents ask at once.
//!
//! A number exists by its master key `id/<number>` -> labels, and is used by an agent through
//! `value/<labels>/<node>` -> number. Both are written in one transaction, so that neither is ever
//! without the other; and a use is only written if the master is there. So the garbage collector,
//! which deletes a master only if there is no use, and allocation never get in each other's way.
//! What is used here is written again when it is lost, under the same number.

mod claim;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::{Index, Pool, Record, Space};
use cilia_runtime::lanes::Workqueues;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::mirror::Mirror;
use crate::watch::{Event, ProgressRequests};
use crate::{keys, value};

pub use claim::{Maker, NoMaker};

/// How often the own keys are compared with what should be there, where no flag says otherwise.
const RESYNC: Duration = Duration::from_mins(5);

/// What became of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is there.
    Upsert {
        /// Its number.
        number: NumericIdentity,
        /// Its labels.
        labels: Arc<Labels>,
        /// When it was made: the older of two for the same labels counts.
        created: i64,
    },
    /// It is gone.
    Deleted(NumericIdentity),
    /// Everything that was there at the start has been told.
    Synced,
}

/// The identities of the kvstore; clones share them.
#[derive(Debug, Clone)]
pub struct Allocator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    space: Space,
    /// The last element of this agent's own keys: the node's address.
    suffix: String,
    mirror: Mirror,
    state: Mutex<State>,
    /// Everything up to this revision is in the index.
    revision: watch::Sender<i64>,
    listed: watch::Sender<bool>,
    progress: Mutex<Option<ProgressRequests>>,
}

#[derive(Debug)]
struct State {
    index: Index,
    pool: Pool,
    /// What this agent uses, by number, and since when.
    uses: HashMap<NumericIdentity, (Arc<Labels>, Instant)>,
}

impl Allocator {
    /// Of the numbers of `space`; `suffix` is the node's address.
    pub fn new(client: Client, space: Space, suffix: String, workqueues: &Workqueues) -> Self {
        Self::comparing_every(RESYNC, client, space, suffix, workqueues)
    }

    /// The same; so often the own keys are compared with what should be there.
    pub fn comparing_every(
        interval: Duration,
        client: Client,
        space: Space,
        suffix: String,
        workqueues: &Workqueues,
    ) -> Self {
        let mirror = Mirror::new(client.clone(), "kvstore-identities", interval, workqueues);
        let state = State { index: Index::default(), pool: Pool::new(space), uses: HashMap::new() };
        Self(Arc::new(Shared {
            client,
            space,
            suffix,
            mirror,
            state: Mutex::new(state),
            revision: watch::Sender::new(0),
            listed: watch::Sender::new(false),
            progress: Mutex::default(),
        }))
    }

    /// Follows all identities, and keeps those in use alive, until `stop`. To be called once.
    pub async fn run(&self, stop: CancellationToken, mut tell: impl FnMut(Change)) {
        let mut watch = self.0.client.watch(&keys::identity_ids());
        *self.0.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch.progress());
        let follow = async {
            while let Some(events) = watch.next().await {
                for event in events {
                    self.0.mirror.seen(&event);
                    self.take(event, &mut tell);
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow => {}
            () = self.0.mirror.run(stop.clone()) => {}
        }
    }

    fn take(&self, event: Event, tell: &mut impl FnMut(Change)) {
        match event {
            Event::Put(kv) => {
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                let Some(number) = keys::parse_identity_id(&key).map(NumericIdentity) else {
                    tracing::warn!(key, "ignoring an identity whose key ends with no number");
                    return;
                };
                let text = String::from_utf8_lossy(&kv.value);
                let mut state = self.state();
                // Whatever it means, it is taken.
                state.pool.take(number);
                let Some(labels) = value::parse_labels(&text) else {
                    tracing::warn!(key, value = %text, "ignoring an identity without canonical labels");
                    return;
                };
                let created = kv.create_revision;
                let known = state.index.get(number).map(|record| record.created);
                match state.uses.get(&number) {
                    Some((own, _)) if **own != labels => {
                        // It was lost, and others were faster: it is theirs.
                        self.0.mirror.remove(&self.use_key(own));
                        self.0.mirror.forget(&key);
                        state.uses.remove(&number);
                    }
                    Some(_) if known != Some(created) => {
                        // It was lost and made again: our use may be lost too.
                        self.0.mirror.look(&self.use_key(&labels));
                    }
                    _ => {}
                }
                let labels = state.upsert(number, labels, created);
                drop(state);
                tell(Change::Upsert { number, labels, created });
            }
            Event::Deleted(key) => {
                let Some(number) = keys::parse_identity_id(&key).map(NumericIdentity) else {
                    return;
                };
                let mut state = self.state();
                if let Some((labels, _)) = state.uses.get(&number) {
                    // It comes back at once: nobody here is to see it go. Our use may be lost too.
                    self.0.mirror.look(&self.use_key(labels));
                    return;
                }
                state.pool.release(number);
                state.index.remove(number);
                drop(state);
                tell(Change::Deleted(number));
            }
            Event::Listed => {
                self.0.listed.send_replace(true);
                tell(Change::Synced);
            }
            Event::Progress(revision) => {
                self.0.revision.send_replace(revision);
            }
        }
    }

    /// The number that stands for these labels now.
    pub fn number(&self, labels: &Labels) -> Option<NumericIdentity> {
        self.state().index.number(labels).filter(|number| self.0.space.contains(*number))
    }

    /// The labels of a number.
    pub fn labels(&self, number: NumericIdentity) -> Option<Arc<Labels>> {
        self.state().index.get(number).map(|record| Arc::clone(&record.labels))
    }

    /// The labels of a number, and when it was made.
    pub fn get(&self, number: NumericIdentity) -> Option<(Arc<Labels>, i64)> {
        let state = self.state();
        state.index.get(number).map(|record| (Arc::clone(&record.labels), record.created))
    }

    /// Returns once every identity that there was at the start is known.
    pub async fn wait_listed(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// These numbers are used here. Others are given up, but those that were allocated within `grace`:
    /// their endpoints may not be there yet.
    ///
    /// A clock that jumps ahead ends the grace early. That removes nothing alive: the number itself stays,
    /// and its use is claimed again once there is an endpoint (see [`Allocator::unclaimed`]).
    pub fn keep(&self, numbers: &BTreeSet<NumericIdentity>, grace: Duration) {
        let mut state = self.state();
        for (number, labels) in state.give_up(numbers, grace, Instant::now()) {
            self.0.mirror.remove(&self.use_key(&labels));
            self.0.mirror.forget(&keys::identity_id(number.0));
        }
    }

    /// Those of these numbers that are this cluster's.
    pub fn of_space(&self, numbers: &BTreeSet<NumericIdentity>) -> BTreeSet<NumericIdentity> {
        numbers.iter().filter(|number| self.0.space.contains(**number)).copied().collect()
    }

    /// Those of these numbers that this agent has not claimed.
    pub fn unclaimed(&self, numbers: &BTreeSet<NumericIdentity>) -> BTreeSet<NumericIdentity> {
        let state = self.state();
        numbers.iter().filter(|number| !state.uses.contains_key(*number)).copied().collect()
    }

    /// What this agent uses.
    pub fn uses(&self) -> BTreeSet<NumericIdentity> {
        self.state().uses.keys().copied().collect()
    }

    /// Returns once all own keys are written.
    pub async fn settled(&self) {
        self.0.mirror.settled().await;
    }

    fn use_key(&self, labels: &Labels) -> String {
        keys::identity_value(&labels.canonical(), &self.0.suffix)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets the uses that are none of these, and not younger than `grace`; which they were.
    fn give_up(
        &mut self,
        keep: &BTreeSet<NumericIdentity>,
        grace: Duration,
        now: Instant,
    ) -> Vec<(NumericIdentity, Arc<Labels>)> {
        let over = |number: &NumericIdentity, since: Instant| {
            !keep.contains(number) && now.saturating_duration_since(since) >= grace
        };
        let gone = self.uses.extract_if(|number, (_, since)| over(number, *since));
        gone.map(|(number, (labels, _))| (number, labels)).collect()
    }

    /// The labels as they are stored.
    fn upsert(&mut self, number: NumericIdentity, labels: Labels, created: i64) -> Arc<Labels> {
        self.pool.take(number);
        let same = self.index.get(number).filter(|known| *known.labels == labels);
        let labels = same.map_or_else(|| Arc::new(labels), |known| Arc::clone(&known.labels));
        let record = Record { labels: Arc::clone(&labels), created, marked: false };
        self.index.upsert(number, record);
        self.index.get(number).map_or(labels, |record| Arc::clone(&record.labels))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use cilia_crds::{Labels, NumericIdentity};
    use cilia_identity::{Index, Pool, Space};

    use super::State;

    const GRACE: Duration = Duration::from_mins(5);

    fn state(uses: &[(u32, Instant)]) -> State {
        let pool = Pool::new(Space::new(0, 255).expect("allowed"));
        let one = |(number, since): &(u32, Instant)| {
            (NumericIdentity(*number), (Arc::new(Labels::new()), *since))
        };
        let uses: HashMap<_, _> = uses.iter().map(one).collect();
        State { index: Index::default(), pool, uses }
    }

    #[test]
    fn a_clock_that_jumps_takes_no_identity_of_an_endpoint() {
        let day = Duration::from_hours(24);
        let yesterday = Instant::now() + day;
        let (now, long_ago) = (yesterday + day, yesterday + day / 2);
        let endpoints: BTreeSet<NumericIdentity> = [NumericIdentity(300)].into();
        // A number with an endpoint, one that waits for its endpoint, and one that was given up long ago.
        for (jump, want) in [(now, vec![302]), (now + day, vec![301, 302]), (yesterday, vec![])] {
            let mut state = state(&[(300, now), (301, now), (302, long_ago)]);
            let gone = state.give_up(&endpoints, GRACE, jump);
            let mut gone: Vec<u32> = gone.iter().map(|(number, _)| number.0).collect();
            gone.sort_unstable();
            assert_eq!(gone, want, "{jump:?}");
            assert!(state.uses.contains_key(&NumericIdentity(300)));
        }
    }
}
