//! Connects to one cluster, again and again, and tells what it says.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cilia_identity::Space;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::import::{Import, Kind};
use super::pulse::Pulse;
use super::{Change, Counts, Mesh};
use crate::client::{Client, Settings as ClientSettings};
use crate::keys::{self, Layout};
use crate::options::Options;
use crate::value::{ClusterConfig, Expected, decode};
use crate::watch::{Event, Watch};

/// How long the cluster may take to say who it is.
const CONFIG: Duration = Duration::from_mins(3);
const CONFIG_RETRY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between two looks at a connection.
const LOOK: Duration = Duration::from_secs(5);

/// One other cluster.
pub(super) struct Cluster {
    mesh: Mesh,
    name: Arc<str>,
    path: PathBuf,
    changed: watch::Receiver<u64>,
    imports: Vec<Import>,
    /// Its id, once known.
    id: u32,
    /// The id of the etcd behind it, once known.
    etcd: u64,
}

/// Somebody who waits for news of a prefix.
type Sources = mpsc::Receiver<(Kind, Vec<Event>)>;

impl Cluster {
    pub(super) fn new(
        mesh: Mesh,
        name: &str,
        path: PathBuf,
        changed: watch::Receiver<u64>,
    ) -> Self {
        let all = [Kind::Nodes, Kind::Identities, Kind::Ips, Kind::Services];
        let (network, grace) = (mesh.0.settings.network, mesh.0.settings.grace);
        let wanted = all.into_iter().filter(|kind| network || *kind == Kind::Services);
        // Every cluster's numbers, until it says which are its own.
        let imports =
            wanted.filter_map(|kind| Some(Import::new(kind, Space::new(0, 255).ok()?, grace)));
        let imports = imports.collect();
        Self { mesh, name: name.into(), path, changed, imports, id: 0, etcd: 0 }
    }

    /// Until `stop`; what it told is taken back if `drain` is cancelled by then.
    pub(super) async fn run(mut self, stop: CancellationToken, drain: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut lost: Option<Instant> = None;
        while !stop.is_cancelled() {
            let mut connected = false;
            let patience = self.patience(lost);
            let session = self.session(&mut connected, patience);
            let Some(ended) = stop.run_until_cancelled(session).await else { break };
            if connected {
                self.mesh.update(&self.name, |remote| remote.ready = false);
                (pause, lost) = (FIRST_PAUSE, None);
            }
            let since = *lost.get_or_insert_with(Instant::now);
            if let Err(reason) = ended {
                tracing::warn!(cluster = %self.name, reason, "cluster lost, will be connected again");
                self.mesh.update(&self.name, |remote| {
                    (remote.connected, remote.ready) = (false, false);
                    remote.status = reason;
                    remote.failures += 1;
                    remote.last_failure = k8s_openapi::jiff::Timestamp::now().as_second();
                });
            } else {
                pause = FIRST_PAUSE;
            }
            let ttl = self.mesh.0.settings.cache_ttl;
            if !ttl.is_zero() && since.elapsed() >= ttl {
                let some = self.counts().services > 0;
                self.drain(|kind| kind == Kind::Services).await;
                self.mesh.update(&self.name, |remote| remote.revocations += u64::from(some));
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.changed.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
            if !ttl.is_zero() {
                pause = pause.min(ttl);
            }
        }
        if drain.is_cancelled() {
            self.drain(|_| true).await;
        }
        self.mesh.free_id(&self.name);
    }

    /// Until when the cluster may say who it is; not longer than its services are kept.
    fn patience(&self, lost: Option<Instant>) -> Instant {
        let (end, ttl) = (Instant::now() + CONFIG, self.mesh.0.settings.cache_ttl);
        match lost {
            Some(lost) if !ttl.is_zero() && self.counts().services > 0 => end.min(lost + ttl),
            _ => end,
        }
    }

    /// One connection, until its configuration changes (`Ok`) or it is lost.
    async fn session(&mut self, connected: &mut bool, patience: Instant) -> Result<(), String> {
        self.changed.mark_unchanged();
        let options = Options::of_file(&self.path, self.mesh.0.settings.qps);
        let client = Client::new(&ClientSettings::new(options), None).map_err(|e| e.to_string())?;
        self.mesh.listen(&self.name, &client);
        let config = self.config(&client, patience).await?;
        let expected = self.accept(&config, client.cluster_id()).await?;
        let layout = Layout { cached: config.capabilities.cached };
        let space = Space::new(config.id, self.mesh.0.settings.max_connected);
        let space = space.map_err(|error| error.to_string())?;
        *connected = true;
        self.mesh.update(&self.name, |remote| {
            (remote.connected, remote.id) = (true, config.id);
            remote.cached = config.capabilities.cached;
            remote.canaries = config.capabilities.synced_canaries;
            remote.exports = config.capabilities.service_exports_enabled;
            remote.status = "waiting for everything to be told".into();
        });
        let mut heartbeat = client.watch(keys::HEARTBEAT);
        let mut sources = self.sources(&client, &config, layout, &expected, space);
        for import in &self.imports {
            self.completed(import.kind, false);
        }
        let mut waiting = self.imports.len();
        let members = client.0.connection.members().map_or(0, |members| members.count());
        let etcd = self.etcd;
        // As Cilium words it: nothing hangs on leases there, and its members are not asked.
        let well = format!(
            "etcd: {members}/{members} connected, leases=0, lock leases=0, has-quorum=true: endpoint status checks are disabled, ID: {etcd:x}"
        );
        let mut pulse = Pulse::new(Instant::now());
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Ok(()) = self.changed.changed() => return Ok(()),
                events = heartbeat.next() => match events {
                    None => return Err("the connection has ended".into()),
                    Some(events) if events.iter().any(|event| matches!(event, Event::Put(_))) => {
                        pulse.beat(Instant::now());
                    }
                    Some(_) => {}
                },
                news = sources.recv() => match news {
                    None => return Err("the connection has ended".into()),
                    Some((kind, events)) => {
                        if events.contains(&Event::Listed) {
                            waiting -= 1;
                            self.completed(kind, true);
                        }
                        self.tell(kind, events).await;
                        let (counts, ready) = (self.counts(), waiting == 0);
                        self.mesh.update(&self.name, |remote| {
                            remote.counts = counts;
                            if ready {
                                (remote.ready, remote.synced) = (true, true);
                                remote.status.clone_from(&well);
                            }
                        });
                    }
                },
                () = until(self.imports.iter().filter_map(Import::next).min()) => self.end().await,
                _ = look.tick() => {
                    let found = pulse.look(Instant::now(), self.mesh.tolerated());
                    if found.is_some() && let Some(metrics) = self.mesh.0.metrics.get() {
                        metrics.quorum_error("no event received");
                    }
                    if let Some((reason, true)) = found {
                        return Err(reason);
                    }
                }
            }
            if client.cluster_id() != self.etcd {
                let (now, then) = (client.cluster_id(), self.etcd);
                self.etcd = now;
                return Err(format!("etcd is another cluster now: {now:x}, not {then:x}"));
            }
        }
    }

    /// Whether everything of a kind has been read since it was connected.
    fn completed(&self, kind: Kind, is: bool) {
        if let Some(metrics) = self.mesh.0.metrics.get() {
            let (_, base) = place(kind, Layout { cached: false }, &self.name);
            metrics.completed(&keys::scope(base), &self.name, "read", is);
        }
    }

    /// What the cluster says about itself.
    async fn config(&self, client: &Client, deadline: Instant) -> Result<ClusterConfig, String> {
        let key = keys::cluster_config(&self.name);
        loop {
            let reason = match client.get(&key).await {
                Ok(Some(kv)) => return decode(&key, &kv.value).map_err(|error| error.to_string()),
                Ok(None) => format!("waiting for its configuration, {key}"),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                return Err(reason);
            }
            self.mesh.update(&self.name, |remote| remote.status = reason);
            tokio::time::sleep(CONFIG_RETRY).await;
        }
    }

    /// Errors for a cluster that clashes with this one or another; one with a new id begins anew.
    async fn accept(&mut self, config: &ClusterConfig, etcd: u64) -> Result<Expected, String> {
        let settings = &self.mesh.0.settings;
        config.check(settings.cluster_id, settings.max_connected)?;
        self.mesh
            .take_id(config.id, &self.name)
            .map_err(|other| format!("its cluster id {} is that of cluster {other}", config.id))?;
        if self.id != 0 && self.id != config.id {
            tracing::warn!(cluster = %self.name, was = self.id, is = config.id, "another cluster id");
            self.drain(|_| true).await;
        }
        (self.id, self.etcd) = (config.id, etcd);
        Ok(Expected { cluster: self.name.to_string(), id: config.id })
    }

    /// Follows every prefix; where canaries are promised, once the prefix's is there.
    fn sources(
        &mut self,
        client: &Client,
        config: &ClusterConfig,
        layout: Layout,
        expected: &Expected,
        space: Space,
    ) -> Sources {
        let (sender, sources) = mpsc::channel(super::BATCHES);
        for import in &mut self.imports {
            let (prefix, base) = place(import.kind, layout, &self.name);
            import.begin(prefix.clone(), expected.clone(), space);
            let canary = layout.canary(&self.name, base);
            let canary = config.capabilities.synced_canaries.then_some(canary);
            let (client, kind, sender) = (client.clone(), import.kind, sender.clone());
            tokio::spawn(async move {
                if let Some(canary) = canary {
                    appears(client.watch(&canary)).await;
                }
                let mut watch = client.watch(&prefix);
                drop(client);
                while let Some(events) = tokio::select! {
                    events = watch.next() => events,
                    () = sender.closed() => None,
                } {
                    if sender.send((kind, events)).await.is_err() {
                        return;
                    }
                }
            });
        }
        sources
    }

    async fn tell(&mut self, kind: Kind, events: Vec<Event>) {
        let import = self.imports.iter_mut().find(|import| import.kind == kind);
        let (Some(import), now) = (import, Instant::now()) else { return };
        let changes: Vec<Change> =
            events.into_iter().flat_map(|event| import.take(event, now)).collect();
        self.send(changes).await;
    }

    /// Tells of what has gone for good.
    async fn end(&mut self) {
        let now = Instant::now();
        let changes: Vec<Change> =
            self.imports.iter_mut().flat_map(|import| import.due(now)).collect();
        self.send(changes).await;
        let counts = self.counts();
        self.mesh.update(&self.name, |remote| remote.counts = counts);
    }

    async fn drain(&mut self, which: impl Fn(Kind) -> bool) {
        let imports = self.imports.iter_mut().filter(|import| which(import.kind));
        let changes: Vec<Change> = imports.flat_map(Import::drain).collect();
        if !changes.is_empty() {
            tracing::info!(cluster = %self.name, entries = changes.len(), "drained");
        }
        self.send(changes).await;
        let counts = self.counts();
        self.mesh.update(&self.name, |remote| remote.counts = counts);
    }

    async fn send(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            // Without a reader nobody wants to know.
            let _ = self.mesh.0.news.send((Arc::clone(&self.name), changes)).await;
        }
    }

    fn counts(&self) -> Counts {
        let of =
            |kind| self.imports.iter().find(|import| import.kind == kind).map_or(0, Import::len);
        Counts {
            nodes: of(Kind::Nodes),
            identities: of(Kind::Identities),
            ips: of(Kind::Ips),
            services: of(Kind::Services),
        }
    }
}

/// Where a kind lies in the etcd that is read, and in the cluster's own.
fn place(kind: Kind, layout: Layout, cluster: &str) -> (String, &'static str) {
    match kind {
        Kind::Nodes => (layout.nodes(cluster), keys::NODES),
        Kind::Identities => (layout.identities(cluster), keys::IDENTITIES),
        Kind::Ips => (layout.ips(cluster), keys::IPS),
        Kind::Services => (layout.services(cluster), keys::SERVICES),
    }
}

/// At this time, or never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns once there is a key.
async fn appears(mut watch: Watch) {
    while let Some(events) = watch.next().await {
        if events.iter().any(|event| matches!(event, Event::Put(_))) {
            return;
        }
    }
}
