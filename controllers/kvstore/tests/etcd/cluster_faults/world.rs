//! An etcd of three members with TLS and users, agents behind links to it, and somebody who reads all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilia_kvstore::testing::{Etcd, options};
use cilia_kvstore::{Client, Event, KeyValue, Settings, Watch, keys};
use cilia_runtime::testing::eventually_for;
use cilia_runtime::testing::proxy::{Mode, Proxy};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::agents::{Agent, Told, counter, labels, lock};

/// How long anything may take that takes milliseconds on a machine at rest.
pub(super) const LIMIT: Duration = Duration::from_mins(2);
const AGENTS: u8 = 3;
const ALL: &str = "cilium/state/";
/// Full after twenty of the largest values.
const QUOTA: &str = "--quota-backend-bytes=16777216";

/// Everything that takes part.
#[derive(Debug)]
pub(super) struct World {
    pub(super) etcd: Etcd,
    /// An administrator's client, not behind the links.
    pub(super) root: Client,
    pub(super) agents: Vec<Arc<Agent>>,
    told: Arc<Mutex<Told>>,
    links: Vec<Proxy>,
    read: Arc<Mutex<Read>>,
    _stop: DropGuard,
}

/// What the reader was told.
#[derive(Debug, Default)]
struct Read {
    there: BTreeMap<String, Vec<u8>>,
    /// Keys of nodes and identities that went: those of the living never do.
    gone: Vec<String>,
}

/// What the agents have been told to do.
pub(super) struct Work(JoinSet<()>);

impl Work {
    /// Waits until it is done, for `extra` longer than anything may take.
    pub(super) async fn done(mut self, extra: Duration) {
        let all =
            async { while self.0.join_next().await.transpose().expect("no panic").is_some() {} };
        assert!(tokio::time::timeout(LIMIT + extra, all).await.is_ok(), "the agents are not done");
    }

    /// Whether some agent is at work still.
    pub(super) fn goes_on(&mut self) -> bool {
        while self.0.try_join_next().transpose().expect("no panic").is_some() {}
        !self.0.is_empty()
    }
}

impl World {
    pub(super) async fn start() -> Self {
        let etcd = Etcd::with(3, true, &[QUOTA]).await;
        etcd.enable_users().await;
        let mut links = Vec::new();
        for member in 0..etcd.size() {
            links.push(Proxy::to(([127, 0, 0, 1], etcd.port(member)).into()).await);
        }
        let ports: Vec<u16> = links.iter().map(|link| link.address().port()).collect();
        let settings = |user| Settings::new(options(&etcd.config_via(user, &ports)));
        let (told, stop) = (Arc::default(), CancellationToken::new());
        let agent = |index| Agent::start(index, settings("admin-east"), &told, &stop);
        let agents = (1..=AGENTS).map(agent).collect();
        let read = Arc::default();
        let reader = Client::new(&settings("remote"), None).expect("a client");
        tokio::spawn(follow(reader.watch(ALL), Arc::clone(&read), stop.clone()));
        let (root, stop) = (etcd.client(), stop.drop_guard());
        Self { root, etcd, agents, told, links, read, _stop: stop }
    }

    /// Has every agent take so many steps.
    pub(super) fn work(&self, steps: usize) -> Work {
        let mut work = JoinSet::new();
        for agent in &self.agents {
            let agent = Arc::clone(agent);
            work.spawn(async move {
                for _ in 0..steps {
                    agent.step().await;
                }
            });
        }
        Work(work)
    }

    /// What becomes of everything between agents and etcd.
    pub(super) fn link(&self, mode: Mode) {
        self.links.iter().for_each(|link| link.set(mode));
    }

    /// Returns once the reader has been told of this key.
    pub(super) async fn is_read(&self, key: &str) {
        eventually_for(LIMIT, || async {
            lock(&self.read).there.contains_key(key).then_some(()).ok_or("not read yet")
        })
        .await;
    }

    /// Identities that an agent has are there for it, whatever etcd does.
    pub(super) async fn known_identities_are_had(&self) {
        let (step, number) = {
            let told = lock(&self.told);
            told.numbers.first_key_value().map(|(step, number)| (*step, *number)).expect("some")
        };
        for agent in &self.agents {
            let maker = cilia_kvstore::allocator::NoMaker;
            let known = labels(step);
            let allocated = agent.allocator.allocate(&known, None, &maker);
            let got = tokio::time::timeout(Duration::from_secs(5), allocated).await;
            assert_eq!(got.expect("from memory").expect("a number"), number);
        }
    }

    /// Once the agents are done: nothing is lost, nothing is there twice, and nobody holds a lock.
    pub(super) async fn is_right_after(&self, fault: &str) {
        eventually_for(LIMIT, || async {
            self.look().await.map_err(|error| format!("after {fault}: {error}"))
        })
        .await;
        for agent in &self.agents {
            let lost = *agent.client.lost_leases().borrow();
            assert_eq!(lost, 0, "after {fault}: leases were lost");
        }
        let gone = lock(&self.read).gone.clone();
        assert!(gone.is_empty(), "after {fault}: entries of the living went: {gone:?}");
        let count = counter(&self.root).await.expect("the counter");
        let most = lock(&self.told).counted.last().copied();
        assert!(most.is_some_and(|most| most <= count), "after {fault}: {most:?}, {count}");
    }

    async fn look(&self) -> Result<(), String> {
        let listed = self.root.list(ALL).await.map_err(|error| error.to_string())?.0;
        let text = |kv: &KeyValue| String::from_utf8(kv.key.clone()).expect("text");
        let there: BTreeMap<String, KeyValue> =
            listed.into_iter().map(|kv| (text(&kv), kv)).collect();
        let mut want = BTreeMap::new();
        for (step, number) in &lock(&self.told).numbers {
            let value = labels(*step).canonical().into_bytes();
            let former = want.insert(keys::identity_id(number.0), value);
            assert!(former.is_none(), "{number} was given twice");
        }
        for agent in &self.agents {
            let owned = agent.owned();
            for key in owned.keys() {
                let lease = there.get(key).map_or(0, |kv| kv.lease);
                if !agent.client.owns(key, lease) {
                    return Err(format!("{key} is on lease {lease:x}, not on its agent's"));
                }
            }
            want.extend(owned);
        }
        let values = |there: &BTreeMap<String, KeyValue>| -> BTreeMap<String, Vec<u8>> {
            there.iter().map(|(key, kv)| (key.clone(), kv.value.clone())).collect()
        };
        same("etcd", &values(&there), &want)?;
        same("the reader", &lock(&self.read).there, &want)
    }
}

/// Says where two differ.
fn same(
    who: &str,
    is: &BTreeMap<String, Vec<u8>>,
    want: &BTreeMap<String, Vec<u8>>,
) -> Result<(), String> {
    let missing: Vec<_> = want.iter().filter(|(key, value)| is.get(*key) != Some(value)).collect();
    let more: Vec<_> = is.keys().filter(|key| !want.contains_key(*key)).collect();
    if missing.is_empty() && more.is_empty() {
        return Ok(());
    }
    Err(format!("{who} lacks {missing:?} and has {more:?}"))
}

async fn follow(mut watch: Watch, read: Arc<Mutex<Read>>, stop: CancellationToken) {
    let locks = keys::identity_locks();
    let lasts = |key: &str| !key.starts_with(keys::IPS) && !key.starts_with(&locks);
    while let Some(Some(events)) = stop.run_until_cancelled(watch.next()).await {
        let mut read = lock(&read);
        for event in events {
            match event {
                Event::Put(kv) => {
                    let key = String::from_utf8(kv.key).expect("text");
                    read.there.insert(key, kv.value);
                }
                Event::Deleted(key) => {
                    read.there.remove(&key);
                    if lasts(&key) {
                        read.gone.push(key);
                    }
                }
                Event::Listed | Event::Progress(_) => {}
            }
        }
    }
}
