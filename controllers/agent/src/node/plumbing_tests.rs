//! The node's devices with the real datapath on them, in a network namespace of their own.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use cilia_loader::NodeConfig;
use cilia_loader::testing::BpfFs;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Plumbing;
use crate::device::testing::in_private_node;
use crate::device::{Netlink, Sysctl};
use crate::endpoint::EndpointMap;
use crate::node::testing::config;
use crate::node::{IpamMode, LocalNode, NodeInfo, Nodes};

#[test]
fn a_device_that_somebody_deleted_comes_back_with_its_program() {
    in_private_node(|| async {
        let (bpf, token) = (BpfFs::mount(), CancellationToken::new());
        let (nodes, netlink) = (Nodes::default(), Netlink::connect().unwrap());
        let local = LocalNode {
            name: "n1".into(),
            ipv4: "192.0.2.1".parse().ok(),
            ipv6: None,
            pod_cidrs: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/116".parse().unwrap()],
            routers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            labels: BTreeMap::new(),
        };
        nodes.set_local(local.clone());
        let mut settings = config(IpamMode::ClusterPool);
        settings.mtu = 1500;
        let workqueues = Workqueues::register(&Metrics::new("cilium"));
        let sysctl = Sysctl::new("/proc");
        let plumbing = Plumbing::new(settings, nodes.clone(), netlink.clone(), sysctl, &workqueues);
        let devices = plumbing.ensure().await.unwrap();
        let node = Plumbing::node_config(&devices, &local, &NodeConfig::default());
        let datapath = Arc::new(bpf.load(node));
        let map = EndpointMap::new(datapath.endpoints());
        let stop = token.clone();
        let (settings, base) = watch::channel(NodeConfig::default());
        tokio::spawn(async move {
            plumbing.run(datapath, map, base, &[], stop).await;
        });

        let pins = bpf.path().join("cilium/links");
        let pin = |path: &str| std::fs::metadata(pins.join(path)).map(|file| file.ino()).ok();
        for (device, path) in [
            ("cilium_vxlan", "cilium_vxlan/cil_from_overlay"),
            ("cilium_host", "cilium_host/cil_from_host"),
        ] {
            let (former, link) = (pin(path), netlink.need_link(device).await.unwrap());
            assert!(former.is_some(), "{path}");
            netlink.remove_link(device).await.unwrap();
            // Any news of a node makes the agent look at its devices.
            let other = NodeInfo { name: format!("n-{device}"), ..NodeInfo::default() };
            nodes.applied(other);
            eventually(|| async {
                let index = netlink.link(device).await.unwrap().map(|link| link.index);
                let now = (index, pin(path));
                let made_again = index.is_some_and(|index| index != link.index);
                if made_again && now.1.is_some() && now.1 != former { Ok(()) } else { Err(now) }
            })
            .await;
        }

        // Once the node has policy, it counts on the device with the node's address, and only then.
        let guarded =
            || ["cil_from_netdev", "cil_to_netdev"].map(|name| pin(&format!("eth0/{name}")));
        for host_endpoint in [Some(65_535), None] {
            settings.send_modify(|settings| settings.host_endpoint = host_endpoint);
            eventually(|| {
                let right = guarded().iter().all(|pin| pin.is_some() == host_endpoint.is_some());
                std::future::ready(if right { Ok(()) } else { Err(guarded()) })
            })
            .await;
            assert_eq!(pin("wire/cil_from_netdev"), None);
        }
        token.cancel();
    });
}
