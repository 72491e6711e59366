//! Decides which `CiliumIdentity` stands for each pod's labels, and what to write about it, where the operator
//! makes identities.
//!
//! Level-triggered: pods, identities and their users are told as they are now, in any order and as often as
//! one likes; [`Managed::plan`] then says what one identity needs. Nothing is to be asked before everything
//! that exists has been told: what isn't known looks free. Identities are never deleted here.
//!
//! About 60 bytes a pod, 60 an endpoint that uses an identity, and 250 an identity, beside labels, which are kept
//! once.
//!
//! The same number is drawn as agents would draw: where both make identities, one of them finds it made.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use rand::Rng;

use crate::users::Few;
use crate::{Index, Pool, Record, Space};

/// What an identity needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan<K> {
    /// It is as it should be.
    Nothing,
    /// It has to be made, with these labels.
    Create(Arc<Labels>),
    /// Somebody has changed its labels: these are what it stands for.
    Restore(Arc<Labels>),
    /// The number is another's, or the labels have a number by now: these pods have to be placed again.
    Again(Vec<K>),
}

/// Where a pod was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The identity of the pod.
    pub identity: NumericIdentity,
    /// Identities to look at.
    pub look: Vec<NumericIdentity>,
}

/// Every number of the cluster is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("every identity number of this cluster is taken")]
pub struct Full;

/// Identities as they are and as pods need them. `K` names pods, and what lists identities as in use.
#[derive(Debug)]
pub struct Managed<K> {
    pool: Pool,
    existing: Index,
    wanted: BTreeMap<NumericIdentity, Wanted>,
    /// The number that new pods of a label set get.
    chosen: HashMap<Arc<Labels>, NumericIdentity>,
    pods: HashMap<K, NumericIdentity>,
    published: HashMap<K, Few>,
    /// By how many pods and publishers; nothing of those without.
    uses: HashMap<NumericIdentity, u32>,
    /// What was planned to be written, and whether the watch has told of it since.
    asked: BTreeMap<NumericIdentity, bool>,
}

#[derive(Debug)]
struct Wanted {
    labels: Arc<Labels>,
    /// When the object was made that has had these labels: whoever changes them is wrong, and not we. Another
    /// object of this number is another's.
    ours: Option<i64>,
}

impl<K: Clone + Eq + Hash> Managed<K> {
    /// Nothing is known yet.
    pub fn new(space: Space) -> Self {
        Self::with_pool(Pool::new(space))
    }

    pub(crate) fn with_pool(pool: Pool) -> Self {
        Self {
            pool,
            existing: Index::default(),
            wanted: BTreeMap::new(),
            chosen: HashMap::new(),
            pods: HashMap::new(),
            published: HashMap::new(),
            uses: HashMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// The watch says that an identity exists, so.
    pub fn seen(&mut self, identity: NumericIdentity, record: Record) {
        self.told(identity);
        self.know(identity, record);
    }

    fn know(&mut self, identity: NumericIdentity, mut record: Record) {
        self.pool.take(identity);
        if let Some((labels, _)) = self.chosen.get_key_value(&record.labels) {
            record.labels = Arc::clone(labels);
        }
        self.existing.upsert(identity, record);
    }

    /// The API server answers what was planned: an identity exists, so. What the watch has said since then counts
    /// more: that the identity is gone again, say.
    pub fn wrote(&mut self, identity: NumericIdentity, record: Record) {
        if let Some(wanted) = self.wanted.get_mut(&identity)
            && wanted.labels == record.labels
        {
            wanted.ours = Some(record.created);
        }
        if self.asked.remove(&identity) != Some(true) {
            self.know(identity, record);
        }
    }

    fn told(&mut self, identity: NumericIdentity) {
        if let Some(told) = self.asked.get_mut(&identity) {
            *told = true;
        }
    }

    /// The watch says that an identity does not exist any more.
    pub fn gone(&mut self, identity: NumericIdentity) {
        self.told(identity);
        if let Some(wanted) = self.wanted.get_mut(&identity) {
            wanted.ours = None;
        }
        self.existing.remove(identity);
        self.free(identity);
    }

    /// Somebody lists these identities as in use now; those to look at.
    pub fn published(&mut self, who: K, identities: Vec<NumericIdentity>) -> Vec<NumericIdentity> {
        for identity in &identities {
            self.pool.take(*identity);
            self.begin(*identity);
        }
        let before = if identities.is_empty() {
            self.published.remove(&who)
        } else {
            self.published.insert(who, Few::new(identities))
        };
        let before = before.as_deref().unwrap_or_default().iter().copied();
        before.filter(|identity| self.end(*identity)).collect()
    }

    /// The pod has these labels; which identity that is.
    pub fn place<R: Rng + ?Sized>(
        &mut self,
        pod: K,
        labels: Arc<Labels>,
        rng: &mut R,
    ) -> Result<Placed, Full> {
        let mut look = Vec::new();
        let known = self.chosen.get(&labels).copied();
        let identity = if let Some(identity) = known.or_else(|| self.adopt(&labels)) {
            identity
        } else {
            let identity = self.pool.draw_for(&labels, rng).ok_or(Full)?;
            self.want(identity, labels, None);
            look.push(identity);
            identity
        };
        self.begin(identity);
        if let Some(before) = self.pods.insert(pod, identity)
            && self.end(before)
        {
            look.push(before);
        }
        Ok(Placed { identity, look })
    }

    /// The pod is gone, or needs no identity; the identity to look at.
    pub fn pod_gone(&mut self, pod: &K) -> Option<NumericIdentity> {
        self.pods.remove(pod).filter(|identity| self.end(*identity))
    }

    /// What an identity needs, given everything that was told.
    pub fn plan(&mut self, identity: NumericIdentity) -> Plan<K> {
        let plan = self.look(identity);
        if matches!(plan, Plan::Create(_) | Plan::Restore(_)) {
            self.asked.insert(identity, false);
        } else {
            self.asked.remove(&identity);
        }
        plan
    }

    fn look(&mut self, identity: NumericIdentity) -> Plan<K> {
        let used = self.uses.contains_key(&identity);
        let record = self.existing.get(identity);
        let Some(wanted) = self.wanted.get_mut(&identity) else {
            // An older one than that which pods were given turned up: agents use this one.
            let labels = record.map(|record| &record.labels);
            let younger = labels.and_then(|labels| self.chosen.get(labels)).copied();
            let oldest = labels.and_then(|labels| self.existing.number(labels)) == Some(identity);
            return match younger.filter(|_| oldest) {
                Some(younger) => Plan::Again(self.give_up(younger)),
                None => Plan::Nothing,
            };
        };
        match record {
            Some(record) if record.labels == wanted.labels => {
                wanted.ours = Some(record.created);
                Plan::Nothing
            }
            Some(record) if wanted.ours == Some(record.created) => {
                Plan::Restore(Arc::clone(&wanted.labels))
            }
            Some(_) => Plan::Again(self.give_up(identity)),
            None if !used => {
                self.unwant(identity);
                Plan::Nothing
            }
            // Before ours was made, somebody else may have made one for these labels.
            None => {
                let (labels, new) = (Arc::clone(&wanted.labels), wanted.ours.is_none());
                let other = self.existing.number(&labels).filter(|_| new);
                other.map_or_else(
                    || Plan::Create(Arc::clone(&labels)),
                    |other| self.yield_to(other, identity, &labels),
                )
            }
        }
    }

    /// Somebody else has made `other` for these labels, before `identity` was made for them.
    fn yield_to(
        &mut self,
        other: NumericIdentity,
        identity: NumericIdentity,
        labels: &Arc<Labels>,
    ) -> Plan<K> {
        let created = self.existing.get(other).map(|record| record.created);
        let mut pods = match self.wanted.get(&other) {
            // It is about to get other labels back, and can't be had.
            Some(wanted) if wanted.ours == created => return Plan::Create(Arc::clone(labels)),
            // It can't be had as long as it is wanted for other labels, which will never be its own: without this
            // the pods would be placed where they are, and sent away again, until somebody looks at the other one.
            Some(_) => self.give_up(other),
            None => Vec::new(),
        };
        pods.extend(self.give_up(identity));
        Plan::Again(pods)
    }

    /// Wants the identity that all agents choose for these labels, if there is one.
    fn adopt(&mut self, labels: &Arc<Labels>) -> Option<NumericIdentity> {
        let identity = self.existing.number(labels)?;
        let labels = self.existing.shared(labels).unwrap_or(labels).clone();
        // One that is wanted for other labels is about to get them back.
        if self.wanted.contains_key(&identity) {
            return None;
        }
        let created = self.existing.get(identity)?.created;
        self.want(identity, labels, Some(created));
        Some(identity)
    }

    fn want(&mut self, identity: NumericIdentity, labels: Arc<Labels>, ours: Option<i64>) {
        self.chosen.insert(Arc::clone(&labels), identity);
        self.wanted.insert(identity, Wanted { labels, ours });
    }

    fn unwant(&mut self, identity: NumericIdentity) {
        if let Some(wanted) = self.wanted.remove(&identity) {
            self.chosen.remove(&wanted.labels);
            self.free(identity);
        }
    }

    /// Leaves the number to whoever has it; its pods.
    fn give_up(&mut self, identity: NumericIdentity) -> Vec<K> {
        self.unwant(identity);
        let has =
            |(pod, number): (&K, &NumericIdentity)| (*number == identity).then(|| pod.clone());
        let pods: Vec<K> = self.pods.iter().filter_map(has).collect();
        for pod in &pods {
            self.pod_gone(pod);
        }
        pods
    }

    /// Gives the number back if nobody has it.
    fn free(&mut self, identity: NumericIdentity) {
        let taken = self.existing.get(identity).is_some()
            || self.wanted.contains_key(&identity)
            || self.uses.contains_key(&identity);
        if !taken {
            self.pool.release(identity);
        }
    }

    fn begin(&mut self, identity: NumericIdentity) {
        *self.uses.entry(identity).or_default() += 1;
    }

    /// One user less; `true` if that was the last.
    fn end(&mut self, identity: NumericIdentity) -> bool {
        let Some(count) = self.uses.get_mut(&identity) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.uses.remove(&identity);
            self.free(identity);
        }
        last
    }
}

#[cfg(test)]
mod tests;
