//! What a cluster has told, so that it can be taken back; and what its keys and values mean.
//!
//! After a reconnection everything is stale until it is told again; what is not told by the end of
//! the list is gone. A value that means nothing leaves what was known before. About 100 bytes a key.
//!
//! What goes of nodes and addresses is waited for: where an agent is silent for so long that its keys go with its
//! lease, its cluster's operator puts them back. What comes takes effect at once, and so does the end of a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::labels::SOURCE_K8S;
use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::{CLUSTER_LABEL as CLUSTER, Space};
use ipnet::IpNet;
use tokio::time::Instant;

use super::Change;
use crate::messages::KeyValue;
use crate::value::{Expected, IpIdentityPair, decode, parse_labels};
use crate::watch::Event;
use crate::{Error, keys, value};

/// What a prefix holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Identities,
    Ips,
    Services,
}

/// What there is of one kind.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) kind: Kind,
    prefix: String,
    expected: Expected,
    space: Space,
    /// What was told by the ends of the keys, and whether that is stale.
    told: HashMap<String, (Told, bool)>,
    /// For how long what goes is waited for.
    grace: Duration,
    /// What has gone, and until when it may come back.
    going: BTreeMap<String, Instant>,
    /// The same in order.
    ends: BTreeSet<(Instant, String)>,
}

/// Enough of what was told to take it back.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Node,
    Identity(NumericIdentity),
    Ip(IpNet),
    Service(String, String),
}

impl Told {
    fn gone(&self, name: &str) -> Change {
        match self {
            Self::Node => Change::NodeGone(name.into()),
            Self::Identity(number) => Change::IdentityGone(*number),
            Self::Ip(prefix) => Change::IpGone(*prefix),
            Self::Service(namespace, name) => Change::ServiceGone(namespace.clone(), name.clone()),
        }
    }
}

impl Import {
    /// What goes is waited for so long: addresses for `grace`, nodes three times as long.
    pub(super) fn new(kind: Kind, space: Space, grace: Duration) -> Self {
        let expected = Expected { cluster: String::new(), id: 0 };
        let grace = match kind {
            Kind::Nodes => 3 * grace,
            Kind::Ips => grace,
            // Nobody puts these back: operators write them, and one that is away has a successor by then.
            Kind::Identities | Kind::Services => Duration::ZERO,
        };
        let (going, ends) = (BTreeMap::new(), BTreeSet::new());
        let (prefix, told) = (String::new(), HashMap::new());
        Self { kind, prefix, expected, space, told, grace, going, ends }
    }

    /// It will be told anew, from this place, by this cluster.
    pub(super) fn begin(&mut self, prefix: String, expected: Expected, space: Space) {
        (self.prefix, self.expected, self.space) = (prefix, expected, space);
        for (_, stale) in self.told.values_mut() {
            *stale = true;
        }
        // Until it is told what is there, nothing ends; what went before ends no later for it.
        self.ends.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.told.len()
    }

    pub(super) fn take(&mut self, event: Event, now: Instant) -> Vec<Change> {
        let gone: Vec<String> = match event {
            Event::Put(kv) => return self.put(&kv).into_iter().collect(),
            Event::Deleted(key) => {
                let name = key.strip_prefix(&self.prefix).unwrap_or_default();
                if self.told.contains_key(name) { vec![name.to_owned()] } else { Vec::new() }
            }
            Event::Listed => {
                let stale = self.told.iter().filter(|(_, (_, stale))| *stale);
                stale.map(|(name, _)| name.clone()).collect()
            }
            Event::Progress(_) => Vec::new(),
        };
        if self.grace.is_zero() {
            return gone.iter().filter_map(|name| self.end(name)).collect();
        }
        for name in gone {
            let end = *self.going.entry(name.clone()).or_insert(now + self.grace);
            self.ends.insert((end, name));
        }
        Vec::new()
    }

    /// When the next one of what has gone is waited for no more.
    pub(super) fn next(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// What has gone for good by now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Change> {
        let mut gone = Vec::new();
        while let Some((end, name)) = self.ends.pop_first() {
            if end > now {
                self.ends.insert((end, name));
                break;
            }
            self.going.remove(&name);
            gone.extend(self.end(&name));
        }
        gone
    }

    fn end(&mut self, name: &str) -> Option<Change> {
        self.told.remove(name).map(|(told, _)| told.gone(name))
    }

    /// Takes everything back.
    pub(super) fn drain(&mut self) -> Vec<Change> {
        self.going.clear();
        self.ends.clear();
        self.told.drain().map(|(name, (told, _))| told.gone(&name)).collect()
    }

    fn put(&mut self, kv: &KeyValue) -> Option<Change> {
        let key = String::from_utf8_lossy(&kv.key);
        let name = key.strip_prefix(&self.prefix)?;
        match self.read(name, kv) {
            Ok(None) => None,
            Ok(Some((told, change))) => {
                if let Some(end) = self.going.remove(name) {
                    self.ends.remove(&(end, name.to_owned()));
                }
                self.told.insert(name.into(), (told, false));
                Some(change)
            }
            Err(error) => {
                let cluster = &self.expected.cluster;
                tracing::warn!(%error, cluster, "ignoring a value of another cluster");
                // What had gone before is not known to be so again: it may be another's by now.
                if !self.going.contains_key(name)
                    && let Some((_, stale)) = self.told.get_mut(name)
                {
                    *stale = false;
                }
                None
            }
        }
    }

    /// Nothing for what is none of that cluster's business.
    fn read(&self, name: &str, kv: &KeyValue) -> Result<Option<(Told, Change)>, Error> {
        let expected = &self.expected;
        Ok(Some(match self.kind {
            Kind::Nodes => {
                let node: value::Node = decode(name, &kv.value)?;
                node.check(name, expected)?;
                (Told::Node, Change::Node(Box::new(node)))
            }
            Kind::Services => {
                let service: value::ClusterService = decode(name, &kv.value)?;
                service.check(name, expected)?;
                let told = Told::Service(service.namespace.clone(), service.name.clone());
                (told, Change::Service(Box::new(service)))
            }
            Kind::Ips => {
                let pair: IpIdentityPair = decode(name, &kv.value)?;
                let owned = |id| self.space.contains(NumericIdentity(id));
                let prefix = pair.check(name, Some((expected, &owned)))?;
                (Told::Ip(prefix), Change::Ip(prefix, Box::new(pair)))
            }
            Kind::Identities => {
                let bad = |reason: &str| Error::Value { key: name.into(), reason: reason.into() };
                let number = keys::parse_identity_id(&keys::identity_ids_of(name))
                    .map(NumericIdentity)
                    .ok_or_else(|| bad("the key ends with no number"))?;
                if !self.space.contains(number) {
                    // Several clusters may share an etcd.
                    return Ok(None);
                }
                let text = String::from_utf8_lossy(&kv.value);
                let labels = parse_labels(&text).ok_or_else(|| bad("labels are not canonical"))?;
                of_cluster(&labels, &expected.cluster).map_err(|reason| bad(&reason))?;
                (Told::Identity(number), Change::Identity(number, Arc::new(labels)))
            }
        }))
    }
}

/// Errors for labels that are not a pod's of this cluster: one cluster must not speak for another.
fn of_cluster(labels: &Labels, cluster: &str) -> Result<(), String> {
    let mut said = labels.iter().filter(|(name, _)| name.key == CLUSTER).peekable();
    if said.peek().is_none() {
        return Err(format!("label {CLUSTER} is missing"));
    }
    let other = said.find(|(name, value)| name.source != SOURCE_K8S || *value != cluster);
    other.map_or(Ok(()), |(name, value)| {
        Err(format!("label {}:{CLUSTER} is {value:?}, not k8s' {cluster:?}", name.source))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_identity::Space;
    use tokio::time::Instant;

    use super::{Change, Event, Expected, Import, IpIdentityPair, KeyValue, Kind};
    use crate::value::encode;

    const GRACE: Duration = Duration::from_secs(10);

    fn gone(address: &str) -> Change {
        Change::IpGone(format!("{address}/32").parse().unwrap())
    }

    fn ip(address: &str, id: u32) -> Event {
        let pair = IpIdentityPair::new(format!("{address}/32").parse().unwrap(), id, None);
        let key = format!("p/{address}").into_bytes();
        Event::Put(KeyValue { key, value: encode(&pair), ..KeyValue::default() })
    }

    fn import() -> Import {
        let space = Space::new(2, 255).unwrap();
        let mut import = Import::new(Kind::Ips, space, GRACE);
        import.begin("p/".into(), Expected { cluster: "west".into(), id: 2 }, space);
        import
    }

    fn again(import: &mut Import) {
        let space = Space::new(2, 255).unwrap();
        import.begin("p/".into(), Expected { cluster: "west".into(), id: 2 }, space);
    }

    #[test]
    fn what_is_not_told_again_is_gone() {
        let (mut import, start) = (import(), Instant::now());
        import.take(ip("10.2.0.1", 2 << 16), start);
        import.take(ip("10.2.0.2", 2 << 16), start);
        assert_eq!(import.take(Event::Listed, start), []);
        again(&mut import);
        import.take(ip("10.2.0.2", 2 << 16), start);
        assert_eq!(import.take(Event::Listed, start), [], "it may come back");
        assert_eq!(import.next(), Some(start + GRACE));
        assert_eq!(import.due(start + GRACE), [gone("10.2.0.1")]);
        assert_eq!(import.take(Event::Deleted("p/10.2.0.1".into()), start), []);
        assert_eq!((import.next(), import.len()), (None, 1));
        assert_eq!(import.drain(), [gone("10.2.0.2")]);
        assert_eq!(import.len(), 0);
    }

    #[test]
    fn what_comes_back_was_never_gone() {
        let (mut import, start) = (import(), Instant::now());
        let later = start + GRACE;
        for address in ["10.2.0.1", "10.2.0.2", "10.2.0.3"] {
            import.take(ip(address, 2 << 16), start);
            assert_eq!(import.take(Event::Deleted(format!("p/{address}")), start), []);
        }
        // Another's by now: at once.
        assert_eq!(import.take(ip("10.2.0.1", (2 << 16) + 1), start).len(), 1);
        // Nonsense does not say that it is as it was.
        import.take(ip("10.2.0.2", 3 << 16), start);
        assert_eq!(import.due(later), [gone("10.2.0.2"), gone("10.2.0.3")]);
        assert_eq!((import.due(later), import.next(), import.len()), (vec![], None, 1));
        // Of a cluster that is connected anew nothing ends before it has told what is there.
        import.take(Event::Deleted("p/10.2.0.1".into()), start);
        again(&mut import);
        assert_eq!((import.due(later), import.next()), (vec![], None));
        import.take(ip("10.2.0.1", 2 << 16), later);
        import.take(Event::Listed, later);
        assert_eq!(import.drain().len(), 1);
        assert_eq!(import.next(), None);
    }

    /// However often a cluster is connected anew, and whatever nonsense it tells meanwhile.
    #[test]
    fn what_has_gone_ends_in_time() {
        let (mut import, start) = (import(), Instant::now());
        import.take(ip("10.2.0.1", 2 << 16), start);
        import.take(Event::Deleted("p/10.2.0.1".into()), start);
        for seconds in [4, 8, 12] {
            let now = start + Duration::from_secs(seconds);
            again(&mut import);
            import.take(ip("10.2.0.1", 3 << 16), now);
            assert_eq!(import.take(Event::Listed, now), []);
            assert_eq!(import.next(), Some(start + GRACE));
        }
        assert_eq!(import.due(start + GRACE), [gone("10.2.0.1")]);
        assert_eq!((import.next(), import.len()), (None, 0));
    }

    #[test]
    fn identities_are_of_their_own_cluster() {
        let space = Space::new(2, 255).unwrap();
        let mut import = Import::new(Kind::Identities, space, GRACE);
        import.begin("p/".into(), Expected { cluster: "west".into(), id: 2 }, space);
        for (labels, want) in [
            ("k8s:app=web;k8s:io.cilium.k8s.policy.cluster=west;", 1),
            ("k8s:app=web;k8s:io.cilium.k8s.policy.cluster=east;", 0),
            ("k8s:app=web;any:io.cilium.k8s.policy.cluster=west;", 0),
            ("any:io.cilium.k8s.policy.cluster=west;k8s:io.cilium.k8s.policy.cluster=west;", 0),
            ("k8s:app=web;", 0),
        ] {
            let (key, value) = (b"p/131072".to_vec(), labels.as_bytes().to_vec());
            let event = Event::Put(KeyValue { key, value, ..KeyValue::default() });
            assert_eq!(import.take(event, Instant::now()).len(), want, "{labels}");
        }
    }

    #[test]
    fn nonsense_leaves_what_was_known() {
        let (mut import, start) = (import(), Instant::now());
        import.take(ip("10.2.0.1", 2 << 16), start);
        again(&mut import);
        assert_eq!(import.take(ip("10.2.0.1", 3 << 16), start), [], "another cluster's identity");
        assert_eq!(import.take(Event::Listed, start), []);
        assert_eq!((import.len(), import.next()), (1, None));
        assert_eq!(import.take(ip("10.2.0.9", 6), start).len(), 1, "a reserved identity is fine");
    }
}
