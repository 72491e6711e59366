//! Writes the policy maps: what is in each, what should be, and the smallest way from one to the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::{Datapath, Policy as PolicyMap, PolicyEntry, PolicyKey, Table, converge};
use cilia_policy::{EndpointPolicy, NamedPorts, Repository};
use tokio::sync::oneshot;

use super::{EndpointView, Error};
use crate::endpoint::LocalEndpoint;

/// What is asked of the task that owns the maps.
#[derive(Debug)]
pub(super) enum Order {
    /// Keep an endpoint's map right, and say when it is.
    Keep(u16, Subject, Option<Done>),
    /// Remove an endpoint's map, and say when it is gone.
    Remove(u16, Done),
    /// Every endpoint of a former agent has been ordered.
    Restored,
}

/// Whom to tell what became of an order.
pub(super) type Done = oneshot::Sender<Result<(), Error>>;

/// What an endpoint's policy depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) identity: NumericIdentity,
    pub(super) labels: Arc<Labels>,
    pub(super) ports: NamedPorts,
}

impl Subject {
    pub(super) fn of(endpoint: &LocalEndpoint) -> Result<Self, Error> {
        let id = endpoint.id;
        let identity = endpoint.identity.ok_or(Error::NoIdentity { id })?;
        let port = |port: &crate::endpoint::NamedPort| {
            let proto = crate::ipcache::protocol(&port.protocol)?;
            Some(((port.name.to_ascii_lowercase().into(), proto), port.port))
        };
        let ports = endpoint.named_ports.iter().filter_map(port).collect();
        Ok(Self { identity, labels: Arc::new(endpoint.labels.clone()), ports })
    }
}

/// An endpoint and its map.
#[derive(Debug)]
pub(super) struct Realized {
    pub(super) subject: Subject,
    /// What the map holds, as far as this agent wrote it; nothing before the first time.
    written: Option<Arc<EndpointPolicy>>,
    revision: u64,
    error: Option<String>,
}

impl Realized {
    pub(super) fn new(subject: Subject) -> Self {
        Self { subject, written: None, revision: 0, error: None }
    }

    /// Whether a map should be compared as a whole.
    pub(super) fn compare(&mut self) {
        self.written = None;
    }

    /// The map isn't as wanted, and must be compared as a whole.
    pub(super) fn fail(&mut self, error: &Error) {
        self.error = Some(error.to_string());
        self.compare();
    }

    /// What to write for what is wanted now.
    pub(super) fn plan(&mut self, id: u16, repository: &mut Repository) -> Option<Plan> {
        let (identity, labels) = (self.subject.identity, &self.subject.labels);
        if repository.labels(identity).is_none() {
            repository.set_identity(identity, labels.clone());
        }
        let wanted = repository.policy(identity, &self.subject.ports)?;
        if self.written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &wanted)) {
            self.revision = repository.revision();
            return None;
        }
        Some(Plan { id, wanted, revision: repository.revision() })
    }

    pub(super) fn view(&self, id: u16) -> EndpointView {
        let (ingress, egress, entries) =
            self.written.as_ref().map_or((false, false, 0), |policy| {
                (policy.ingress.enforced, policy.egress.enforced, policy.len())
            });
        let (identity, revision, error) =
            (self.subject.identity, self.revision, self.error.clone());
        EndpointView { id, identity, revision, ingress, egress, entries, error }
    }
}

/// A map that must become another.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: u16,
    wanted: Arc<EndpointPolicy>,
    revision: u64,
}

impl Plan {
    /// Writes what is new or different. What is gone stays until [`Plan::remove`].
    pub(super) fn write(&self, realized: &mut Realized, datapath: &Datapath) -> Result<(), Error> {
        let id = self.id;
        let failed = |error: cilia_loader::Error| Error::Map { id, cause: error.to_string() };
        let map = datapath.policy(id).map_err(failed)?;
        let most = usize::try_from(map.max_entries()).unwrap_or(usize::MAX);
        let entries = self.wanted.len();
        if entries > most {
            return Err(Error::Overflow { id, entries, most });
        }
        let Some(written) = &realized.written else { return self.write_over_unknown(&map) };
        let difference = self.wanted.difference(written);
        if written.len() + difference.write.len() > most {
            // No room for both at once: the map is made right in one pass, removals first.
            for key in &difference.remove {
                map.remove(&kernel_key(key)).map_err(failed)?;
            }
        }
        for (key, entry) in &difference.write {
            map.upsert(&kernel_key(key), &kernel_entry(*entry)).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes beside what a former agent, or somebody else, has left in the map.
    fn write_over_unknown(&self, map: &Table<PolicyMap>) -> Result<(), Error> {
        let id = self.id;
        let failed = |error: cilia_loader::Error| Error::Map { id, cause: error.to_string() };
        let present: BTreeMap<_, _> = map.entries().map_err(failed)?.into_iter().collect();
        let wanted = self.kernel_entries();
        let missing = wanted.keys().filter(|key| !present.contains_key(*key)).count();
        if present.len() + missing > usize::try_from(map.max_entries()).unwrap_or(usize::MAX) {
            // No room for both at once: the map is made right in one pass, removals first.
            for key in present.keys().filter(|key| !wanted.contains_key(*key)) {
                map.remove(key).map_err(failed)?;
            }
        }
        for (key, entry) in wanted.iter().filter(|(key, entry)| present.get(*key) != Some(*entry)) {
            map.upsert(key, entry).map_err(failed)?;
        }
        Ok(())
    }

    fn kernel_entries(&self) -> BTreeMap<PolicyKey, PolicyEntry> {
        let entries = self.wanted.entries();
        entries.map(|(key, entry)| (kernel_key(&key), kernel_entry(entry))).collect()
    }

    /// Removes what is gone; with that the map is as wanted.
    pub(super) fn remove(self, realized: &mut Realized, datapath: &Datapath) -> Result<(), Error> {
        let id = self.id;
        let failed = |error: cilia_loader::Error| Error::Map { id, cause: error.to_string() };
        let map = datapath.policy(id).map_err(failed)?;
        if let Some(written) = &realized.written {
            for key in &self.wanted.difference(written).remove {
                map.remove(&kernel_key(key)).map_err(failed)?;
            }
        } else {
            converge(&map, &self.kernel_entries()).map_err(failed)?;
        }
        realized.written = Some(self.wanted);
        realized.revision = self.revision;
        realized.error = None;
        Ok(())
    }

    /// What withdrawn permissions there are must go even if the rest can't be written.
    pub(super) fn fail(self, realized: &mut Realized, datapath: &Datapath, error: &Error) {
        tracing::error!(%error, "policy not in place");
        if let (Some(written), Ok(map)) = (&realized.written, datapath.policy(self.id)) {
            for key in &self.wanted.difference(written).remove {
                // Tried again with the next comparison; the error that led here is shown.
                let _ = map.remove(&kernel_key(key));
            }
        }
        realized.fail(error);
    }
}

fn kernel_key(key: &cilia_policy::PolicyKey) -> PolicyKey {
    let cilia_policy::PolicyKey { identity, egress, proto, port, port_prefix } = *key;
    PolicyKey { identity, egress, proto, port, port_prefix }
}

fn kernel_entry(entry: cilia_policy::PolicyEntry) -> PolicyEntry {
    PolicyEntry { deny: entry.deny, cookie: entry.cookie }
}
