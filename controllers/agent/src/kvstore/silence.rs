//! Decides whether an address is gone that the kvstore does not have any more, or its node's agent only silent.
//!
//! An agent that is frozen, or cut off from etcd, for longer than its leases live loses all of its keys, while its
//! pods live on. So what goes of another node is waited for, for as long as a watch may lag behind another. If by
//! then the node's own key is gone, too, though Kubernetes has the node, its addresses stay until the agent speaks
//! again and has had the time to say what is so, or until the node goes. A key that the operator put there stands in
//! for the agent: that is silent still. About 60 bytes an address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cilia_loader::RemoteEndpoint;
use tokio::time::Instant;

use crate::ipcache::Fed;

/// How much later the end of a node's key may be heard than that of its addresses: a watch gives a member of etcd
/// eight seconds before it asks another.
pub(super) const LAG: Duration = Duration::from_secs(10);
/// How long an agent may take to write everything again: 1,000 keys at the rate that etcd grants by default, 20 a second.
pub(super) const RETURN: Duration = Duration::from_mins(1);

/// The nodes that Kubernetes has, but for this one: their names by their addresses.
pub(super) type Living = HashMap<IpAddr, Arc<str>>;

/// What is known of other nodes' addresses.
#[derive(Debug, Default)]
pub(super) struct Silence {
    living: Living,
    /// The nodes whose own key is there; since when, unless it was at the start.
    speaking: HashMap<Arc<str>, Option<Instant>>,
    /// The address of the node of each word that was passed on.
    hosts: HashMap<Arc<str>, IpAddr>,
    /// Words that the kvstore has no more, and since when.
    held: BTreeMap<Arc<str>, Instant>,
}

impl Silence {
    /// Kubernetes has these nodes.
    pub(super) fn have(&mut self, living: Living) {
        self.living = living;
    }

    /// The node's own key is there; `now` unless it was at the start.
    pub(super) fn speaks(&mut self, node: &str, now: Option<Instant>) {
        if !self.speaking.contains_key(node) {
            self.speaking.insert(node.into(), now);
        }
    }

    /// The node's own key is gone.
    pub(super) fn is_silent(&mut self, node: &str) {
        self.speaking.remove(node);
    }

    /// What is to be passed on of what the kvstore says; nothing of a word that is waited for.
    pub(super) fn take(&mut self, word: Fed, now: Instant) -> Option<Fed> {
        match &word {
            Fed::Entry { name, endpoint, .. } => {
                self.held.remove(name);
                match endpoint.tunnel {
                    Some(host) => _ = self.hosts.insert(Arc::clone(name), host),
                    None => _ = self.hosts.remove(name),
                }
            }
            Fed::Gone(name) => {
                let host = self.hosts.get(name);
                if host.is_some_and(|host| self.living.contains_key(host)) {
                    self.held.insert(Arc::clone(name), now);
                    return None;
                }
                self.hosts.remove(name);
            }
            Fed::Listed => {}
        }
        Some(word)
    }

    /// The kvstore has told everything. What a former agent knew of other nodes' pods, and the kvstore doesn't, is told
    /// again, and waited for: their agent may have been silent since before this one's start.
    pub(super) fn recall(&mut self, former: &[(IpAddr, RemoteEndpoint)], now: Instant) -> Vec<Fed> {
        let mut told = Vec::new();
        for (address, endpoint) in former {
            let name: Arc<str> = format!("kvstore/{address}").into();
            let host = endpoint.tunnel.filter(|host| self.living.contains_key(host));
            let (Some(host), false) = (host, self.hosts.contains_key(&name)) else { continue };
            self.hosts.insert(Arc::clone(&name), host);
            self.held.insert(Arc::clone(&name), now);
            let prefix = (*address, if address.is_ipv4() { 32 } else { 128 });
            told.push(Fed::Entry { name, prefix, endpoint: *endpoint, ports: Vec::new() });
        }
        told
    }

    /// Whether anything is waited for.
    pub(super) fn waits(&self) -> bool {
        !self.held.is_empty()
    }

    /// What is gone by now, and when there may be more; never, as long as nothing else happens, without a time.
    pub(super) fn due(&mut self, now: Instant) -> (Vec<Fed>, Option<Instant>) {
        let mut held = std::mem::take(&mut self.held);
        let mut next = None;
        let over = |name: &Arc<str>, since: &mut Instant| {
            let end = self.end(name, *since);
            let over = end.is_some_and(|end| end <= now);
            next = [next, end.filter(|_| !over)].into_iter().flatten().min();
            over
        };
        let gone: Vec<Arc<str>> = held.extract_if(.., over).map(|(name, _)| name).collect();
        self.held = held;
        for name in &gone {
            self.hosts.remove(name);
        }
        (gone.into_iter().map(Fed::Gone).collect(), next)
    }

    /// Until when a word is waited for; for ever, if its node's agent is silent.
    fn end(&self, name: &str, since: Instant) -> Option<Instant> {
        let node = self.hosts.get(name).and_then(|host| self.living.get(host));
        let Some(node) = node else { return Some(since) };
        let spoke = self.speaking.get(node)?;
        let returned = spoke.map_or(since, |spoke| spoke + RETURN);
        Some(returned.max(since + LAG))
    }
}

#[cfg(test)]
#[path = "silence_tests.rs"]
mod tests;
