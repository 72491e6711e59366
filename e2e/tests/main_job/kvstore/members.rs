//! Decides how the cluster's kvstore runs: three members of etcd with TLS and users, beside the control plane.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cilia_e2e::scenario::{Stage, chart};
use cilia_e2e::wait::{Look, until, until_ok};
use cilia_kvstore::Client;
use cilia_kvstore::testing::{admin, certify};
use serde_json::json;
use tokio::process::Command;

/// How many members there are.
pub(super) const SIZE: usize = 3;
const LIMIT: Duration = Duration::from_mins(1);
const CLIENTS: u16 = 23_790;
const PEERS: u16 = 23_800;
/// Full after twenty of the largest values.
const QUOTA: u32 = 16 << 20;
/// The user that Cilia is: one with role `root`, as in Cilium's clusters.
const USER: &str = "admin-east";

/// The members; they end with the cluster.
pub(super) struct Members<'a> {
    stage: &'a Stage,
    folder: PathBuf,
    address: String,
}

impl<'a> Members<'a> {
    /// Starts them, unless a former scenario has.
    pub(super) async fn start(stage: &'a Stage) -> Result<Self> {
        let layout = &stage.cluster.layout;
        let server = layout.api_server();
        let host = server.trim_start_matches("https://").split(':').next();
        let address = host.context("the control plane has no address")?.to_owned();
        let members = Self { stage, folder: layout.state().join("kvstore"), address };
        if members.folder.exists() {
            return Ok(members);
        }
        fs::create_dir_all(&members.folder)?;
        certify(&members.folder, &[members.address.as_str()]);
        for member in 0..SIZE {
            members.run(member)?;
        }
        let root = members.root()?;
        until_ok("a first write to etcd", LIMIT, || root.put("ready", b"", false)).await?;
        admin::enable_users(&root).await;
        members.tell().await?;
        Ok(members)
    }

    /// Gives Cilia the certificate of its user.
    async fn tell(&self) -> Result<()> {
        let file = |name: &str| fs::read_to_string(self.folder.join(name));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": chart::NAMESPACE, "name": "cilium-etcd-secrets"},
            "stringData": {
                "etcd-client-ca.crt": file("ca.crt")?,
                "etcd-client.crt": file(&format!("{USER}.crt"))?,
                "etcd-client.key": file(&format!("{USER}.key"))?,
            },
        });
        Ok(self.stage.apply(&secret).await?)
    }

    /// Where a member listens.
    pub(super) fn url(&self, member: usize) -> String {
        format!("https://{}:{}", self.address, port(CLIENTS, member))
    }

    /// Starts a member, with the data that it has.
    pub(super) fn run(&self, member: usize) -> Result<()> {
        let (cluster, name) = (&self.stage.cluster, format!("kvstore-{member}"));
        let path = |name: &str| self.folder.join(name).display().to_string();
        let peer = |member: usize| format!("http://127.0.0.1:{}", port(PEERS, member));
        let all = (0..SIZE).map(|member| format!("m{member}={}", peer(member)));
        let words = vec![
            cluster.tools.path("etcd").display().to_string(),
            format!("--name=m{member}"),
            format!("--data-dir={}", path(&name)),
            "--unsafe-no-fsync".to_owned(),
            format!("--quota-backend-bytes={QUOTA}"),
            format!("--listen-client-urls={}", self.url(member)),
            format!("--advertise-client-urls={}", self.url(member)),
            format!("--listen-peer-urls={}", peer(member)),
            format!("--initial-advertise-peer-urls={}", peer(member)),
            format!("--initial-cluster={}", all.collect::<Vec<_>>().join(",")),
            format!("--cert-file={}", path("server.crt")),
            format!("--key-file={}", path("server.key")),
            format!("--trusted-ca-file={}", path("ca.crt")),
            "--client-cert-auth".to_owned(),
        ];
        let place = cluster.control_plane().place;
        Ok(place.start(cluster.cgroups(), &name, words, &cluster.layout.log(&name))?)
    }

    /// Kills a member.
    pub(super) async fn kill(&self, member: usize) -> Result<()> {
        let place = self.stage.cluster.control_plane().place;
        Ok(place.stop(self.stage.cluster.cgroups(), &format!("kvstore-{member}")).await?)
    }

    /// The member that leads.
    pub(super) async fn leader(&self) -> Result<usize> {
        let found = until("a leader of etcd", LIMIT, || async {
            for member in 0..SIZE {
                match self.client(&[member]) {
                    Ok(client) if admin::leads(&client).await => return Look::Done(member),
                    Ok(_) => {}
                    Err(error) => return Look::Not(error.to_string()),
                }
            }
            Look::Not("none".to_owned())
        });
        Ok(found.await?)
    }

    /// An administrator's client of all members.
    pub(super) fn root(&self) -> Result<Client> {
        self.client(&[0, 1, 2])
    }

    /// Gives back the space of what was compacted, and takes the alarms off.
    pub(super) async fn make_room(&self) -> Result<()> {
        let members = (0..SIZE).map(|member| self.client(&[member]));
        admin::make_room(&members.collect::<Result<Vec<_>>>()?).await;
        Ok(())
    }

    /// Cuts all nodes off from etcd, or lets them reach it again: connections are reset, and refused.
    pub(super) async fn cut(&self, cut: bool) -> Result<()> {
        const TABLE: &str = "inet kvstore-cut";
        let rule = format!(
            "table {TABLE} {{ chain out {{ type filter hook output priority 0; \
             ip daddr {} tcp dport {CLIENTS}-{} reject with tcp reset; }}; }}",
            self.address,
            port(CLIENTS, SIZE - 1)
        );
        let words = if cut { rule } else { format!("delete table {TABLE}") };
        for node in self.stage.cluster.nodes() {
            let net = format!("--net={}", node.place.net.display());
            let mut command = Command::new("nsenter");
            let output = command.args([&net, "--", "nft", &words]).output().await?;
            let told = String::from_utf8_lossy(&output.stderr);
            anyhow::ensure!(output.status.success(), "nft on {}: {told}", node.name());
        }
        Ok(())
    }

    fn client(&self, members: &[usize]) -> Result<Client> {
        let path = |name: &str| self.folder.join(name);
        let mut lines = vec!["endpoints:".to_owned()];
        lines.extend(members.iter().map(|member| format!("- {}", self.url(*member))));
        lines.push(format!("trusted-ca-file: {}", path("ca.crt").display()));
        lines.push(format!("cert-file: {}", path("root.crt").display()));
        lines.push(format!("key-file: {}", path("root.key").display()));
        let file = path(&format!("root-{members:?}.config"));
        fs::write(&file, lines.join("\n") + "\n")?;
        Ok(admin::client(&file))
    }
}

fn port(first: u16, member: usize) -> u16 {
    first + u16::try_from(member).unwrap_or_default()
}
