//! Decides what to put into the kvstore for agents that are silent, and when to take it back.
//!
//! An agent is silent when its node's key is gone, or a stand-in, while Kubernetes has the node. Then what it said last,
//! of its node and of its endpoints' addresses, is put back, but for addresses that no endpoint of Kubernetes has; what
//! was lost while nobody looked is said as Kubernetes has it. It is taken back when the agent speaks again and has had the
//! time to say everything, when its node goes, and where nobody knows any more whose it was. Nothing of this overwrites
//! what somebody says.
//!
//! About 350 bytes an address: its key, its value, and whose it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cilia_kvstore::value::{IpIdentityPair, Node, decode};
use cilia_kvstore::{KeyValue, Swap, keys, stand_ins_of};
use tokio::time::Instant;

use super::kubernetes::{Endpoints, Pod};

/// An agent that has only lost its lease writes everything at once.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// How much later the end of a node's key may be heard than that of its addresses: a watch gives a member of etcd
/// eight seconds. Who gives an address up lives for longer than that: leases live for 25 seconds at least.
pub(super) const LAG: Duration = Duration::from_secs(10);
/// How long an agent may take to write everything again: 1,000 keys at the rate that etcd grants by default, 20 a second.
pub(super) const RETURN: Duration = Duration::from_mins(1);

/// What was said last under a key.
#[derive(Debug)]
struct Word {
    value: Box<[u8]>,
    state: State,
}

/// Who says it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// An agent.
    Agent,
    /// An operator, with the write of this revision.
    StandIn(i64),
    /// Nobody, since then.
    Gone(Instant),
}

impl Word {
    /// What stands in for another cluster's agents, in an etcd of both, is another's.
    fn of(kv: &KeyValue, lease: i64) -> Self {
        let state = if kv.lease == lease { State::StandIn(kv.mod_revision) } else { State::Agent };
        Self { value: kv.value.as_slice().into(), state }
    }

    /// The write that puts it back, or takes it away.
    fn swap(&self, key: String, back: bool) -> Option<Swap> {
        match self.state {
            State::Gone(_) if back => {
                Some(Swap { key, since: 0, value: Some(self.value.to_vec()) })
            }
            State::StandIn(since) if !back => Some(Swap { key, since, value: None }),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Told {
    /// Since when Kubernetes has the node, as far as is known.
    lives: Option<Instant>,
    word: Option<Word>,
    /// The addresses that its key names.
    hosts: Vec<IpAddr>,
    /// Since when its agent speaks.
    spoke: Option<Instant>,
}

impl Told {
    /// Kubernetes has the node, but its agent says nothing any more.
    fn is_silent(&self) -> bool {
        self.lives.is_some() && self.word.as_ref().is_some_and(|word| word.state != State::Agent)
    }
}

#[derive(Debug)]
struct Address {
    word: Word,
    host: IpAddr,
}

/// What to do about a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// What to write, in this order.
    pub(super) swaps: Vec<Swap>,
    /// Nobody has said anything of the node: to be learned from Kubernetes.
    pub(super) unheard: bool,
    /// When to decide again, if nothing happens before.
    pub(super) again: Option<Instant>,
}

impl Decision {
    fn not_before(&mut self, time: Instant) {
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}

/// What was said of the cluster's nodes and addresses, and what Kubernetes knows of them.
#[derive(Debug)]
pub(super) struct StandIns {
    cluster: String,
    /// That of the cluster's stand-ins.
    lease: i64,
    nodes: BTreeMap<Arc<str>, Told>,
    /// Whose addresses these are.
    hosts: HashMap<IpAddr, Arc<str>>,
    addresses: BTreeMap<Arc<str>, Address>,
    /// The addresses of a host's endpoints, by the ends of their keys.
    of_host: HashMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Nothing before all of them are known.
    endpoints: Option<Endpoints>,
}

impl StandIns {
    pub(super) fn new(cluster: &str, cluster_id: u32) -> Self {
        Self {
            cluster: cluster.to_owned(),
            lease: stand_ins_of(cluster_id),
            nodes: BTreeMap::new(),
            hosts: HashMap::new(),
            addresses: BTreeMap::new(),
            of_host: HashMap::new(),
            endpoints: None,
        }
    }

    /// Whether Kubernetes has a node.
    pub(super) fn lives(&mut self, name: &str, lives: bool, now: Instant) {
        let told = self.nodes.entry(name.into()).or_default();
        told.lives = lives.then_some(told.lives.unwrap_or(now));
        if !lives && told.word.is_none() {
            self.nodes.remove(name);
        }
    }

    /// A node's key is there.
    pub(super) fn node(&mut self, name: &str, kv: &KeyValue, now: Instant) {
        self.say(name, Word::of(kv, self.lease), now);
    }

    /// Kubernetes says this of a node of which nobody else does.
    pub(super) fn learned(&mut self, name: &str, value: Vec<u8>, now: Instant) {
        if self.nodes.get(name).is_some_and(|told| told.lives.is_some() && told.word.is_none()) {
            self.say(name, Word { value: value.into(), state: State::Gone(now) }, now);
        }
    }

    fn say(&mut self, name: &str, word: Word, now: Instant) {
        let hosts = match decode::<Node>(name, &word.value) {
            Ok(node) => node.addresses.iter().filter_map(|one| one.ip.parse().ok()).collect(),
            Err(_) => Vec::new(),
        };
        let name: Arc<str> = name.into();
        let told = self.nodes.entry(Arc::clone(&name)).or_default();
        let spoke = told.word.as_ref().is_some_and(|word| word.state == State::Agent);
        match word.state {
            State::Agent => told.spoke = told.spoke.filter(|_| spoke).or(Some(now)),
            State::StandIn(_) | State::Gone(_) => told.spoke = None,
        }
        told.word = Some(word);
        let former = std::mem::replace(&mut told.hosts, hosts.clone());
        self.disown(&name, former.into_iter().filter(|host| !hosts.contains(host)));
        self.hosts.extend(hosts.into_iter().map(|host| (host, Arc::clone(&name))));
    }

    /// A node has these addresses no more: what went there is waited for no more, either.
    fn disown(&mut self, name: &str, hosts: impl IntoIterator<Item = IpAddr>) {
        for host in hosts {
            if self.hosts.get(&host).is_some_and(|node| **node == *name) {
                self.hosts.remove(&host);
                let is_gone = |one: &Address| matches!(one.word.state, State::Gone(_));
                let ends = self.of_host.get(&host).into_iter().flatten();
                let gone = ends.filter(|end| self.addresses.get(*end).is_some_and(is_gone));
                for end in gone.cloned().collect::<Vec<_>>() {
                    self.forget(&end);
                }
            }
        }
    }

    /// A node's key is there no more.
    pub(super) fn node_gone(&mut self, name: &str, now: Instant) {
        let Some(told) = self.nodes.get_mut(name) else { return };
        if let Some(word) = &mut told.word {
            (word.state, told.spoke) = (State::Gone(now), None);
        }
    }

    /// An address's key, by its end, is there; whose nodes are to be looked at.
    pub(super) fn address(&mut self, end: &str, kv: &KeyValue) -> Vec<Arc<str>> {
        let before = self.forget(end);
        let host = decode::<IpIdentityPair>(end, &kv.value).ok().and_then(|pair| pair.tunnel());
        if let Some(host) = host {
            let end: Arc<str> = end.into();
            self.of_host.entry(host).or_default().insert(Arc::clone(&end));
            self.addresses.insert(end, Address { word: Word::of(kv, self.lease), host });
        }
        let both = [before, host].into_iter().flatten();
        both.filter_map(|host| self.hosts.get(&host).cloned()).collect()
    }

    /// An address's key is there no more; whose node is to be looked at.
    pub(super) fn address_gone(&mut self, end: &str, now: Instant) -> Option<Arc<str>> {
        let address = self.addresses.get(end)?;
        let node = self.hosts.get(&address.host).cloned();
        let silent =
            node.as_ref().and_then(|node| self.nodes.get(node)).is_some_and(Told::is_silent);
        let stood = matches!(address.word.state, State::StandIn(_));
        // A stand-in that is needed no more has been taken back.
        let over = stood && (!silent || self.is_nobodys(end, address));
        if node.is_none() || over {
            self.forget(end);
        } else if let Some(address) = self.addresses.get_mut(end) {
            address.word.state = State::Gone(now);
        }
        node
    }

    /// All endpoints are known from now on, or, for nothing, none are.
    pub(super) fn endpoints(&mut self, all: Option<Endpoints>) {
        self.endpoints = all;
    }

    /// An endpoint has changed; whose nodes are to be looked at.
    pub(super) fn endpoint(&mut self, old: &[Pod], new: &[Pod]) -> BTreeSet<Arc<str>> {
        let Some(all) = &mut self.endpoints else { return BTreeSet::new() };
        all.remove(old);
        all.add(new);
        let both = || old.iter().chain(new);
        let said = both().filter_map(|pod| Some(pod.said.as_ref()?.0));
        let ends = both().map(|pod| pod.address.to_string());
        let told = ends.filter_map(|end| Some(self.addresses.get(end.as_str())?.host));
        said.chain(told).filter_map(|host| self.hosts.get(&host).cloned()).collect()
    }

    /// The nodes whose agents are silent.
    pub(super) fn silent(&self) -> Vec<Arc<str>> {
        let silent = self.nodes.iter().filter(|(_, told)| told.is_silent());
        silent.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Whether anything is a stand-in.
    pub(super) fn stands_in(&self) -> bool {
        let is = |word: &Word| matches!(word.state, State::StandIn(_));
        let nodes = self.nodes.values().filter_map(|told| told.word.as_ref());
        nodes.chain(self.addresses.values().map(|address| &address.word)).any(is)
    }

    /// What to do about a node, once everything that there was at the start is known.
    pub(super) fn decide(&mut self, name: &str, now: Instant) -> Decision {
        let mut decision = Decision::default();
        if !self.any_lives() {
            return decision;
        }
        let Some(told) = self.nodes.get(name) else { return decision };
        let Some(word) = &told.word else {
            // It may be on its way.
            match told.lives.map(|since| since + RETURN) {
                Some(late) if late > now => decision.again = Some(late),
                late => decision.unheard = late.is_some(),
            }
            return decision;
        };
        let lives = told.lives.is_some();
        let (key, state) = (keys::node(&self.cluster, name), word.state);
        let all_said = told.spoke.unwrap_or(now) + RETURN;
        if let State::Gone(since) = state
            && lives
            && now < since + SETTLE
        {
            decision.again = Some(since + SETTLE);
            return decision;
        }
        let speaks = state == State::Agent;
        if lives && !speaks {
            decision.swaps.extend(word.swap(key.clone(), true));
        }
        let fate = |end: &str, address: &Address| match address.word.state {
            _ if !lives => Fate::Back(now),
            _ if !speaks && self.is_nobodys(end, address) => Fate::Back(now),
            _ if !speaks => Fate::Stand,
            State::Agent => Fate::Stay,
            State::StandIn(_) => Fate::Back(all_said),
            State::Gone(since) => Fate::Back(since + LAG),
        };
        let mut forgotten = Vec::new();
        for end in told.hosts.iter().filter_map(|host| self.of_host.get(host)).flatten() {
            let Some(address) = self.addresses.get(end) else { continue };
            let at = || format!("{}{end}", keys::ips());
            match (fate(end, address), address.word.state) {
                (Fate::Stay, _) => {}
                (Fate::Stand, _) => decision.swaps.extend(address.word.swap(at(), true)),
                (Fate::Back(time), _) if time > now => decision.not_before(time),
                (Fate::Back(_), State::Gone(_)) => forgotten.push(Arc::clone(end)),
                (Fate::Back(_), _) => decision.swaps.extend(address.word.swap(at(), false)),
            }
        }
        if lives && !speaks {
            decision.swaps.extend(self.unsaid(told));
        }
        if !lives {
            // The last: by it the others are known.
            decision.swaps.extend(word.swap(key, false));
        }
        for end in forgotten {
            self.forget(&end);
        }
        if !lives && decision.swaps.is_empty() && !speaks {
            self.forget_node(name);
        }
        decision
    }

    /// What a node's agent would say of endpoints of which nobody has said anything.
    fn unsaid(&self, told: &Told) -> Vec<Swap> {
        let of_hosts = |all: &'_ Endpoints| -> Vec<Swap> {
            let said = told.hosts.iter().flat_map(|host| all.of_host(*host));
            let unsaid =
                said.filter(|(ip, _)| !self.addresses.contains_key(ip.to_string().as_str()));
            let swap = |(ip, value): (&IpAddr, &[u8])| Swap {
                key: keys::ip((*ip).into()),
                since: 0,
                value: Some(value.to_vec()),
            };
            unsaid.map(swap).collect()
        };
        self.endpoints.as_ref().map(of_hosts).unwrap_or_default()
    }

    /// Stand-ins of which nobody knows any more whose they were.
    pub(super) fn orphans(&self) -> Vec<Swap> {
        if !self.any_lives() {
            return Vec::new();
        }
        let orphans = self.addresses.iter().filter(|(_, one)| !self.hosts.contains_key(&one.host));
        let back = |(end, address): (&Arc<str>, &Address)| {
            address.word.swap(format!("{}{end}", keys::ips()), false)
        };
        orphans.filter_map(back).collect()
    }

    /// A cluster without any node has lost them, or not made them yet: nothing follows from it.
    fn any_lives(&self) -> bool {
        self.nodes.values().any(|told| told.lives.is_some())
    }

    /// Whether no endpoint has this address of a pod. Where there are none at all, agents make none.
    fn is_nobodys(&self, end: &str, address: &Address) -> bool {
        let Some(all) = self.endpoints.as_ref().filter(|all| !all.is_empty()) else { return false };
        let Ok(ip) = end.parse::<IpAddr>() else { return false };
        let pair = decode::<IpIdentityPair>(end, &address.word.value);
        !all.has(ip) && pair.is_ok_and(|pair| !pair.pod.is_empty())
    }

    /// Forgets an address; its host, if it was known.
    fn forget(&mut self, end: &str) -> Option<IpAddr> {
        let host = self.addresses.remove(end)?.host;
        if let Some(ends) = self.of_host.get_mut(&host) {
            ends.remove(end);
            if ends.is_empty() {
                self.of_host.remove(&host);
            }
        }
        Some(host)
    }

    fn forget_node(&mut self, name: &str) {
        if let Some(told) = self.nodes.remove(name) {
            self.disown(name, told.hosts);
        }
    }
}

/// What becomes of an address's key.
enum Fate {
    /// It is an agent's.
    Stay,
    /// It is there, for its agent.
    Stand,
    /// It is not, from this time on, unless an agent says it.
    Back(Instant),
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
#[path = "world_tests.rs"]
mod world_tests;
