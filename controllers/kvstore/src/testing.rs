//! A real etcd of one or more members on loopback, with or without TLS, for tests that break it.

pub mod admin;
mod certificates;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cilia_runtime::testing::{Process, binary, eventually_for, free_ports};

use crate::client::Client;
use crate::options::{Options, Source};

pub use certificates::certify;
pub use cilia_runtime::testing::Signal;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// Requests per second, where a test is not about the rate.
const UNLIMITED: f64 = 1e6;

/// A running etcd; ends and vanishes when dropped.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    folder: tempfile::TempDir,
    tls: bool,
}

#[derive(Debug)]
struct Member {
    process: Option<Process>,
    arguments: Vec<String>,
    client_port: u16,
}

impl Etcd {
    /// One member without TLS.
    pub async fn start() -> Self {
        Self::with(1, false, &[]).await
    }

    /// So many members.
    ///
    /// # Panics
    /// If they do not become ready.
    pub async fn with(members: usize, tls: bool, arguments: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("cilia-etcd-").tempdir();
        let folder = folder.expect("create a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        if tls {
            certify(folder.path(), &[]);
        }
        let ports: Vec<[u16; 2]> = (0..members).map(|_| free_ports()).collect();
        let scheme = if tls { "https" } else { "http" };
        let names = ports.iter().enumerate();
        let cluster: Vec<String> =
            names.map(|(n, [_, peer])| format!("m{n}=http://127.0.0.1:{peer}")).collect();
        let member = |(n, [client, peer]): (usize, &[u16; 2])| {
            let mut all = vec![
                format!("--name=m{n}"),
                format!("--data-dir={}", path(&format!("m{n}"))),
                "--unsafe-no-fsync".into(),
                "--heartbeat-interval=50".into(),
                "--election-timeout=500".into(),
                format!("--listen-client-urls={scheme}://127.0.0.1:{client}"),
                format!("--advertise-client-urls={scheme}://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster={}", cluster.join(",")),
            ];
            if tls {
                all.extend([
                    format!("--cert-file={}", path("server.crt")),
                    format!("--key-file={}", path("server.key")),
                    format!("--trusted-ca-file={}", path("ca.crt")),
                    "--client-cert-auth".into(),
                ]);
            }
            all.extend(arguments.iter().map(ToString::to_string));
            Member { process: None, arguments: all, client_port: *client }
        };
        let members = ports.iter().enumerate().map(member).collect();
        let mut etcd = Self { members, folder, tls };
        for index in 0..etcd.members.len() {
            etcd.run(index);
        }
        etcd.wait_until_ready().await;
        etcd
    }

    async fn wait_until_ready(&self) {
        let client = self.client();
        eventually_for(READY_WITHIN, || async {
            client
                .put("ready", b"", false)
                .await
                .map_err(|error| format!("{error}: {}", self.log(0)))
        })
        .await;
        client.delete("ready").await.expect("delete a key");
    }

    /// Starts a member, with the data that it has.
    pub fn run(&mut self, index: usize) {
        let log = self.folder.path().join(format!("m{index}.log"));
        let member = &mut self.members[index];
        member.process = Some(Process::start(&binary("etcd"), &member.arguments, &log));
    }

    /// Kills a member.
    pub fn kill(&mut self, index: usize) {
        self.members[index].process = None;
    }

    /// Keeps a copy of what all members have stored. They are away meanwhile.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn save(&mut self) {
        self.swap_data("data", "copy").await;
    }

    /// Goes back to the copy: later writes are lost.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn restore(&mut self) {
        self.swap_data("copy", "data").await;
    }

    async fn swap_data(&mut self, from: &str, to: &str) {
        (0..self.size()).for_each(|member| self.kill(member));
        let path = |member: usize, which: &str| {
            let suffix = if which == "copy" { "-copy" } else { "" };
            self.folder.path().join(format!("m{member}{suffix}"))
        };
        for member in 0..self.size() {
            let (from, to) = (path(member, from), path(member, to));
            // There is none the first time.
            let _ = std::fs::remove_dir_all(&to);
            let copied = std::process::Command::new("cp").arg("-a").args([&from, &to]).status();
            assert!(copied.expect("run cp").success(), "copy {}", from.display());
        }
        (0..self.size()).for_each(|member| self.run(member));
        self.wait_until_ready().await;
    }

    /// The member that leads, if there is a leader.
    ///
    /// # Panics
    /// If the configuration is wrong.
    pub async fn leader(&self) -> Option<usize> {
        for member in 0..self.size() {
            if admin::leads(&self.client_of(member)).await {
                return Some(member);
            }
        }
        None
    }

    /// Takes away what a killed member has stored.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn wipe(&mut self, index: usize) {
        self.kill(index);
        std::fs::remove_dir_all(self.folder.path().join(format!("m{index}"))).expect("remove data");
    }

    /// Sends a member a signal.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, index: usize, signal: Signal) {
        self.members[index].process.as_ref().expect("a running member").signal(signal);
    }

    /// Where a member listens.
    pub fn port(&self, index: usize) -> u16 {
        self.members[index].client_port
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The end of a member's log.
    pub fn log(&self, index: usize) -> String {
        let log = self.members[index].process.as_ref().map(Process::output).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// A configuration file for clients, of this user where there is TLS.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn config(&self, user: &str) -> PathBuf {
        let ports: Vec<u16> = self.members.iter().map(|member| member.client_port).collect();
        self.config_via(user, &ports)
    }

    /// The same by way of these ports.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn config_via(&self, user: &str, ports: &[u16]) -> PathBuf {
        let scheme = if self.tls { "https" } else { "http" };
        let endpoint = |port: &u16| format!("- {scheme}://127.0.0.1:{port}");
        let mut lines = vec!["endpoints:".to_owned()];
        lines.extend(ports.iter().map(endpoint));
        if self.tls {
            let file = |name: &str| self.folder.path().join(name).display().to_string();
            lines.push(format!("trusted-ca-file: {}", file("ca.crt")));
            lines.push(format!("cert-file: {}", file(&format!("{user}.crt"))));
            lines.push(format!("key-file: {}", file(&format!("{user}.key"))));
        }
        let names: Vec<String> = ports.iter().map(u16::to_string).collect();
        let path = self.folder.path().join(format!("{user}-{}.config", names.join("-")));
        let text = lines.join("\n") + "\n";
        // Somebody may be reading it: what is right stays.
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            std::fs::write(&path, text).expect("write a configuration");
        }
        path
    }

    /// Options of a client without a rate.
    pub fn options(&self, user: &str) -> Options {
        options(&self.config(user))
    }

    /// An administrator's client.
    ///
    /// # Panics
    /// If the configuration is wrong.
    pub fn client(&self) -> Client {
        admin::client(&self.config("root"))
    }

    /// An administrator's client of one member.
    ///
    /// # Panics
    /// If the configuration is wrong.
    pub fn client_of(&self, member: usize) -> Client {
        admin::client(&self.config_via("root", &[self.port(member)]))
    }

    /// Revokes a lease, and deletes what hangs on it.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn revoke(&self, lease: i64) {
        let request = crate::messages::LeaseRequest { id: lease };
        let method = "/etcdserverpb.Lease/LeaseRevoke";
        let client = self.client();
        let answer: Result<crate::messages::Done, _> =
            client.ask(("set", "revoke"), "lease", method, &request).await;
        answer.expect("revoke a lease");
    }

    /// Gives back the space of what was compacted, and takes the alarms off.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn make_room(&self) {
        let members: Vec<Client> = (0..self.size()).map(|member| self.client_of(member)).collect();
        admin::make_room(&members).await;
    }

    /// Makes the users that a cluster mesh has, and lets nobody else in.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn enable_users(&self) {
        admin::enable_users(&self.client()).await;
    }

    /// Where files of the etcd lie.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Options of a client without a rate, whose etcd is in this file.
pub fn options(config: &Path) -> Options {
    Options {
        max_inflight: 100,
        source: Source::File(config.into()),
        ..Options::of_file(config, UNLIMITED)
    }
}
