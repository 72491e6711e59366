//! What a cluster has told, so that it can be taken back; and what its keys and values mean.
//!
//! After a reconnection everything is stale until it is told again; what is not told by the end of
//! the list is gone. A value that means nothing leaves what was known before. About 100 bytes a key.

use std::collections::HashMap;
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_identity::Space;
use ipnet::IpNet;

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
    pub(super) fn new(kind: Kind, space: Space) -> Self {
        let expected = Expected { cluster: String::new(), id: 0 };
        Self { kind, prefix: String::new(), expected, space, told: HashMap::new() }
    }

    /// It will be told anew, from this place, by this cluster.
    pub(super) fn begin(&mut self, prefix: String, expected: Expected, space: Space) {
        (self.prefix, self.expected, self.space) = (prefix, expected, space);
        for (_, stale) in self.told.values_mut() {
            *stale = true;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.told.len()
    }

    pub(super) fn take(&mut self, event: Event) -> Vec<Change> {
        match event {
            Event::Put(kv) => self.put(&kv).into_iter().collect(),
            Event::Deleted(key) => {
                let name = key.strip_prefix(&self.prefix).unwrap_or_default();
                let told = self.told.remove(name);
                told.map(|(told, _)| told.gone(name)).into_iter().collect()
            }
            Event::Listed => {
                let gone = self.told.extract_if(|_, (_, stale)| *stale);
                gone.map(|(name, (told, _))| told.gone(&name)).collect()
            }
            Event::Progress(_) => Vec::new(),
        }
    }

    /// Takes everything back.
    pub(super) fn drain(&mut self) -> Vec<Change> {
        self.told.drain().map(|(name, (told, _))| told.gone(&name)).collect()
    }

    fn put(&mut self, kv: &KeyValue) -> Option<Change> {
        let key = String::from_utf8_lossy(&kv.key);
        let name = key.strip_prefix(&self.prefix)?;
        match self.read(name, kv) {
            Ok(None) => None,
            Ok(Some((told, change))) => {
                self.told.insert(name.into(), (told, false));
                Some(change)
            }
            Err(error) => {
                let cluster = &self.expected.cluster;
                tracing::warn!(%error, cluster, "ignoring a value of another cluster");
                if let Some((_, stale)) = self.told.get_mut(name) {
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
                (Told::Identity(number), Change::Identity(number, Arc::new(labels)))
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use cilia_identity::Space;

    use super::{Change, Event, Expected, Import, IpIdentityPair, KeyValue, Kind};
    use crate::value::encode;

    fn ip(address: &str, id: u32) -> Event {
        let pair = IpIdentityPair::new(format!("{address}/32").parse().unwrap(), id, None);
        let key = format!("p/{address}").into_bytes();
        Event::Put(KeyValue { key, value: encode(&pair), ..KeyValue::default() })
    }

    fn import() -> Import {
        let space = Space::new(2, 255).unwrap();
        let mut import = Import::new(Kind::Ips, space);
        import.begin("p/".into(), Expected { cluster: "west".into(), id: 2 }, space);
        import
    }

    fn again(import: &mut Import) {
        let space = Space::new(2, 255).unwrap();
        import.begin("p/".into(), Expected { cluster: "west".into(), id: 2 }, space);
    }

    #[test]
    fn what_is_not_told_again_is_gone() {
        let mut import = import();
        import.take(ip("10.2.0.1", 2 << 16));
        import.take(ip("10.2.0.2", 2 << 16));
        assert_eq!(import.take(Event::Listed), []);
        again(&mut import);
        import.take(ip("10.2.0.2", 2 << 16));
        assert_eq!(import.take(Event::Listed), [Change::IpGone("10.2.0.1/32".parse().unwrap())]);
        assert_eq!(import.take(Event::Deleted("p/10.2.0.1".into())), []);
        assert_eq!(import.drain(), [Change::IpGone("10.2.0.2/32".parse().unwrap())]);
        assert_eq!(import.len(), 0);
    }

    #[test]
    fn nonsense_leaves_what_was_known() {
        let mut import = import();
        import.take(ip("10.2.0.1", 2 << 16));
        again(&mut import);
        assert_eq!(import.take(ip("10.2.0.1", 3 << 16)), [], "another cluster's identity");
        assert_eq!(import.take(Event::Listed), []);
        assert_eq!(import.len(), 1);
        assert_eq!(import.take(ip("10.2.0.9", 6)).len(), 1, "a reserved identity is fine");
    }
}
