//! Agents that work, and what they were told: to be compared with what is there in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::value::{IpIdentityPair, encode};
use cilia_kvstore::{Allocator, Client, Error, Mirror, Settings, Txn, Watchdog, keys};
use cilia_runtime::testing::eventually_for;
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::workqueues;

/// How long an agent goes on trying.
const PATIENCE: Duration = Duration::from_mins(10);
/// Much shorter than the longest loss of a quorum that is tried.
const LEASE_TTL: Duration = Duration::from_secs(30);
/// How many addresses an agent has at a time.
const ADDRESSES: usize = 4;
/// What is counted by everybody, and the lock for it.
const COUNTER: &str = "cilium/test/counter";
const LOCK: &str = "cilium/test/lock";

/// The labels that the agents want in this step.
pub(super) fn labels(step: usize) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{step}"));
    labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
    labels
}

/// What etcd has told the agents.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The numbers of the steps' labels.
    pub(super) numbers: BTreeMap<usize, NumericIdentity>,
    /// What was counted under the lock.
    pub(super) counted: BTreeSet<u64>,
}

/// An agent.
#[derive(Debug)]
pub(super) struct Agent {
    name: String,
    index: u8,
    pub(super) client: Client,
    mirror: Mirror,
    pub(super) allocator: Allocator,
    pub(super) watchdog: Watchdog,
    steps: AtomicUsize,
    /// Its keys, but those of identities.
    wanted: Mutex<BTreeMap<String, Vec<u8>>>,
    told: Arc<Mutex<Told>>,
}

impl Agent {
    /// One that works for the first time when it is told to.
    pub(super) fn start(
        index: u8,
        settings: Settings,
        told: &Arc<Mutex<Told>>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let settings = Settings { lease_ttl: LEASE_TTL, ..settings };
        let client = Client::new(&settings, None).expect("a client");
        let space = Space::new(1, 255).expect("allowed");
        let name = format!("n{index}");
        let suffix = format!("172.18.0.{index}");
        let agent = Arc::new(Self {
            mirror: Mirror::new(client.clone(), "own", Duration::from_mins(5), &workqueues()),
            allocator: Allocator::new(client.clone(), space, suffix, &workqueues()),
            watchdog: Watchdog::new(client.clone(), 0),
            steps: AtomicUsize::new(0),
            wanted: Mutex::default(),
            told: Arc::clone(told),
            name,
            index,
            client,
        });
        tokio::spawn({
            let (agent, stop) = (Arc::clone(&agent), stop.clone());
            async move {
                tokio::select! {
                    () = agent.mirror.run(stop.clone()) => {}
                    () = agent.allocator.run(stop.clone(), |_| {}) => {}
                    () = agent.watchdog.run(stop.clone()) => {}
                    () = agent.mirror.repair(agent.client.watch("cilium/state/")) => {}
                }
            }
        });
        agent
    }

    /// An endpoint comes, another goes; all agents get endpoints of the same labels.
    pub(super) async fn step(&self) {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        let wanted = labels(step);
        let allocated = || self.allocator.allocate(&wanted, None, &NoMaker);
        let number = eventually_for(PATIENCE, allocated).await;
        {
            let mut told = lock(&self.told);
            let known = *told.numbers.entry(step).or_insert(number);
            assert_eq!(known, number, "step {step}: one number for one label set");
        }
        self.want(keys::ip(self.address(step)), {
            let host = [172, 18, 0, self.index].into();
            Some(encode(&IpIdentityPair::new(self.address(step), number.0, Some(host))))
        });
        if let Some(former) = step.checked_sub(ADDRESSES) {
            self.want(keys::ip(self.address(former)), None);
        }
        self.want(keys::node("east", &self.name), Some(step.to_string().into_bytes()));
        let counted = eventually_for(PATIENCE, || self.count()).await;
        assert!(lock(&self.told).counted.insert(counted), "{counted} was counted by two");
        self.mirror.settled().await;
        self.allocator.settled().await;
    }

    fn address(&self, step: usize) -> IpNet {
        let host = u8::try_from(step % 250 + 1).expect("small");
        IpNet::from(std::net::IpAddr::from([10, 0, self.index, host]))
    }

    fn want(&self, key: String, value: Option<Vec<u8>>) {
        let mut wanted = lock(&self.wanted);
        if let Some(value) = value {
            self.mirror.set(key.clone(), value.clone());
            wanted.insert(key, value);
        } else {
            self.mirror.remove(&key);
            wanted.remove(&key);
        }
    }

    /// Counts one further than whoever had the lock before.
    async fn count(&self) -> Result<u64, Error> {
        let held = self.client.lock(LOCK).await?;
        let counted = async {
            let next = counter(&self.client).await? + 1;
            let txn = held.guard(Txn::new()).put(COUNTER, next.to_string().as_bytes(), 0);
            let done = self.client.txn("count", COUNTER, txn).await?.done;
            if done { Ok(next) } else { Err(Error::LockLost(LOCK.into())) }
        };
        let counted = counted.await;
        // If it is not given back now, it is later.
        let _ = held.unlock().await;
        counted
    }

    /// Every key that this agent owns: its value and whether it is on this agent's lease.
    pub(super) fn owned(&self) -> BTreeMap<String, Vec<u8>> {
        let mut owned = lock(&self.wanted).clone();
        for (step, number) in &lock(&self.told).numbers {
            if *step < self.steps.load(Ordering::Relaxed) {
                let suffix = format!("172.18.0.{}", self.index);
                let key = keys::identity_value(&labels(*step).canonical(), &suffix);
                owned.insert(key, number.to_string().into_bytes());
            }
        }
        owned
    }
}

/// How far was counted.
pub(super) async fn counter(client: &Client) -> Result<u64, Error> {
    let there = client.get(COUNTER).await?.map(|kv| String::from_utf8(kv.value).expect("text"));
    Ok(there.map_or(0, |text| text.parse().expect("a number")))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
