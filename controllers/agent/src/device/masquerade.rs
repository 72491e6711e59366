//! Decides which packets of pods leave the node with the node's address.
//!
//! Those that go out of the cluster: the world does not know the way back to a pod. And which
//! packets of others go to pods with the router's address: those that this node forwards to
//! another node's pod, whose answer has to come back by this node. The same goes for pods that
//! reach another one by a port of the node: the answer has to come back to where the destination
//! was changed, for the datapath would take it straight to the pod.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Stdio;

use ipnet::IpNet;
use tokio::io::AsyncWriteExt as _;

use super::Error;
use super::name::{HOST, POD_PREFIX};

const TABLE: &str = "cilium";

/// What masquerading depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The node's own pod ranges, of the families that are masqueraded.
    pub sources: Vec<IpNet>,
    /// The router's addresses.
    pub routers: Vec<IpAddr>,
    /// Destinations that know the way back (`ipv4-native-routing-cidr` and its like).
    pub native: Vec<IpNet>,
    /// The devices by which packets leave; empty means all that are not Cilia's own.
    pub interfaces: Vec<String>,
}

impl Plan {
    /// The table, as `nft -f` takes it: one transaction that replaces what was there.
    pub fn ruleset(&self) -> String {
        let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\n");
        if self.sources.is_empty() {
            return text;
        }
        let _ = write!(text, "table inet {TABLE} {{\n\tchain postrouting {{\n");
        // Before kube-proxy's, which would choose an address to which answers don't find back.
        text.push_str("\t\ttype nat hook postrouting priority srcnat - 1; policy accept;\n");
        for router in &self.routers {
            let ip = if router.is_ipv4() { "ip" } else { "ip6" };
            let own = self.sources.iter().filter(|net| net.addr().is_ipv4() == router.is_ipv4());
            let own: Vec<_> = own.map(ToString::to_string).collect();
            if !own.is_empty() {
                let own = own.join(", ");
                let _ = writeln!(
                    text,
                    "\t\toifname \"{HOST}\" {ip} saddr != {{ {own} }} snat {ip} to {router}"
                );
                let _ = writeln!(
                    text,
                    "\t\toifname {{ \"{HOST}\", \"{POD_PREFIX}*\" }} ct status dnat {ip} saddr {{ {own} }} snat {ip} to {router}"
                );
            }
        }
        text.push_str("\t\toifname { \"lo\", \"cilium_*\", \"lxc*\" } return\n");
        let interfaces: Vec<_> =
            self.interfaces.iter().map(|name| format!("{:?}", name.replace('+', "*"))).collect();
        let by = if interfaces.is_empty() {
            String::new()
        } else {
            format!("oifname {{ {} }} ", interfaces.join(", "))
        };
        for source in &self.sources {
            let ip = if source.addr().is_ipv4() { "ip" } else { "ip6" };
            let native =
                self.native.iter().filter(|net| net.addr().is_ipv4() == source.addr().is_ipv4());
            for net in native {
                let _ = writeln!(text, "\t\t{ip} saddr {source} {ip} daddr {} return", net.trunc());
            }
            let _ = writeln!(text, "\t\t{ip} saddr {source} {ip} daddr != {source} {by}masquerade");
        }
        text.push_str("\t}\n}\n");
        text
    }
}

/// Loads the table.
pub async fn ensure(plan: &Plan) -> Result<(), Error> {
    let failed = |cause: String| Error::Nftables { table: TABLE, cause };
    let mut nft = tokio::process::Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|cause| failed(format!("start nft: {cause}")))?;
    if let Some(mut input) = nft.stdin.take() {
        input
            .write_all(plan.ruleset().as_bytes())
            .await
            .map_err(|cause| failed(cause.to_string()))?;
    }
    let output = nft.wait_with_output().await.map_err(|cause| failed(cause.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn every_family_has_its_rule() {
        let plan = Plan {
            sources: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/120".parse().unwrap()],
            routers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            native: vec!["10.0.0.0/8".parse().unwrap()],
            interfaces: vec![],
        };
        let text = plan.ruleset();
        assert!(text.contains("ip saddr 10.0.0.0/24 ip daddr 10.0.0.0/8 return"), "{text}");
        assert!(text.contains("ip saddr 10.0.0.0/24 ip daddr != 10.0.0.0/24 masquerade"), "{text}");
        assert!(text.contains("ip6 saddr fd00::/120 ip6 daddr != fd00::/120 masquerade"), "{text}");
        assert!(
            text.contains(
                "oifname \"cilium_host\" ip saddr != { 10.0.0.0/24 } snat ip to 10.0.0.1"
            ),
            "{text}"
        );
        // A chain is read from its top: what was sent to another place must not return before.
        let [redirected, others] =
            ["ct status dnat ip saddr { 10.0.0.0/24 } snat ip to 10.0.0.1", "return"]
                .map(|words| text.find(words).unwrap_or_else(|| panic!("{words}: {text}")));
        assert!(redirected < others, "{text}");
        assert!(!Plan::default().ruleset().contains("chain"), "nothing to masquerade, no table");
    }

    #[test]
    fn the_kernel_takes_it() {
        crate::device::testing::in_new_netns(|| async {
            let plan = Plan {
                sources: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/120".parse().unwrap()],
                routers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                native: vec!["10.0.0.0/8".parse().unwrap()],
                interfaces: vec!["eth+".into()],
            };
            for plan in [&plan, &plan, &Plan::default()] {
                super::ensure(plan).await.unwrap();
            }
        });
    }
}
