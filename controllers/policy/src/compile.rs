//! Keeps the policy of one subject, and the maps of its endpoints, right when identities change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use ipnet::IpNet;

use crate::directory::Change;
use crate::half::Half;
use crate::map::EndpointPolicy;
use crate::names::{ClusterPorts, NamedPorts, Names, PortName};
use crate::origin::Origins;
use crate::plan::{Plan, PortFilter};
use crate::rule::{Direction, Peer};
use crate::selectors::{SelectorId, Selectors};

/// The policy of one subject identity, and the maps of its endpoints.
///
/// Endpoints of one identity differ only in how they name their ports.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    halves: [Half; 2],
    names: BTreeSet<PortName>,
    prefixes: Vec<IpNet>,
    blocks: Vec<IpNet>,
    references: Vec<Peer>,
    maps: HashMap<NamedPorts, Arc<EndpointPolicy>>,
}

impl Subject {
    /// The policy that follows from plans for both directions, whose prefixes are known.
    pub(crate) fn new(plans: [Plan; 2], selectors: &mut Selectors) -> Self {
        let mut subject = Self {
            prefixes: plans.iter().flat_map(Plan::prefixes).collect(),
            blocks: plans.iter().flat_map(Plan::blocks).collect(),
            references: plans.iter().flat_map(|plan| plan.references.iter().cloned()).collect(),
            ..Self::default()
        };
        subject.halves = plans.map(|plan| Half::new(plan, selectors));
        for port in subject.halves.iter().flat_map(Half::ports) {
            if let PortFilter::Named(name) = port {
                subject.names.insert(name.clone());
            }
        }
        subject
    }

    /// The prefixes that the subject's rules name, once for each direction.
    pub(crate) fn prefixes(&self) -> &[IpNet] {
        &self.prefixes
    }

    /// Those that mean addresses whoever has them, once for each direction.
    pub(crate) fn blocks(&self) -> &[IpNet] {
        &self.blocks
    }

    /// Whether the rules refer to what has changed.
    pub(crate) fn refers(&self, change: &Change<'_>) -> bool {
        self.references.iter().any(|peer| change.concerns(peer))
    }

    /// Gives up the subject's selectors.
    pub(crate) fn release(&self, selectors: &mut Selectors) {
        self.halves.iter().for_each(|half| half.release(selectors));
    }

    /// The map of an endpoint with these port names.
    pub(crate) fn map(
        &mut self,
        own: &NamedPorts,
        known: &ClusterPorts,
        selectors: &Selectors,
        origins: &mut Origins,
    ) -> Arc<EndpointPolicy> {
        let used = |(name, number): (&PortName, &u16)| {
            self.names.contains(name).then(|| (name.clone(), *number))
        };
        let own: NamedPorts = own.iter().filter_map(used).collect();
        if let Some(map) = self.maps.get(&own) {
            return map.clone();
        }
        let mut policy = EndpointPolicy::default();
        for direction in Direction::BOTH {
            let names = names(direction, &own, known);
            *policy.direction_mut(direction) =
                self.halves[direction as usize].policy(names, selectors, origins);
        }
        let policy = Arc::new(policy);
        self.maps.insert(own, policy.clone());
        policy
    }

    /// Forgets the maps, because port names of other pods have changed, if that matters.
    pub(crate) fn forget_names(&mut self) {
        let egress = &self.halves[Direction::Egress as usize];
        if egress.ports().any(|port| matches!(port, PortFilter::Named(..))) {
            self.maps.clear();
        }
    }

    /// Makes the columns of one identity right: `selecting` select it now; it may not be there at all.
    pub(crate) fn update(
        &mut self,
        identity: NumericIdentity,
        there: bool,
        selecting: &[SelectorId],
        known: &ClusterPorts,
        origins: &mut Origins,
    ) {
        for direction in Direction::BOTH {
            let half = &self.halves[direction as usize];
            for (own, map) in &mut self.maps {
                let names = names(direction, own, known);
                let filters =
                    if there { half.of(selecting, names, identity) } else { BTreeSet::new() };
                if filters.is_empty() && !Half::knows(map.direction(direction), identity) {
                    continue;
                }
                let policy = map.direction(direction);
                let changed = half.update(policy, &filters, names, identity, origins);
                if changed.is_empty() {
                    continue;
                }
                // A copy shares what doesn't change.
                let columns = &mut Arc::make_mut(map).direction_mut(direction).columns;
                for (key, column) in changed {
                    columns.set(key, column);
                }
            }
        }
    }

    /// The cookies in the maps and in the rules.
    pub(crate) fn cookies(&self, used: &mut HashSet<u32>) {
        used.extend(self.halves.iter().flat_map(|half| &half.filters).map(|filter| filter.cookie));
        for map in self.maps.values() {
            used.extend(map.entries().map(|(_, entry)| entry.cookie));
        }
    }
}

/// Whose port names count in a direction.
fn names<'a>(direction: Direction, own: &'a NamedPorts, known: &'a ClusterPorts) -> Names<'a> {
    match direction {
        Direction::Ingress => Names::Own(own),
        Direction::Egress => Names::Cluster(known),
    }
}
