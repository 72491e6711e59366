//! Decides what the agent's flags mean for its parts, and which of them have an effect.

mod datapath;
mod map_sizes;

use std::path::PathBuf;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::{Filter, Fixed, Space, well_known};
use cilia_loader::{MapSizes, NodeConfig};
use cilia_policy::Mode;
use cilia_runtime::config::{Config as Flags, Error, Program};

use crate::clustermesh;
use crate::cni::conflist::Conflist;
use crate::conntrack::Pace;
use crate::identity::{self, Management};
use crate::kvstore;
use crate::node;
use crate::policy::Kinds;

/// The flags that do something; the others warn when they are set.
const BUILT: &[&str] = &[
    "agent-health-port",
    "allow-icmp-frag-needed",
    "allow-localhost",
    "api-rate-limit",
    "bpf-ct-global-any-max",
    "bpf-ct-global-tcp-max",
    "bpf-ct-timeout-regular-any",
    "bpf-ct-timeout-regular-tcp",
    "bpf-ct-timeout-regular-tcp-fin",
    "bpf-ct-timeout-regular-tcp-syn",
    "bpf-ct-timeout-service-any",
    "bpf-ct-timeout-service-tcp",
    "bpf-fragments-map-max",
    "bpf-lb-map-max",
    "bpf-map-dynamic-size-ratio",
    "bpf-policy-map-max",
    "bpf-policy-stats-map-max",
    "bpf-root",
    "cluster-id",
    "cluster-name",
    "clustermesh-cache-ttl",
    "clustermesh-config",
    "clustermesh-sync-timeout",
    "cni-chaining-mode",
    "cni-exclusive",
    "cni-log-file",
    "config",
    "config-dir",
    "conntrack-gc-interval",
    "conntrack-gc-max-interval",
    "debug",
    "devices",
    "egress-masquerade-interfaces",
    "enable-cilium-api-server-access",
    "enable-cilium-clusterwide-network-policy",
    "enable-cilium-endpoint-slice",
    "enable-cilium-network-policy",
    "enable-endpoint-lockdown-on-policy-overflow",
    "enable-extended-ip-protocols",
    "enable-host-firewall",
    "enable-ipv4",
    "enable-ipv4-masquerade",
    "enable-ipv6",
    "enable-ipv6-masquerade",
    "enable-k8s-networkpolicy",
    "enable-monitor",
    "enable-node-selector-labels",
    "enable-non-default-deny-policies",
    "enable-policy",
    "enable-sctp",
    "enable-well-known-identities",
    "fixed-identity-mapping",
    "identity-allocation-mode",
    "identity-allocation-sync-interval",
    "identity-allocation-timeout",
    "identity-change-grace-period",
    "identity-management-mode",
    "ipam",
    "ipam-cilium-node-update-rate",
    "ipam-default-ip-pool",
    "ipam-multi-pool-pre-allocation",
    "ipv4-native-routing-cidr",
    "ipv6-native-routing-cidr",
    "k8s-api-server-urls",
    "k8s-client-burst",
    "k8s-client-connection-timeout",
    "k8s-client-qps",
    "k8s-kubeconfig-path",
    "k8s-namespace",
    "kvstore",
    "kvstore-lease-ttl",
    "kvstore-max-consecutive-quorum-errors",
    "kvstore-opt",
    "label-prefix-file",
    "labels",
    "log-opt",
    "max-connected-clusters",
    "metrics",
    "monitor-aggregation-flags",
    "monitor-aggregation-interval",
    "monitor-queue-size",
    "mtu",
    "policy-accounting",
    "policy-audit-mode",
    "policy-cidr-match-mode",
    "policy-default-local-cluster",
    "procfs",
    "prometheus-serve-addr",
    "routing-mode",
    "socket-path",
    "state-dir",
    "tunnel-port",
    "tunnel-protocol",
    "write-cni-conf-when-ready",
];

/// The BPF file system, where `bpf-root` names no other.
const BPF_ROOT: &str = "/sys/fs/bpf";

/// The program and its flags.
pub fn program() -> Program {
    Program {
        name: "cilia-agent",
        about: "The Cilia agent connects the pods of its node and enforces policy on them.",
        flags: cilia_runtime::config::Flags::agent(),
        built: BUILT,
    }
}

/// What the flags ask for, checked.
#[derive(Debug)]
pub struct Settings {
    /// The node.
    pub node: node::Config,
    /// How the node uses identities.
    pub identities: identity::Settings,
    /// Where identities and addresses are, beside Kubernetes.
    pub kvstore: kvstore::Settings,
    /// Other clusters.
    pub clustermesh: Option<clustermesh::Settings>,
    /// Which labels make an identity.
    pub filter: Arc<Filter>,
    /// What policies mean.
    pub policy: cilia_policy::Config,
    /// Which kinds of policy count.
    pub kinds: Kinds,
    /// Addresses are learned from slices, not from endpoints.
    pub slices: bool,
    /// Where the maps and programs are pinned.
    pub bpf_root: PathBuf,
    /// How many entries each map holds.
    pub map_sizes: MapSizes,
    /// What the programs know of the node beside its devices.
    pub datapath: NodeConfig,
    /// The node itself has policy.
    pub host_firewall: bool,
    /// The devices on which it counts, a trailing `+` for all that begin so; none means those with
    /// the node's addresses.
    pub guarded_devices: Vec<String>,
    /// An endpoint whose policy does not fit into its map exchanges nothing.
    pub lockdown: bool,
    /// How often expired connections are collected.
    pub conntrack: Pace,
    /// Where endpoints are written down.
    pub state_dir: PathBuf,
    /// Where the API is served; deletions that plugins keep for the agent lie beside it.
    pub socket: PathBuf,
    /// Who is told of events, and how far behind they may be.
    pub events: crate::events::Settings,
    /// The CNI configuration to write once ready.
    pub conflist: Option<Conflist>,
    /// Where the kubelet's probes are answered.
    pub health: String,
}

impl Settings {
    /// Reads the flags for the node of this name.
    pub fn read(node_name: &str, flags: &Flags) -> anyhow::Result<Self> {
        let node = node::Config::read(node_name, flags)?;
        crate::api::allowed(flags)?;
        crate::api::check_limits(flags)?;
        let cluster_id = number::<u32>(flags, "cluster-id")?;
        let health_host = if node.ipv4 { "127.0.0.1" } else { "[::1]" };
        let policy = policy(flags)?;
        Ok(Self {
            identities: identities(cluster_id, flags)?,
            kvstore: kvstore::Settings::read(flags)?,
            clustermesh: clustermesh::Settings::read(flags),
            filter: Arc::new(filter(flags)?),
            kinds: Kinds {
                cilium: flags.bool("enable-cilium-network-policy"),
                clusterwide: flags.bool("enable-cilium-clusterwide-network-policy"),
                kubernetes: flags.bool("enable-k8s-networkpolicy"),
            },
            slices: flags.bool("enable-cilium-endpoint-slice"),
            bpf_root: flags.path("bpf-root").unwrap_or_else(|| BPF_ROOT.into()),
            map_sizes: map_sizes::read(flags)?,
            datapath: datapath::read(flags, cluster_id, node.tunnel_port)?,
            host_firewall: flags.bool("enable-host-firewall"),
            guarded_devices: flags.strings("devices").to_vec(),
            lockdown: flags.bool("enable-endpoint-lockdown-on-policy-overflow"),
            conntrack: Pace::read(flags),
            state_dir: path(flags, "state-dir")?,
            socket: path(flags, "socket-path")?,
            events: crate::events::Settings {
                socket: flags.bool("enable-monitor"),
                backlog: number(flags, "monitor-queue-size")?,
            },
            conflist: conflist(flags)?,
            health: format!("{health_host}:{}", number::<u16>(flags, "agent-health-port")?),
            node,
            policy,
        })
    }
}

fn identities(cluster_id: u32, flags: &Flags) -> Result<identity::Settings, Error> {
    let management =
        match flags.one_of("identity-management-mode", &["agent", "operator", "both"])? {
            "operator" => Management::Operator,
            _ => Management::Agent,
        };
    let space = Space::new(cluster_id, number(flags, "max-connected-clusters")?)
        .map_err(|error| flags.reject("cluster-id", error.to_string()))?;
    let namespace = Some(flags.string("k8s-namespace")).filter(|namespace| !namespace.is_empty());
    let known = flags.bool("enable-well-known-identities");
    let known =
        known.then(|| well_known(flags.string("cluster-name"), namespace.unwrap_or("kube-system")));
    Ok(identity::Settings {
        space,
        management,
        well_known: known.into_iter().flatten().chain(fixed_identities(flags)?).collect(),
        timeout: flags.duration("identity-allocation-timeout"),
        grace: flags.duration("identity-change-grace-period"),
    })
}

/// Numbers that pods have that are labelled with their names (`io.cilium.fixed-identity`).
fn fixed_identities(flags: &Flags) -> Result<Vec<(NumericIdentity, Labels)>, Error> {
    let flag = "fixed-identity-mapping";
    let fixed = Fixed::parse(flags.map(flag)).ok_or_else(|| flags.reject(flag, Fixed::ALLOWED));
    Ok(fixed?.all().collect())
}

fn policy(flags: &Flags) -> Result<cilia_policy::Config, Error> {
    let mode = match flags.one_of("enable-policy", &["default", "always", "never"])? {
        "always" => Mode::Always,
        "never" => Mode::Never,
        _ => Mode::Default,
    };
    // `auto` means always where Kubernetes is on: the kubelet must reach its pods.
    let localhost = flags.one_of("allow-localhost", &["auto", "always", "policy"])?;
    Ok(cilia_policy::Config {
        mode,
        allow_localhost: localhost != "policy",
        dual_stack: flags.bool("enable-ipv4") && flags.bool("enable-ipv6"),
        cluster: flags.string("cluster-name").into(),
        local_cluster: flags.bool("policy-default-local-cluster"),
        non_default_deny: flags.bool("enable-non-default-deny-policies"),
        extended_protocols: flags.bool("enable-extended-ip-protocols"),
        node_selectors: flags.bool("enable-node-selector-labels"),
        // Rules for layer 7 are not enforced: they let nothing through.
        l7_proxy: flags.bool("enable-l7-proxy"),
        host_firewall: flags.bool("enable-host-firewall"),
        cidrs_match_nodes: flags
            .strings("policy-cidr-match-mode")
            .iter()
            .any(|mode| mode == "nodes"),
        ipv6_only: !flags.bool("enable-ipv4") && flags.bool("enable-ipv6"),
    })
}

fn filter(flags: &Flags) -> anyhow::Result<Filter> {
    let file = flags.path("label-prefix-file");
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| {
            flags.reject("label-prefix-file", format!("a file that can be read: {error}"))
        })
    };
    let text = file.as_ref().map(read).transpose()?;
    let filter = Filter::new(flags.strings("labels"), text.as_deref())
        .map_err(|error| flags.reject("labels", error.to_string()))?;
    for warning in filter.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(filter)
}

fn conflist(flags: &Flags) -> Result<Option<Conflist>, Error> {
    let mode = flags.one_of("cni-chaining-mode", &["none", "portmap"])?;
    let conflist = |path| Conflist {
        path,
        log_file: flags.string("cni-log-file").to_owned(),
        debug: flags.bool("debug"),
        exclusive: flags.bool("cni-exclusive"),
        portmap: mode == "portmap",
    };
    Ok(flags.path("write-cni-conf-when-ready").map(conflist))
}

fn path(flags: &Flags, flag: &str) -> Result<PathBuf, Error> {
    flags.path(flag).ok_or_else(|| flags.reject(flag, "a path"))
}

/// A number that fits its place, whichever kind of integer the flag is.
fn number<N: TryFrom<u64>>(flags: &Flags, flag: &str) -> Result<N, Error> {
    let text = flags.value(flag).to_string();
    let number = text.parse::<u64>().ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| {
        let bits = 8 * size_of::<N>();
        flags.reject(flag, format!("a number from 0 that fits into {bits} bits"))
    })
}

#[cfg(test)]
mod tests {
    use super::{BUILT, Settings};
    use cilia_runtime::config::{Config, Flags};

    fn read(args: &[&str]) -> Result<Settings, String> {
        let args = ["--identity-allocation-mode=crd"].iter().chain(args);
        let config = Config::load(Flags::agent(), args.map(ToString::to_string), [])
            .map_err(|error| error.to_string())?;
        Settings::read("n1", &config).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn built_flags_exist_and_are_read() {
        let config = Config::load(Flags::agent(), [], []).unwrap();
        for flag in BUILT {
            assert!(config.has(flag), "{flag}");
        }
        let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = [own.join("src"), own.join("../runtime/src"), own.join("../kvstore/src")];
        let unread = cilia_runtime::testing::unread_flags(BUILT, &folders);
        assert_eq!(unread, [""; 0], "accepted without effect and without a warning");
    }

    #[test]
    fn errors_name_the_flag_and_what_is_allowed() {
        let cases: &[(&[&str], &str)] = &[
            (&["--enable-ipv4=false", "--enable-ipv6=false"], "enable-ipv4"),
            (
                &["--identity-allocation-mode=kvstore"],
                "etcd when identity-allocation-mode is kvstore",
            ),
            (&["--cluster-id=300"], "cluster-id"),
            (&["--enable-policy=sometimes"], "default, always, never"),
            (&["--bpf-policy-map-max=10"], "bpf-policy-map-max"),
            (&["--bpf-ct-timeout-regular-tcp=0s"], "bpf-ct-timeout-regular-tcp"),
            (&["--monitor-aggregation-flags=syn,moon"], "fin, syn, rst, psh, ack, urg"),
            (&["--ipv4-native-routing-cidr=10.0.0.0/33"], "ipv4-native-routing-cidr"),
            (&["--agent-health-port=70000"], "agent-health-port"),
            (&["--fixed-identity-mapping=127=web"], "the numbers from 128 to 255"),
            (&["--fixed-identity-mapping=256=web"], "fixed-identity-mapping"),
        ];
        for (args, want) in cases {
            let error = read(args).unwrap_err();
            assert!(error.contains(want), "{args:?}: {error} lacks {want}");
        }
    }

    #[test]
    fn programs_know_what_the_flags_say_of_them() {
        let of = |args: &[&str]| read(args).unwrap().datapath;
        assert!(!of(&[]).extended_protocols);
        assert!(of(&["--enable-extended-ip-protocols=true"]).extended_protocols);
        assert!(!of(&[]).sctp && of(&["--enable-sctp"]).sctp);
        assert!(of(&["--policy-audit-mode=true"]).policy_audit);
        assert!(of(&[]).policy_accounting && !of(&["--policy-accounting=false"]).policy_accounting);
        let timeouts = ["--bpf-ct-timeout-regular-tcp=1h", "--bpf-ct-timeout-service-any=30s"];
        let lives = of(&timeouts).lives;
        assert_eq!((lives.tcp, lives.tcp_syn, lives.service_any), (3600, 60, 30));
        assert_eq!(of(&[]).lives, cilia_loader::NodeConfig::default().lives);
        let seen = of(&["--monitor-aggregation-flags=syn,rst"]);
        assert_eq!((seen.report_flags, of(&[]).report_flags), (6, 7));
    }

    #[test]
    fn the_chart_s_settings_are_taken() {
        let settings = read(&["--write-cni-conf-when-ready=/etc/cni/net.d/05-cilium.conflist"]);
        assert!(settings.unwrap().conflist.is_some());
    }
}
