//! Decides who is behind a prefix when several sources speak of it.
//!
//! A source (a slice, the nodes, ...) says all that it has to say at once; what it said before is
//! replaced. A prefix is dropped only when no source speaks of it any more: an endpoint that moves
//! from slice to slice is never without its entry. About 90 bytes for each prefix.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_loader::RemoteEndpoint;
use cilia_policy::{ClusterPorts, PortName};

/// An address and how many of its bits count: a key of the map.
pub type Prefix = (IpAddr, u8);

/// A port of a pod: the pod's identity, the port's name with its protocol, and its number.
pub(super) type PodPort = (NumericIdentity, PortName, u16);

/// Who says so; the later kinds win.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// A policy names the prefix.
    Policy,
    /// A slice, or an endpoint where there are no slices.
    Cluster(Arc<str>),
    /// The cluster's nodes.
    Nodes,
    /// The node's own endpoint of this number.
    Local(u16),
}

impl Origin {
    /// The name that `cilia ip list` shows.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Policy => "generated",
            Self::Cluster(_) | Self::Nodes => "custom-resource",
            Self::Local(_) => "agent-local",
        }
    }
}

/// All that a source says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) prefixes: Vec<(Prefix, RemoteEndpoint)>,
    pub(super) ports: Vec<PodPort>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// What is said of a prefix, the winner last.
    claims: BTreeMap<Prefix, Vec<(Origin, RemoteEndpoint)>>,
    by_origin: HashMap<Origin, (Vec<Prefix>, Vec<PodPort>)>,
    /// How many pods of an identity give a name a number.
    names: BTreeMap<PodPort, u32>,
}

/// Prefixes whose entry must be looked at, and whether a port name means something else now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) prefixes: BTreeSet<Prefix>,
    pub(super) names: bool,
    /// Addresses of this node's endpoints that the cluster does not list any more.
    pub(super) unlisted: Vec<IpAddr>,
}

impl Table {
    /// A source says all that it has to say; nothing, if it is gone.
    pub(super) fn set(&mut self, origin: &Origin, said: Said) -> Touched {
        let mut touched = Touched::default();
        let (old, old_ports) = self.by_origin.remove(origin).unwrap_or_default();
        let kept: BTreeSet<Prefix> = said.prefixes.iter().map(|(prefix, _)| *prefix).collect();
        for prefix in old.iter().filter(|prefix| !kept.contains(*prefix)) {
            if let Some(claims) = self.claims.get_mut(prefix) {
                claims.retain(|(who, _)| who != origin);
                if claims.is_empty() {
                    self.claims.remove(prefix);
                }
                touched.prefixes.insert(*prefix);
            }
            if matches!(origin, Origin::Cluster(_)) && self.only_local(prefix) {
                touched.unlisted.push(prefix.0);
            }
        }
        for (prefix, value) in &said.prefixes {
            let claims = self.claims.entry(*prefix).or_default();
            if claims.iter().any(|(who, known)| who == origin && known == value) {
                continue;
            }
            claims.retain(|(who, _)| who != origin);
            // Behind all of its rank: of two slices the one that spoke last is right.
            let rank = |origin: &Origin| match origin {
                Origin::Policy => 0,
                Origin::Cluster(_) => 1,
                Origin::Nodes => 2,
                Origin::Local(_) => 3,
            };
            let at = claims.partition_point(|(who, _)| rank(who) <= rank(origin));
            claims.insert(at, (origin.clone(), *value));
            touched.prefixes.insert(*prefix);
        }
        touched.names = self.count_names(&old_ports, &said.ports);
        if !said.prefixes.is_empty() || !said.ports.is_empty() {
            let prefixes = said.prefixes.iter().map(|(prefix, _)| *prefix).collect();
            self.by_origin.insert(origin.clone(), (prefixes, said.ports));
        }
        touched
    }

    /// Whether a local endpoint has this address, and no slice says so.
    fn only_local(&self, prefix: &Prefix) -> bool {
        let claims = self.claims.get(prefix).map(Vec::as_slice).unwrap_or_default();
        let said_by = |is: fn(&Origin) -> bool| claims.iter().any(|(who, _)| is(who));
        said_by(|who| matches!(who, Origin::Local(_)))
            && !said_by(|who| matches!(who, Origin::Cluster(_)))
    }

    /// Whether, of some prefix that this source speaks of, nobody else in the cluster does.
    pub(super) fn says_alone(&self, origin: &Origin) -> bool {
        let prefixes = self.by_origin.get(origin).map_or(&[][..], |(prefixes, _)| prefixes);
        let others = |prefix| {
            let claims = self.claims.get(prefix).map(Vec::as_slice).unwrap_or_default();
            claims.iter().any(|(who, _)| who != origin && matches!(who, Origin::Cluster(_)))
        };
        !prefixes.iter().all(others)
    }

    /// Of how many prefixes only such sources in the cluster speak, and of how many they speak at all.
    pub(super) fn said_alone(&self, such: impl Fn(&str) -> bool) -> (usize, usize) {
        let (mut alone, mut all) = (0, 0);
        for claims in self.claims.values() {
            let cluster = claims.iter().filter_map(|(who, _)| match who {
                Origin::Cluster(name) => Some(such(name)),
                _ => None,
            });
            let (such, others): (Vec<bool>, Vec<bool>) = cluster.partition(|such| *such);
            all += usize::from(!such.is_empty());
            alone += usize::from(!such.is_empty() && others.is_empty());
        }
        (alone, all)
    }

    /// The names of such sources.
    pub(super) fn sources(&self, such: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let names = self.by_origin.keys().filter_map(|origin| match origin {
            Origin::Cluster(name) => Some(name),
            _ => None,
        });
        names.filter(|name| such(name)).cloned().collect()
    }

    /// The node's own endpoints that say something.
    pub(super) fn local(&self) -> Vec<u16> {
        let local = self.by_origin.keys().filter_map(|origin| match origin {
            Origin::Local(id) => Some(*id),
            _ => None,
        });
        local.collect()
    }

    fn count_names(&mut self, old: &[PodPort], new: &[PodPort]) -> bool {
        let mut changed = false;
        for port in new {
            let count = self.names.entry(port.clone()).or_default();
            *count += 1;
            changed |= *count == 1;
        }
        for port in old {
            let Some(count) = self.names.get_mut(port) else { continue };
            *count -= 1;
            if *count == 0 {
                self.names.remove(port);
                changed = true;
            }
        }
        changed
    }

    /// How the cluster's pods name their ports.
    pub(super) fn named_ports(&self) -> ClusterPorts {
        let mut ports = ClusterPorts::default();
        for (identity, name, port) in self.names.keys() {
            ports.insert(*identity, name.clone(), *port);
        }
        ports
    }

    /// What the map should say of a prefix.
    pub(super) fn get(&self, prefix: &Prefix) -> Option<RemoteEndpoint> {
        self.claims.get(prefix)?.last().map(|(_, value)| *value)
    }

    /// What the map should say.
    pub(super) fn desired(&self) -> BTreeMap<Prefix, RemoteEndpoint> {
        self.claims.keys().filter_map(|prefix| Some((*prefix, self.get(prefix)?))).collect()
    }

    pub(super) fn entries(&self) -> Vec<(Prefix, RemoteEndpoint, Origin)> {
        let winner = |(prefix, claims): (&Prefix, &Vec<(Origin, RemoteEndpoint)>)| {
            claims.last().map(|(origin, value)| (*prefix, *value, origin.clone()))
        };
        self.claims.iter().filter_map(winner).collect()
    }
}

#[cfg(test)]
mod tests {
    use cilia_loader::RemoteEndpoint;

    use super::{ClusterPorts, NumericIdentity, Origin, Prefix, Said, Table};

    fn prefix(text: &str) -> Prefix {
        let net: ipnet::IpNet = text.parse().expect("a prefix");
        (net.addr(), net.prefix_len())
    }

    fn said(entries: &[(&str, u32)]) -> Said {
        let entry = |(text, identity): &(&str, u32)| {
            (prefix(text), RemoteEndpoint { identity: *identity, ..RemoteEndpoint::default() })
        };
        Said { prefixes: entries.iter().map(entry).collect(), ports: Vec::new() }
    }

    fn slice(name: &str) -> Origin {
        Origin::Cluster(name.into())
    }

    fn identity(table: &Table, text: &str) -> Option<u32> {
        table.get(&prefix(text)).map(|value| value.identity)
    }

    #[test]
    fn a_move_between_slices_leaves_no_gap() {
        let (mut table, pod) = (Table::default(), "10.0.0.1/32");
        table.set(&slice("a"), said(&[(pod, 300)]));
        table.set(&slice("b"), said(&[(pod, 300)]));
        assert_eq!(identity(&table, pod), Some(300));
        let touched = table.set(&slice("a"), said(&[]));
        assert_eq!((touched.prefixes.len(), identity(&table, pod)), (1, Some(300)));
        table.set(&slice("b"), said(&[]));
        assert_eq!(identity(&table, pod), None);
        assert!(table.claims.is_empty() && table.by_origin.is_empty());
    }

    #[test]
    fn the_last_slice_and_the_nearer_source_win() {
        let (mut table, pod) = (Table::default(), "10.0.0.1/32");
        table.set(&slice("new"), said(&[(pod, 301)]));
        table.set(&slice("old"), said(&[(pod, 300)]));
        assert_eq!(identity(&table, pod), Some(300));
        table.set(&slice("new"), said(&[(pod, 301)]));
        assert_eq!(identity(&table, pod), Some(300), "a repetition is no news");
        table.set(&slice("new"), said(&[(pod, 302)]));
        assert_eq!(identity(&table, pod), Some(302));
        table.set(&Origin::Local(7), said(&[(pod, 400)]));
        table.set(&slice("old"), said(&[(pod, 303)]));
        assert_eq!(identity(&table, pod), Some(400));
        table.set(&Origin::Policy, said(&[(pod, 1 << 24)]));
        assert_eq!(identity(&table, pod), Some(400), "a policy's prefix is what is left");
    }

    #[test]
    fn an_own_address_that_no_slice_has_any_more_is_told() {
        let (mut table, pod) = (Table::default(), "10.0.0.1/32");
        let other = "10.0.0.2/32";
        table.set(&slice("a"), said(&[(pod, 300), (other, 300)]));
        table.set(&Origin::Local(7), said(&[(pod, 300)]));
        table.set(&slice("b"), said(&[(pod, 300)]));
        assert!(table.set(&slice("a"), said(&[])).unlisted.is_empty(), "it has only moved");
        assert_eq!(table.set(&slice("b"), said(&[])).unlisted, [prefix(pod).0]);
        table.set(&slice("b"), said(&[(pod, 300)]));
        assert!(table.set(&Origin::Local(7), said(&[])).unlisted.is_empty());
        assert!(table.set(&slice("b"), said(&[])).unlisted.is_empty(), "it is not ours any more");
    }

    #[test]
    fn only_another_name_or_number_is_news() {
        let mut table = Table::default();
        let port = |identity, port| (NumericIdentity(identity), ("http".into(), 6), port);
        let say = |table: &mut Table, name: &str, ports: &[super::PodPort]| {
            let said = Said { prefixes: Vec::new(), ports: ports.to_vec() };
            table.set(&slice(name), said).names
        };
        assert!(say(&mut table, "a", &[port(300, 80)]));
        assert!(!say(&mut table, "b", &[port(300, 80), port(300, 80)]), "one more of its kind");
        assert!(say(&mut table, "b", &[port(301, 8080)]), "others may name theirs in their way");
        let mut want = ClusterPorts::default();
        want.insert(NumericIdentity(300), ("http".into(), 6), 80);
        want.insert(NumericIdentity(301), ("http".into(), 6), 8080);
        assert_eq!(table.named_ports(), want);
        assert!(say(&mut table, "a", &[]) && say(&mut table, "b", &[]));
        assert_eq!(table.named_ports(), ClusterPorts::default());
    }
}
