//! Writes the policy maps: what is in each, what should be, and the smallest way from one to the other.

mod entries;

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::{Datapath, Policy as PolicyMap, PolicyEntry, PolicyKey, Table, converge};
use cilia_policy::{EndpointPolicy, Fit, NamedPorts, Repository};
use tokio::sync::oneshot;

use entries::{fitting, is_view, order};

use super::{EndpointView, Error, NEARLY};
use crate::endpoint::LocalEndpoint;

/// What is asked of the task that owns the maps.
#[derive(Debug)]
pub(super) enum Order {
    /// Keep an endpoint's map right, and say when it is.
    Keep(u16, Subject, Option<Done>),
    /// Remove an endpoint's map, and say when it is gone.
    Remove(u16, Done),
    /// Record what the policy of an endpoint says, of all without, or enforce it.
    Audit(Option<u16>, bool, Done),
    /// Ask the rules something.
    Ask(Question),
    /// Every endpoint of a former agent has been ordered.
    Restored,
}

/// What is asked of the rules.
pub(super) struct Question(pub(super) Box<dyn FnOnce(&mut Repository) + Send>);

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Question")
    }
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
        let ports = named_ports(endpoint);
        Ok(Self { identity, labels: Arc::new(endpoint.labels.clone()), ports })
    }
}

/// How an endpoint names its ports.
pub fn named_ports(endpoint: &LocalEndpoint) -> NamedPorts {
    let port = |port: &crate::endpoint::NamedPort| {
        let proto = crate::ipcache::protocol(&port.protocol)?;
        Some(((port.name.to_ascii_lowercase().into(), proto), port.port))
    };
    endpoint.named_ports.iter().filter_map(port).collect()
}

/// What a map says, and in which form: with fewer entries, if it would have no room otherwise.
#[derive(Debug)]
struct Written {
    policy: Arc<EndpointPolicy>,
    form: Arc<EndpointPolicy>,
}

/// An endpoint and its map.
#[derive(Debug)]
pub(super) struct Realized {
    pub(super) subject: Subject,
    /// What the map holds, as far as this agent wrote it; nothing before the first time.
    written: Option<Written>,
    /// How a policy was found to have room, so that it isn't sought again.
    fitted: Option<(Arc<EndpointPolicy>, Fit)>,
    revision: u64,
    error: Option<String>,
    /// Entries that the policy takes, and that fit.
    needed: usize,
    most: usize,
    /// Whether policy is recorded only, if that is another than for all.
    pub(super) audit: Option<bool>,
}

impl Realized {
    pub(super) fn new(subject: Subject, audit: Option<bool>) -> Self {
        Self {
            subject,
            written: None,
            fitted: None,
            revision: 0,
            error: None,
            needed: 0,
            most: 0,
            audit,
        }
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

    /// Makes known what the rules say of it. True if what others' maps say may be different with that.
    pub(super) fn prepare(&self, repository: &mut Repository) -> bool {
        let (identity, labels) = (self.subject.identity, &self.subject.labels);
        let unknown = repository.labels(identity).is_none();
        if unknown {
            repository.set_identity(identity, labels.clone());
        }
        repository.prepare(identity) || unknown
    }

    /// What to write for what is wanted now.
    pub(super) fn plan(&mut self, id: u16, repository: &mut Repository) -> Option<Plan> {
        let identity = self.subject.identity;
        let wanted = repository.policy(identity, &self.subject.ports)?;
        if self.written.as_ref().is_some_and(|written| Arc::ptr_eq(&written.policy, &wanted)) {
            self.revision = repository.revision();
            return None;
        }
        let form = wanted.clone();
        Some(Plan { id, wanted, form, revision: repository.revision() })
    }

    /// The form in which a policy has room in its map.
    fn form(
        &mut self,
        id: u16,
        wanted: &Arc<EndpointPolicy>,
        most: usize,
    ) -> Result<Arc<EndpointPolicy>, Error> {
        let fit = match &self.fitted {
            Some((policy, fit)) if Arc::ptr_eq(policy, wanted) => fit.clone(),
            _ => wanted.fit(most),
        };
        self.fitted = Some((wanted.clone(), fit.clone()));
        let (form, needed) = match fit {
            Fit::Fits | Fit::Tight => (Some(wanted.clone()), wanted.len()),
            Fit::Aggregated(form) => {
                let needed = form.len();
                (Some(form), needed)
            }
            Fit::Overflow { needed } => (None, needed),
        };
        self.measure(id, needed, most);
        form.ok_or(Error::Overflow { id, entries: needed, most })
    }

    /// Takes note of how full the map gets, and says so while there still is room.
    fn measure(&mut self, id: u16, needed: usize, most: usize) {
        let full = |needed: usize| needed * NEARLY.1 >= most * NEARLY.0;
        if full(needed) && !full(self.needed) {
            tracing::warn!(
                endpoint = id,
                needed,
                most,
                "policy map is nearly full (bpf-policy-map-max)"
            );
        }
        (self.needed, self.most) = (needed, most);
    }

    /// What the API shows; `audit` is the setting of all endpoints.
    pub(super) fn view(&self, id: u16, audit: bool) -> EndpointView {
        let (ingress, egress, entries) =
            self.written.as_ref().map_or((false, false, 0), |Written { form, .. }| {
                (form.ingress.enforced, form.egress.enforced, form.len())
            });
        EndpointView {
            id,
            identity: self.subject.identity,
            revision: self.revision,
            ingress,
            egress,
            entries,
            needed: self.needed,
            most: self.most,
            audit: self.audit.unwrap_or(audit),
            error: self.error.clone(),
        }
    }
}

/// A map that must become another.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: u16,
    wanted: Arc<EndpointPolicy>,
    /// The form of it that is written.
    form: Arc<EndpointPolicy>,
    revision: u64,
}

impl Plan {
    /// Writes what is new or different. What is gone stays until [`Plan::remove`].
    pub(super) fn write(
        &mut self,
        realized: &mut Realized,
        datapath: &Datapath,
    ) -> Result<(), Error> {
        let id = self.id;
        let failed = |error: cilia_loader::Error| Error::Map { id, cause: error.to_string() };
        let map = datapath.policy(id).map_err(failed)?;
        let most = usize::try_from(map.max_entries()).unwrap_or(usize::MAX);
        self.form = realized.form(id, &self.wanted, most)?;
        let Some(Written { form: written, .. }) = &realized.written else {
            return self.write_over_unknown(&map);
        };
        let difference = self.form.difference(written);
        if written.len() + difference.write.len() > most {
            // No room for both at once: the map is made right in one pass, removals first.
            for key in &difference.remove {
                map.remove(&kernel_key(key)).map_err(failed)?;
            }
        }
        let fresh = difference.write.iter();
        let mut fresh: Vec<_> =
            fresh.map(|(key, entry)| (kernel_key(key), kernel_entry(*entry))).collect();
        fresh.sort_by_key(|(key, entry)| order(key, *entry));
        for (key, entry) in &fresh {
            map.upsert(key, entry).map_err(failed)?;
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
        let fresh = wanted.iter().filter(|(key, entry)| present.get(*key) != Some(*entry));
        let mut fresh: Vec<_> = fresh.collect();
        fresh.sort_by_key(|(key, entry)| order(key, **entry));
        for (key, entry) in fresh {
            map.upsert(key, entry).map_err(failed)?;
        }
        Ok(())
    }

    fn kernel_entries(&self) -> BTreeMap<PolicyKey, PolicyEntry> {
        let entries = self.form.entries();
        entries.map(|(key, entry)| (kernel_key(&key), kernel_entry(entry))).collect()
    }

    /// Removes what is gone; with that the map is as wanted.
    pub(super) fn remove(self, realized: &mut Realized, datapath: &Datapath) -> Result<(), Error> {
        let id = self.id;
        let failed = |error: cilia_loader::Error| Error::Map { id, cause: error.to_string() };
        let map = datapath.policy(id).map_err(failed)?;
        if let Some(Written { form: written, .. }) = &realized.written {
            let mut gone = self.form.difference(written).remove;
            // Who is sent on to a view still has to find it.
            gone.sort_by_key(|key| is_view(key.identity));
            for key in &gone {
                map.remove(&kernel_key(key)).map_err(failed)?;
            }
        } else {
            converge(&map, &self.kernel_entries()).map_err(failed)?;
        }
        realized.written = Some(Written { policy: self.wanted, form: self.form });
        realized.revision = self.revision;
        realized.error = None;
        Ok(())
    }

    /// Leaves the map so that it lets nothing through that the policy doesn't, though it may lack
    /// something that the policy lets through.
    pub(super) fn fail(
        self,
        realized: &mut Realized,
        datapath: &Datapath,
        lockdown: bool,
        error: &Error,
    ) {
        tracing::error!(%error, "policy not in place");
        let Ok(map) = datapath.policy(self.id) else { return realized.fail(error) };
        let failed = if let Error::Overflow { most, .. } = error {
            let most = if lockdown { 0 } else { *most };
            narrow(&map, &fitting(self.kernel_entries(), most))
        } else if let Some(Written { form: written, .. }) = &realized.written {
            let gone = self.form.difference(written).remove;
            gone.iter().try_for_each(|key| map.remove(&kernel_key(key)).map(drop))
        } else {
            Ok(())
        };
        if let Err(error) = failed {
            tracing::error!(%error, endpoint = self.id, "withdrawn permissions not removed");
        }
        realized.fail(error);
    }
}

/// Makes a map hold exactly this, removals first: there is no room for both.
fn narrow(
    map: &Table<PolicyMap>,
    wanted: &BTreeMap<PolicyKey, PolicyEntry>,
) -> Result<(), cilia_loader::Error> {
    for (key, _) in map.entries()? {
        if !wanted.contains_key(&key) {
            map.remove(&key)?;
        }
    }
    converge(map, wanted).map(drop)
}

fn kernel_key(key: &cilia_policy::PolicyKey) -> PolicyKey {
    let cilia_policy::PolicyKey { identity, egress, proto, port, port_prefix } = *key;
    PolicyKey { identity, egress, proto, port, port_prefix }
}

fn kernel_entry(entry: cilia_policy::PolicyEntry) -> PolicyEntry {
    PolicyEntry { deny: entry.deny, view: entry.view, cookie: entry.cookie }
}
