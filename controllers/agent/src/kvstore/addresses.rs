//! Follows the addresses of the cluster in the kvstore: tells the ipcache of them, and repairs own ones.
//!
//! In mode `kvstore` the keys of all nodes are followed, too: by them an agent that is silent is told from one that
//! gives an address up. In the other modes only this node's own keys are of interest.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use cilia_kvstore::value::{IpIdentityPair, decode};
use cilia_kvstore::{Event, is_stand_in, keys};
use cilia_loader::RemoteEndpoint;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::silence::{Living, Silence};
use super::{Kvstore, entry};
use crate::ipcache::{Fed, Prefix};
use crate::node::Nodes;

/// Identities of pods: neither what is the same in every cluster, nor what is only a node's own.
const OF_PODS: std::ops::Range<u32> = 256..1 << 24;

impl Kvstore {
    /// What a former agent knew of addresses; to be called before [`Kvstore::run`].
    pub fn remember(&self, former: Vec<(Prefix, RemoteEndpoint)>) {
        let of_pod = |((address, bits), endpoint): (Prefix, RemoteEndpoint)| {
            let whole = bits == if address.is_ipv4() { 32 } else { 128 };
            (whole && OF_PODS.contains(&endpoint.identity)).then_some((address, endpoint))
        };
        let former = former.into_iter().filter_map(of_pod).collect();
        *self.former.lock().unwrap_or_else(PoisonError::into_inner) = former;
    }

    fn take_former(&self) -> Vec<(IpAddr, RemoteEndpoint)> {
        std::mem::take(&mut self.former.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells of every address, until the client ends.
    pub(super) async fn feed(&self, nodes: &Nodes, feed: mpsc::Sender<Vec<Fed>>) {
        let (prefix, of_nodes) = (keys::ips(), keys::nodes(&self.settings.cluster));
        self.client.initially_read(&prefix, false);
        let mut watch = self.client.watch(&prefix);
        let mut node_watch = self.client.watch(&of_nodes);
        let mut kubernetes = nodes.subscribe();
        let (mut silence, mut look, mut nodes_listed) = (Silence::default(), None, false);
        loop {
            let (mut batch, mut listed) = (Vec::new(), false);
            tokio::select! {
                events = watch.next() => {
                    let Some(events) = events else { return };
                    if events.iter().any(|event| matches!(event, Event::Deleted(_))) {
                        silence.have(living(nodes));
                    }
                    for event in &events {
                        self.ips.seen(event);
                        let word = told(&prefix, event);
                        batch.extend(word.and_then(|word| silence.take(word, Instant::now())));
                    }
                    listed = events.contains(&Event::Listed);
                    if listed {
                        silence.have(living(nodes));
                        batch.extend(silence.recall(&self.take_former(), Instant::now()));
                    }
                }
                Some(events) = node_watch.next() => {
                    for event in &events {
                        self.nodes.seen(event);
                        match event {
                            Event::Put(kv) => {
                                let key = String::from_utf8_lossy(&kv.key);
                                let name = key.strip_prefix(&of_nodes).unwrap_or_default();
                                if is_stand_in(kv.lease) {
                                    silence.is_silent(name);
                                } else {
                                    silence.speaks(name, nodes_listed.then(Instant::now));
                                }
                            }
                            Event::Deleted(key) => {
                                silence.is_silent(key.strip_prefix(&of_nodes).unwrap_or_default());
                            }
                            Event::Listed => nodes_listed = true,
                            Event::Progress(_) => {}
                        }
                    }
                }
                Ok(()) = kubernetes.changed(), if silence.waits() => silence.have(living(nodes)),
                () = at(look) => {}
            }
            look = None;
            if silence.waits() {
                let (gone, next) = silence.due(Instant::now());
                batch.extend(gone);
                look = next;
            }
            if !batch.is_empty() && feed.send(batch).await.is_err() {
                return;
            }
            if listed {
                self.listed();
                self.client.initially_read(&prefix, true);
            }
        }
    }

    /// Repairs own addresses where others say who is behind all of them.
    pub(super) async fn repair_ips(&self) {
        let mut watch = self.client.watch(&keys::ips());
        while let Some(events) = watch.next().await {
            for event in &events {
                self.ips.seen(event);
            }
            if events.contains(&Event::Listed) {
                self.listed();
            }
        }
    }

    /// Everything that there was at the start has been told.
    fn listed(&self) {
        self.client.bootstrapped();
        self.listed.send_replace(true);
    }
}

/// The other nodes of this cluster that Kubernetes has, by each of their addresses.
fn living(nodes: &Nodes) -> Living {
    let own = nodes.local();
    let mut living = Living::new();
    for node in nodes.list() {
        // Those of other clusters are named `cluster/node`.
        if node.name.contains('/') || own.as_ref().is_some_and(|own| own.name == node.name) {
            continue;
        }
        let name: Arc<str> = node.name.as_str().into();
        living.extend(node.addresses.iter().map(|address| (*address, Arc::clone(&name))));
    }
    living
}

/// At this time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// What an event means to the ipcache.
fn told(prefix: &str, event: &Event) -> Option<Fed> {
    let name_of = |key: &str| Some(format!("kvstore/{}", key.strip_prefix(prefix)?).into());
    match event {
        Event::Deleted(key) => Some(Fed::Gone(name_of(key)?)),
        Event::Put(kv) => {
            let key = std::str::from_utf8(&kv.key).ok()?;
            let end = key.strip_prefix(prefix)?;
            let pair: Result<IpIdentityPair, _> = decode(key, &kv.value);
            match pair.and_then(|pair| Ok((pair.check(end, None)?, pair))) {
                Ok((net, pair)) => Some(entry(name_of(key)?, net, &pair)),
                Err(error) => {
                    tracing::warn!(%error, "ignoring an address in the kvstore");
                    None
                }
            }
        }
        Event::Listed | Event::Progress(_) => None,
    }
}
