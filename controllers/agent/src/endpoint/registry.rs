//! The table of this node's endpoints, and the numbers that they have.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use std::time::SystemTime;

use rand::RngExt as _;
use tokio::sync::watch;

use super::{EndpointState, LocalEndpoint, PodKey};

/// The endpoints of this node; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Endpoints(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: RwLock<Table>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    /// Every number in use; an endpoint that is being set up has none yet behind it.
    by_id: BTreeMap<u16, Option<Arc<LocalEndpoint>>>,
    by_attachment: HashMap<String, u16>,
    /// In the order in which they came: the last one counts, while a former one of the same
    /// pod's name ends.
    by_pod: HashMap<PodKey, BTreeSet<(u64, u16)>>,
    /// The last one that came.
    sequence: u64,
    /// The last states of each, oldest first. Up to 500 bytes an endpoint.
    log: BTreeMap<u16, VecDeque<(SystemTime, EndpointState)>>,
    /// Who changed last, the newest behind.
    changed: VecDeque<u16>,
    /// How many changes there were.
    changes: u64,
}

/// States of an endpoint that are remembered.
const REMEMBERED: usize = 32;
/// Changes that are remembered for those who follow them.
const FOLLOWED: usize = 4096;

/// An endpoint's number, and what it is now; nothing if it is gone.
pub type Changed = (u16, Option<Arc<LocalEndpoint>>);

impl Table {
    /// Notes that whoever follows has to look at an endpoint.
    fn tell(&mut self, id: u16) {
        self.changes += 1;
        self.changed.push_back(id);
        if self.changed.len() > FOLLOWED {
            self.changed.pop_front();
        }
    }

    fn note(&mut self, id: u16, state: EndpointState) {
        let log = self.log.entry(id).or_default();
        if log.back().is_none_or(|(_, last)| *last != state) {
            log.push_back((SystemTime::now(), state));
            if log.len() > REMEMBERED {
                log.pop_front();
            }
        }
    }
}

impl Endpoints {
    /// Every endpoint, by number.
    pub fn list(&self) -> Vec<Arc<LocalEndpoint>> {
        self.read().by_id.values().flatten().cloned().collect()
    }

    /// The endpoint of this number.
    pub fn get(&self, id: u16) -> Option<Arc<LocalEndpoint>> {
        self.read().by_id.get(&id)?.clone()
    }

    /// The last states of an endpoint and when it came into each, oldest first.
    pub fn log(&self, id: u16) -> Vec<(SystemTime, EndpointState)> {
        self.read().log.get(&id).into_iter().flatten().copied().collect()
    }

    /// The endpoint of this attachment (`container:interface`).
    pub fn of_attachment(&self, attachment: &str) -> Option<Arc<LocalEndpoint>> {
        let table = self.read();
        table.by_id.get(table.by_attachment.get(attachment)?)?.clone()
    }

    /// The endpoint with this device.
    pub fn of_device(&self, host_device: &str) -> Option<Arc<LocalEndpoint>> {
        self.list().into_iter().find(|endpoint| endpoint.host_device == host_device)
    }

    /// The endpoint that stands for this pod; one that is only waiting for its end does not.
    pub fn of_pod(&self, pod: &PodKey) -> Option<Arc<LocalEndpoint>> {
        let table = self.read();
        let of_pod = table.by_pod.get(pod)?.iter().rev();
        let mut of_pod = of_pod.filter_map(|(_, id)| table.by_id.get(id)?.clone());
        of_pod.find(|endpoint| endpoint.state != EndpointState::Disconnecting)
    }

    /// Who has changed since there were so many changes, in that order, and how many there are now. Nothing if that is
    /// too long ago to be remembered: then all have to be looked at.
    pub fn changes_since(&self, version: Option<u64>) -> (u64, Option<Vec<Changed>>) {
        let table = self.read();
        let now = table.changes;
        let missed = version.and_then(|version| usize::try_from(now.checked_sub(version)?).ok());
        let Some(missed) = missed.filter(|missed| *missed <= table.changed.len()) else {
            return (now, None);
        };
        let mut seen = HashSet::new();
        let last = table.changed.iter().rev().take(missed).filter(|id| seen.insert(**id));
        let mut changed: Vec<Changed> =
            last.map(|id| (*id, table.by_id.get(id).cloned().flatten())).collect();
        changed.reverse();
        (now, Some(changed))
    }

    /// Changes whenever an endpoint comes, goes or changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Takes a number that nobody has, at random: one that was just given back is unlikely to
    /// mean somebody else at once.
    pub(super) fn claim(&self) -> Option<u16> {
        let mut table = self.write();
        let free = usize::from(u16::MAX).checked_sub(table.by_id.len()).filter(|free| *free > 0)?;
        let start = rand::rng().random_range(1..=u16::MAX);
        // With few endpoints the first try fits; with many the search is bounded by their number.
        let mut candidates =
            (start..=u16::MAX).chain(1..start).take(usize::from(u16::MAX) - free + 1);
        let id = candidates.find(|id| !table.by_id.contains_key(id))?;
        table.by_id.insert(id, None);
        Some(id)
    }

    /// Adds an endpoint, for tests of other parts.
    #[cfg(test)]
    pub fn put_for_test(&self, endpoint: LocalEndpoint) {
        self.put(endpoint);
    }

    /// Keeps a number from all endpoints to come: it means the node itself.
    pub fn reserve(&self, id: u16) {
        self.write().by_id.entry(id).or_insert(None);
    }

    /// The place in time of an endpoint that comes now.
    pub(super) fn next_sequence(&self) -> u64 {
        let mut table = self.write();
        table.sequence += 1;
        table.sequence
    }

    /// Gives a claimed number back that came to nothing.
    pub(super) fn abandon(&self, id: u16) {
        let mut table = self.write();
        if table.by_id.get(&id).is_some_and(Option::is_none) {
            table.by_id.remove(&id);
            table.log.remove(&id);
        }
    }

    /// How far an endpoint is that has a number and nothing else yet.
    pub(super) fn note(&self, id: u16, state: EndpointState) {
        self.write().note(id, state);
    }

    /// How far an endpoint is, if it is still there and not on its way out.
    pub(super) fn mark(&self, endpoint: &LocalEndpoint, state: EndpointState) {
        let mut table = self.write();
        let Some(Some(present)) = table.by_id.get_mut(&endpoint.id) else { return };
        let same = present.state == state || present.state == EndpointState::Disconnecting;
        if same || present.attachment() != endpoint.attachment() {
            return;
        }
        *present = Arc::new(LocalEndpoint { state, ..LocalEndpoint::clone(present) });
        table.note(endpoint.id, state);
        table.tell(endpoint.id);
        drop(table);
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Adds an endpoint, or changes it; nothing happens if it is just so already.
    pub(super) fn put(&self, endpoint: LocalEndpoint) -> Arc<LocalEndpoint> {
        let mut table = self.write();
        if let Some(Some(present)) = table.by_id.get(&endpoint.id)
            && **present == endpoint
        {
            return Arc::clone(present);
        }
        let endpoint = Arc::new(endpoint);
        table.by_attachment.insert(endpoint.attachment(), endpoint.id);
        table.sequence = table.sequence.max(endpoint.sequence);
        let of_pod = table.by_pod.entry(endpoint.key()).or_default();
        of_pod.insert((endpoint.sequence, endpoint.id));
        table.note(endpoint.id, endpoint.state);
        table.by_id.insert(endpoint.id, Some(Arc::clone(&endpoint)));
        table.tell(endpoint.id);
        drop(table);
        self.0.version.send_modify(|version| *version += 1);
        endpoint
    }

    /// Removes an endpoint and frees its number.
    pub(super) fn remove(&self, id: u16) {
        let mut table = self.write();
        let Some(Some(endpoint)) = table.by_id.remove(&id) else { return };
        table.log.remove(&id);
        let attachment = endpoint.attachment();
        if table.by_attachment.get(&attachment) == Some(&id) {
            table.by_attachment.remove(&attachment);
        }
        let key = endpoint.key();
        if let Some(of_pod) = table.by_pod.get_mut(&key) {
            of_pod.remove(&(endpoint.sequence, id));
            if of_pod.is_empty() {
                table.by_pod.remove(&key);
            }
        }
        table.tell(id);
        drop(table);
        self.0.version.send_modify(|version| *version += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::{Endpoints, FOLLOWED};
    use crate::endpoint::testing::endpoint;
    use crate::endpoint::{EndpointState, LocalEndpoint};

    /// Whoever looks now and then at what has changed, however late, knows what there is.
    #[test]
    fn followers_know_all_endpoints() {
        let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| rand::rng().random());
        eprintln!("CILIA_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (endpoints, mut known, mut version) = (Endpoints::default(), BTreeMap::new(), None);
        for _ in 0..60 {
            // Now and then it is too late to be told one by one.
            let most = if random.random_range(0..20) == 0 { 2 * FOLLOWED } else { 20 };
            for _ in 0..random.random_range(0..most) {
                let id = random.random_range(1..6);
                let one = endpoint(id, &format!("c{id}"), "web");
                match random.random_range(0..4) {
                    0 => endpoints.remove(id),
                    1 => endpoints.mark(&one, EndpointState::Regenerating),
                    _ => drop(endpoints.put(LocalEndpoint { ifindex: random.random(), ..one })),
                }
            }
            let (now, changed) = endpoints.changes_since(version);
            version = Some(now);
            match changed {
                Some(changed) => {
                    for (id, now) in changed {
                        match now {
                            Some(now) => drop(known.insert(id, now)),
                            None => drop(known.remove(&id)),
                        }
                    }
                }
                None => known = endpoints.list().into_iter().map(|one| (one.id, one)).collect(),
            }
            assert_eq!(known.values().map(Arc::clone).collect::<Vec<_>>(), endpoints.list());
            assert_eq!(endpoints.changes_since(version).1.map(|changed| changed.len()), Some(0));
        }
    }

    #[test]
    fn an_endpoint_is_found_by_everything_it_is_known_by() {
        let endpoints = Endpoints::default();
        let mut changes = endpoints.subscribe();
        let web = endpoint(7, "c1", "web");
        endpoints.put(web.clone());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        endpoints.put(web.clone());
        assert!(!changes.has_changed().unwrap(), "the same again is no news");
        assert_eq!(endpoints.of_attachment("c1:eth0").unwrap().id, 7);

        endpoints.put(endpoint(9, "c2", "web"));
        assert_eq!(endpoints.of_pod(&web.key()).unwrap().id, 9, "the last one stands for the pod");
        endpoints.mark(&web, EndpointState::Regenerating);
        endpoints.mark(&web, EndpointState::Disconnecting);
        endpoints.mark(&web, EndpointState::Ready);
        assert_eq!(
            endpoints.get(7).unwrap().state,
            EndpointState::Disconnecting,
            "it is on its way"
        );
        endpoints.remove(7);
        endpoints.mark(&web, EndpointState::Ready);
        assert_eq!(endpoints.get(7), None, "what is gone stays gone");
        assert_eq!(endpoints.of_pod(&web.key()).unwrap().id, 9);
        endpoints.remove(9);
        endpoints.remove(9);
        assert!(endpoints.list().is_empty() && endpoints.of_pod(&web.key()).is_none());
    }

    #[test]
    fn the_pod_s_last_sandbox_counts_in_whatever_order_they_are_found() {
        let (first, second) = (endpoint(9, "c1", "web"), endpoint(7, "c2", "web"));
        let first = LocalEndpoint { sequence: 1, ..first };
        let second = LocalEndpoint { sequence: 2, ..second };
        for order in [[&first, &second], [&second, &first]] {
            let endpoints = Endpoints::default();
            for endpoint in order {
                endpoints.put(endpoint.clone());
            }
            assert_eq!(endpoints.of_pod(&first.key()).unwrap().id, 7);
            assert_eq!(endpoints.next_sequence(), 3);
            endpoints.put(LocalEndpoint { state: EndpointState::Disconnecting, ..second.clone() });
            assert_eq!(endpoints.of_pod(&first.key()).unwrap().id, 9, "the other one is ending");
        }
    }

    #[test]
    fn every_number_can_be_claimed_once() {
        let endpoints = Endpoints::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let id = endpoints.claim().unwrap();
            assert!(id != 0 && seen.insert(id));
        }
        endpoints.write().by_id.extend((1..=u16::MAX).map(|id| (id, None)));
        assert_eq!(endpoints.claim(), None);
        endpoints.abandon(300);
        assert_eq!(endpoints.claim(), Some(300));
    }
}
