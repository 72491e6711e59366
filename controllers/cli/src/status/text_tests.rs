use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{Shown, render};

fn status() -> Value {
    json!({
        "kvstore": {"state": "Disabled", "msg": ""},
        "kubernetes": {"state": "Ok", "msg": "1.36 (v1.36.2) [linux/amd64]",
            "k8s-api-versions": ["core/v1::Pods", "cilium/v2::CiliumNode"]},
        "kube-proxy-replacement": {"mode": "True", "directRoutingDevice": "eth0",
            "deviceList": [{"name": "eth0", "ip": ["10.0.0.1", "fd00::1"]}, {"name": "eth1", "ip": []}]},
        "host-firewall": {"mode": "Disabled"},
        "srv6": {"enabled": false},
        "cni-chaining": {"mode": "none"},
        "cni-file": {"state": "Ok", "msg": "wrote /etc/cni/net.d/05-cilium.conflist"},
        "cilium": {"state": "Ok", "msg": "0.1.0"},
        "stale": {"b": "2026-01-01T00:00:00Z", "a": "2026-01-01T00:00:00Z"},
        "nodeMonitor": {"cpus": 2, "npages": 64, "pagesize": 4096, "lost": 3, "unknown": 1},
        "cluster": {"ciliumHealth": {"state": "Disabled", "msg": ""}},
        "ipam": {"status": "IPv4: 2/254 allocated from 10.0.0.0/24",
            "allocations": {"10.0.0.12": "shop/web", "10.0.0.2": "router"}},
        "ipv4-big-tcp": {"enabled": false},
        "ipv6-big-tcp": {"enabled": false},
        "bandwidth-manager": {"enabled": true, "congestionControl": "cubic", "devices": ["eth0", "eth1"]},
        "routing": {"inter-host-routing-mode": "Tunnel", "tunnel-protocol": "vxlan", "intra-host-routing-mode": "BPF"},
        "attach-mode": "tcx",
        "datapath-mode": "veth",
        "masquerading": {"enabled": true, "mode": "iptables", "enabledProtocols": {"ipv4": true, "ipv6": false}},
        "clock-source": {"mode": "jiffies", "hertz": 250},
        "controllers": [
            {"name": "b", "status": {"consecutive-failure-count": 0, "last-success-timestamp": "2026-01-01T00:00:00Z"}},
            {"name": "a", "status": {"consecutive-failure-count": 2, "last-failure-timestamp": "2026-01-01T00:00:30Z",
                "last-failure-msg": "refused"}},
        ],
        "identity-range": {"min-identity": 256, "max-identity": 65535},
        "hubble": {"state": "Disabled"},
        "encryption": {"mode": "Disabled"},
        "modules": [{"name": "ipcache", "state": "Ok", "msg": ""}, {"name": "policy", "state": "Failure", "msg": "starting"}],
        "bpf-maps": {"dynamic-size-ratio": 0.0025, "maps": [{"name": "cilium_lxc", "size": 65535}]},
    })
}

fn at() -> SystemTime {
    // 2026-01-01T00:01:05Z
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_665)
}

#[test]
fn reads_as_cilium_s_tool_writes() {
    let want = "\
KVStore:                Disabled
Kubernetes:             Ok         1.36 (v1.36.2) [linux/amd64]
Kubernetes APIs:        [\"cilium/v2::CiliumNode\", \"core/v1::Pods\"]
KubeProxyReplacement:   True   [eth0 10.0.0.1 fd00::1 (Direct Routing), eth1]
Host firewall:          Disabled
SRv6:                   Disabled
CNI Chaining:           none
CNI Config file:        wrote /etc/cni/net.d/05-cilium.conflist
Cilium:                 Ok   0.1.0
Stale status:           \"a\" since 2026-01-01T00:00:00Z, \"b\" since 2026-01-01T00:00:00Z
NodeMonitor:            Listening for events on 2 CPUs with 64x4096 of shared memory
                        3 events lost, 1 unknown notifications
Cilium health daemon:   Disabled
IPAM:                   IPv4: 2/254 allocated from 10.0.0.0/24
IPv4 BIG TCP:           Disabled
IPv6 BIG TCP:           Disabled
BandwidthManager:       EDT with BPF [CUBIC] [eth0, eth1]
Routing:                Network: Tunnel [vxlan]   Host: BPF
Attach Mode:            TCX
Device Mode:            veth
Masquerading:           IPTables [IPv4: Enabled, IPv6: Disabled]
Controller Status:      1/2 healthy
  Name   Last success   Last error   Count   Message
  a      never          35s ago      2       refused
Proxy Status:            No managed proxy redirect
Global Identity Range:   min 256, max 65535
Hubble:                  Disabled
Encryption:              Disabled
Cluster health:          Probe disabled
Modules Health:          Stopped(0) Degraded(1) OK(1)
  policy                 [DEGRADED]   starting
";
    let got = render(&status(), Shown::default(), at());
    assert!(got.starts_with("KVStore:                Disabled   \n"), "an empty cell: {got}");
    assert_eq!(trimmed(&got), want);
}

/// The lines without blanks at their ends.
fn trimmed(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

#[test]
fn parts_of_kube_proxy_s_replacement_stand_in_cilium_s_order() {
    let off = json!({"enabled": false});
    let status = json!({"kube-proxy-replacement": {"mode": "False", "features": {"annotations": [],
        "externalIPs": off, "hostPort": off, "nat46X64": off, "nodePort": off, "socketLB": off,
        "socketLBTracing": off, "sessionAffinity": {"enabled": true}}}});
    let want = "\
KubeProxyReplacement Details:
  Status:               False
  Socket LB:            Disabled
  Socket LB Tracing:    Disabled
  Socket LB Coverage:   Full
  Session Affinity:     Enabled
  NAT46/64 Support:     Disabled
  Services:
  - ClusterIP:      Enabled
  - NodePort:       Disabled
  - LoadBalancer:   Disabled
  - externalIPs:    Disabled
  - HostPort:       Disabled
  Annotations:      (n/a)
";
    let got = render(&status, Shown { verbose: true, ..Shown::default() }, at());
    assert!(trimmed(&got).contains(want), "{got}");
}

#[test]
fn shows_more_when_asked() {
    let all = Shown {
        addresses: true,
        controllers: true,
        health: true,
        verbose: true,
        ..Shown::default()
    };
    let got = render(&status(), all, at());
    for line in [
        "Allocated addresses:\n  10.0.0.2 (router)\n  10.0.0.12 (shop/web)\n",
        "1m5s ago",
        "[250 Hz]",
        "dynamic sizing: on (ratio: 0.002500)",
        "cilium_lxc",
        "ipcache",
    ] {
        assert!(got.contains(line), "{line} is missing:\n{got}");
    }
}

#[test]
fn remote_clusters_that_are_not_ready_are_named() {
    let status = json!({"cluster-mesh": {"clusters": [
        {"name": "east", "ready": true},
        {"name": "west", "ready": false, "num-nodes": 2, "num-endpoints": 3, "num-identities": 4, "num-shared-services": 5,
            "num-service-exports": 0, "num-failures": 1, "status": "waiting", "config": {"required": true, "retrieved": false},
            "synced": {"nodes": true, "endpoints": false, "identities": true, "services": true}},
    ]}});
    let got = render(&status, Shown::default(), at());
    let want = [
        "1/2 remote clusters ready",
        "   west: not-ready, 2 nodes, 3 endpoints, 4 identities, 5 services, 0 MCS-API service exports, 1 reconnections (last: never)",
        "   └  waiting",
        "   └  remote configuration: expected=true, retrieved=false",
        "   └  synchronization status: nodes=true, endpoints=false, identities=true, services=true",
    ];
    for line in want {
        assert!(got.contains(line), "{line} is missing:\n{got}");
    }
    assert!(!got.contains("east"), "{got}");
}
