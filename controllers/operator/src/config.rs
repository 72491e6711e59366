//! Decides whether the settings make sense together, before anything is started.
//!
//! Cilium checks most of this on the leader only, after parts have started.

use anyhow::Context as _;
use cilia_runtime::config::{Config, Error, Flags, Program};
use cilia_runtime::leader;

use crate::endpoint_slice::ADAPTIVE_FLAG;
use crate::http;
use crate::wiring::{Duty, duties};

/// The Lease of all operators of a cluster.
pub(crate) const LEASE: &str = "cilium-operator-resource-lock";

/// The flags that the process itself, the CRD registration and the duties read.
const BUILT: &[&str] = &[
    ADAPTIVE_FLAG,
    "auto-create-cilium-pod-ip-pools",
    "ces-max-ciliumendpoints-per-ces",
    "ces-rate-limits",
    "cilium-endpoint-gc-interval",
    "cilium-pod-labels",
    "cilium-pod-namespace",
    "cluster-id",
    "cluster-name",
    "cluster-pool-ipv4-cidr",
    "cluster-pool-ipv4-mask-size",
    "cluster-pool-ipv6-cidr",
    "cluster-pool-ipv6-mask-size",
    "clustermesh-cache-ttl",
    "clustermesh-config",
    "cmdref",
    "config",
    "config-dir",
    "controller-group-metrics",
    "debug",
    "disable-endpoint-crd",
    "double-write-metric-reporter-interval",
    "enable-cilium-clusterwide-network-policy",
    "enable-cilium-endpoint-slice",
    "enable-cilium-network-policy",
    "enable-cilium-operator-server-access",
    "enable-extended-ip-protocols",
    "enable-host-firewall",
    "enable-ipv4",
    "enable-ipv6",
    "enable-k8s",
    "enable-k8s-networkpolicy",
    "enable-metrics",
    "enable-node-selector-labels",
    "enable-non-default-deny-policies",
    "agent-not-ready-taint-key",
    "enable-l7-proxy",
    "enable-policy",
    "fixed-identity-mapping",
    "identity-allocation-mode",
    "identity-gc-interval",
    "identity-gc-rate-interval",
    "identity-gc-rate-limit",
    "identity-heartbeat-timeout",
    "identity-management-mode",
    "ipam",
    "k8s-api-server-urls",
    "k8s-client-connection-timeout",
    "k8s-kubeconfig-path",
    "k8s-namespace",
    "label-prefix-file",
    "kvstore",
    "kvstore-lease-ttl",
    "kvstore-max-consecutive-quorum-errors",
    "kvstore-opt",
    "labels",
    "leader-election-lease-duration",
    "leader-election-renew-deadline",
    "leader-election-retry-period",
    "log-opt",
    "max-connected-clusters",
    "nodes-gc-interval",
    "operator-api-serve-addr",
    "operator-k8s-client-burst",
    "operator-k8s-client-qps",
    "operator-prometheus-enable-tls",
    "operator-prometheus-serve-addr",
    "parallel-alloc-workers",
    "operator-prometheus-tls-cert-file",
    "operator-prometheus-tls-client-ca-files",
    "operator-prometheus-tls-key-file",
    "pod-restart-selector",
    "policy-default-local-cluster",
    "remove-cilium-node-taints",
    "set-cilium-is-up-condition",
    "set-cilium-node-taints",
    "shell-sock-path",
    "skip-crd-creation",
    "synchronize-k8s-nodes",
    "synchronize-k8s-services",
    "taint-sync-workers",
    "unmanaged-pod-watcher-interval",
    "validate-network-policy",
];

/// Cilium's flags and our own.
pub(crate) fn flags() -> Flags {
    Flags::operator().with(ADAPTIVE_FLAG, "bool", "true")
}

/// Whether a flag has an effect.
pub(crate) fn is_built(flag: &str) -> bool {
    BUILT.contains(&flag)
}

/// The program and its flags.
pub(crate) fn program() -> Program {
    Program {
        name: "cilia-operator",
        about: "The Cilia operator does what a cluster needs once: CRDs, pod CIDRs, endpoint slices, garbage collection.",
        flags: flags(),
        built: BUILT,
    }
}

/// Errors for settings that cannot work, whatever the cluster looks like.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    check_names(config)?;
    check_cluster(config)?;
    check_identities(config)?;
    check_ipam(config)?;
    leader::Settings::new(config, LEASE)?;
    http::check(config)?;
    for Duty { name, check, .. } in duties() {
        check(config).with_context(|| format!("configuration of {name}"))?;
    }
    Ok(())
}

/// The namespace of the agents' pods; empty for all.
pub(crate) fn agents_namespace(config: &Config) -> &str {
    let own = Some(config.string("cilium-pod-namespace")).filter(|name| !name.is_empty());
    own.unwrap_or(config.string("k8s-namespace"))
}

/// Values that are one of a few words.
fn check_names(config: &Config) -> Result<(), Error> {
    config.one_of("enable-policy", &["default", "always", "never"])?;
    config.one_of("identity-management-mode", &["agent", "operator", "both"])?;
    config.one_of("default-lb-service-ipam", &["lbipam", "nodeipam", "none"])?;
    config.one_of("kvstore", &["", "etcd"])?;
    Ok(())
}

fn check_cluster(config: &Config) -> Result<(), Error> {
    let name = config.string("cluster-name");
    let edges = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.len() <= 32
        && name.starts_with(edges)
        && name.ends_with(edges)
        && name.chars().all(|c| edges(c) || c == '-');
    if !fits {
        let allowed = "at most 32 characters a-z, 0-9 and -, with a letter or digit at both ends";
        return Err(config.reject("cluster-name", allowed));
    }
    let most = config.uint("max-connected-clusters");
    if most != 255 && most != 511 {
        return Err(config.reject("max-connected-clusters", "255 or 511"));
    }
    let id = config.uint("cluster-id");
    if id > most {
        let allowed = format!("0 to {most}, the value of max-connected-clusters");
        return Err(config.reject("cluster-id", allowed));
    }
    if id != 0 && name == "default" {
        return Err(
            config.reject("cluster-name", "any name but \"default\" when cluster-id is not 0")
        );
    }
    Ok(())
}

fn check_identities(config: &Config) -> anyhow::Result<()> {
    let modes = ["crd", "kvstore", "doublewrite-readkvstore", "doublewrite-readcrd"];
    let mode = config.one_of("identity-allocation-mode", &modes)?;
    if let Some(warning) = outside_of_kubernetes(config) {
        tracing::warn!("{warning}");
    }
    if mode != "kvstore" {
        if !config.bool("enable-k8s") {
            return Err(config
                .reject("identity-allocation-mode", "kvstore when enable-k8s is false")
                .into());
        }
        if config.duration("cilium-endpoint-gc-interval").is_zero() {
            let allowed = format!(
                "more than 0 when identity-allocation-mode is {mode}: identities are collected by the endpoints that use them"
            );
            return Err(config.reject("cilium-endpoint-gc-interval", allowed).into());
        }
    }
    let filter = label_filter(config)?;
    for warning in filter.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Which labels make an identity.
pub(crate) fn label_filter(config: &Config) -> anyhow::Result<cilia_identity::Filter> {
    let prefix_file = match config.path("label-prefix-file") {
        Some(path) => {
            let text = std::fs::read_to_string(&path);
            Some(text.with_context(|| format!("read label-prefix-file {}", path.display()))?)
        }
        None => None,
    };
    cilia_identity::Filter::new(config.strings("labels"), prefix_file.as_deref())
        .with_context(|| format!("labels, set by {}", config.origin("labels")))
}

/// What the user should know about identities in a kvstore that is not there.
fn outside_of_kubernetes(config: &Config) -> Option<String> {
    let flag = "identity-allocation-mode";
    let (mode, origin) = (config.string(flag), config.origin(flag));
    if crate::kvstore::is_on(config) {
        return None;
    }
    let lost = match mode {
        "crd" => return None,
        "kvstore" => "no identity is collected",
        _ => "of the two only CiliumIdentities are collected",
    };
    Some(format!(
        "{flag}: {mode}, set by {origin}: {lost}, because kvstore is empty; set that to etcd, or this to crd"
    ))
}

fn check_ipam(config: &Config) -> Result<(), Error> {
    let cloud = |binary: &str| {
        let allowed = format!(
            "cluster-pool, multi-pool, kubernetes, crd or delegated-plugin; for this mode use {binary}"
        );
        config.reject("ipam", allowed)
    };
    match config.string("ipam") {
        "eni" => return Err(cloud("cilium-operator-aws")),
        "azure" => return Err(cloud("cilium-operator-azure")),
        "alibabacloud" => return Err(cloud("cilium-operator-alibabacloud")),
        _ => config.one_of(
            "ipam",
            &["cluster-pool", "multi-pool", "kubernetes", "crd", "delegated-plugin"],
        )?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BUILT, check, flags, outside_of_kubernetes, program};
    use cilia_runtime::config::{Config, Start};

    fn checked(args: &[&str]) -> Result<(), String> {
        // What cluster-pool must have.
        let ranges = ["--cluster-pool-ipv4-cidr=10.0.0.0/8", "--cluster-pool-ipv6-cidr=fd00::/104"];
        let args = ranges.iter().chain(args).map(ToString::to_string);
        let Start::Run(config) = program().start(args, []).map_err(|e| e.to_string())? else {
            panic!("must run")
        };
        check(&config).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn built_flags_exist_and_are_read() {
        let config = Config::load(flags(), [], []).unwrap();
        for flag in BUILT {
            assert!(config.has(flag), "{flag}");
        }
        let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = [own.join("src"), own.join("../runtime/src")];
        let unread = cilia_runtime::testing::unread_flags(BUILT, &folders);
        assert_eq!(unread, [""; 0], "accepted without effect and without a warning");
    }

    #[test]
    fn identities_elsewhere_are_warned_of() {
        let warning = |args: &[&str]| {
            let args = args.iter().map(ToString::to_string);
            outside_of_kubernetes(&Config::load(flags(), args, []).unwrap())
        };
        assert_eq!(warning(&["--identity-allocation-mode=crd"]), None);
        let default = warning(&[]).unwrap_or_default();
        assert!(
            default.starts_with("identity-allocation-mode: kvstore, set by its default"),
            "{default}"
        );
        let on = ["--kvstore=etcd", "--identity-allocation-mode=kvstore"];
        assert_eq!(warning(&on), None);
        let both = warning(&["--identity-allocation-mode=doublewrite-readcrd"]).unwrap_or_default();
        assert!(both.contains("only CiliumIdentities"), "{both}");
    }

    #[test]
    fn settings_that_work() {
        let cases: &[&[&str]] = &[
            &[],
            &["--identity-allocation-mode=crd", "--cluster-name=a-1", "--cluster-id=255"],
            &["--cluster-id=511", "--max-connected-clusters=511", "--cluster-name=east"],
            &["--ipam=kubernetes", "--cluster-pool-ipv4-cidr=nonsense"],
            &["--identity-allocation-mode=kvstore", "--enable-k8s=false"],
        ];
        for args in cases {
            assert_eq!(checked(args), Ok(()), "{args:?}");
        }
    }

    #[test]
    fn settings_that_do_not_name_the_field_and_the_fault() {
        let cases: &[(&[&str], &[&str])] = &[
            (
                &["--cluster-name=Bad_Name"],
                &["cluster-name: \"Bad_Name\"", "at most 32 characters"],
            ),
            (
                &["--cluster-id=3"],
                &["cluster-name: \"default\", set by its default", "cluster-id is not 0"],
            ),
            (&["--cluster-id=256", "--cluster-name=a"], &["cluster-id: \"256\"", "0 to 255"]),
            (&["--max-connected-clusters=300"], &["max-connected-clusters: \"300\"", "255 or 511"]),
            (&["--ipam=eni"], &["ipam: \"eni\"", "cilium-operator-aws"]),
            (&["--ipam=pool"], &["ipam: \"pool\"", "one of cluster-pool"]),
            (
                &["--identity-allocation-mode=crd", "--cilium-endpoint-gc-interval=0"],
                &[
                    "cilium-endpoint-gc-interval: \"0s\"",
                    "more than 0 when identity-allocation-mode is crd",
                ],
            ),
            (
                &["--identity-allocation-mode=crd", "--enable-k8s=false"],
                &["identity-allocation-mode", "enable-k8s"],
            ),
            (
                &["--cluster-pool-ipv4-cidr=10.0.0.0/33"],
                &["configuration of ipam: cluster-pool-ipv4-cidr: \"10.0.0.0/33\""],
            ),
            (
                &["--leader-election-renew-deadline=20s"],
                &["leader-election-lease-duration: \"15s\""],
            ),
            (
                &["--enable-policy=sometimes"],
                &["enable-policy: \"sometimes\"", "default, always, never"],
            ),
            (
                &["--identity-management-mode=nobody"],
                &["identity-management-mode: \"nobody\"", "agent, operator, both"],
            ),
            (
                &["--unmanaged-pod-watcher-interval=-1"],
                &["unmanaged-pod-watcher-interval: \"-1\"", "0 or more"],
            ),
            (
                &["--label-prefix-file=/no/such/file"],
                &["label-prefix-file /no/such/file", "No such file"],
            ),
        ];
        for (args, wants) in cases {
            let error = checked(args).unwrap_err();
            for want in *wants {
                assert!(error.contains(want), "{args:?}: {error} lacks {want}");
            }
        }
    }
}
