//! What a node's object says, in tables.

use std::net::IpAddr;

use cilia_crds::CiliumNode;
use serde_json::json;

use super::{Facts, Write, ranges, routers, write};
use crate::node::{Config, IpamMode};

pub(crate) fn config(ipam: IpamMode) -> Config {
    Config {
        name: "n1".into(),
        ipv4: true,
        ipv6: true,
        ipam,
        update_rate: std::time::Duration::from_millis(200),
        tunnel_port: Some(8472),
        mtu: 0,
        masquerade_ipv4: true,
        masquerade_ipv6: true,
        native_cidrs: vec![],
        masquerade_interfaces: vec![],
        procfs: "/proc".into(),
    }
}

fn facts(pod_cidrs: &[&str]) -> Facts {
    Facts {
        uid: "u1".into(),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        annotations: [("network.cilium.io/x".to_owned(), "y".to_owned())].into(),
        addresses: vec![
            ("InternalIP".into(), "192.0.2.1".parse().unwrap()),
            ("InternalIP".into(), "2001:db8::1".parse().unwrap()),
        ],
        pod_cidrs: pod_cidrs.iter().map(|&text| text.to_owned()).collect(),
    }
}

fn object(pod_cidrs: &[&str]) -> CiliumNode {
    let mut node =
        match write(&config(IpamMode::ClusterPool), &facts(&[]), &[], "boot", &[], None, None) {
            Some(Write::Create(node)) => *node,
            other => panic!("{other:?}"),
        };
    node.metadata.resource_version = Some("5".into());
    node.spec.ipam.as_mut().unwrap().pod_cidrs =
        pod_cidrs.iter().map(|&text| text.to_owned()).collect();
    node
}

#[test]
fn ranges_are_waited_for_in_words() {
    use IpamMode::{ClusterPool, Kubernetes};
    type Case<'a> = (IpamMode, &'a [&'a str], &'a [&'a str], Result<usize, &'a str>);
    let cases: &[Case<'_>] = &[
        (ClusterPool, &[], &["10.0.0.0/24", "fd00::/120"], Ok(2)),
        (
            ClusterPool,
            &["10.9.0.0/24", "fd09::/120"],
            &["10.0.0.0/24"],
            Err("CiliumNode n1: spec.ipam.podCIDRs has no IPv6"),
        ),
        (ClusterPool, &[], &[], Err("cilium-operator")),
        (ClusterPool, &[], &["10.0.0/24"], Err("spec.ipam.podCIDRs[0]: \"10.0.0/24\" is no CIDR")),
        (Kubernetes, &["10.9.0.0/24", "fd09::/120"], &[], Ok(2)),
        (
            Kubernetes,
            &["10.9.0.0/24"],
            &["10.0.0.0/24", "fd00::/120"],
            Err("Node n1: spec.podCIDRs has no IPv6"),
        ),
    ];
    for (mode, of_node, of_object, want) in cases {
        let got = ranges(&config(mode.clone()), &facts(of_node), Some(&object(of_object)));
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got.len(), *want),
            (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
            (got, want) => panic!("{got:?}, not {want:?}"),
        }
    }
    let mut node = object(&[]);
    node.status =
        serde_json::from_value(json!({"ipam": {"operator-status": {"error": "allocator full"}}}))
            .unwrap();
    let error = ranges(&config(ClusterPool), &facts(&[]), Some(&node)).unwrap_err();
    assert!(error.ends_with("which says: allocator full"), "{error}");
}

#[test]
fn the_router_has_the_first_usable_address() {
    let cases = [
        ("10.0.0.0/24", "10.0.0.1"),
        ("fd00::/120", "fd00::1"),
        ("10.0.0.4/31", "10.0.0.4"),
        ("10.0.0.4/32", "10.0.0.4"),
        ("fd00::8/64", "fd00::1"),
    ];
    for (range, want) in cases {
        let range: ipnet::IpNet = range.parse().unwrap();
        assert_eq!(routers(&[range.trunc()]), [want.parse::<IpAddr>().unwrap()], "{range}");
    }
}

#[test]
fn what_differs_is_put_right_and_the_rest_left_alone() {
    type Case<'a> = (&'a str, fn(&mut CiliumNode), &'a [&'a str]);
    let config = config(IpamMode::ClusterPool);
    let routers: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let right = |change: fn(&mut CiliumNode)| {
        let mut node = object(&["10.0.0.0/24", "fd00::/120"]);
        for router in ["fd00::1", "10.0.0.1"] {
            node.spec
                .addresses
                .push(super::node_address("CiliumInternalIP", router.parse().unwrap()));
        }
        node.metadata.annotations.as_mut().unwrap().insert("foreign".into(), "x".into());
        node.spec.nodeidentity = Some(6);
        change(&mut node);
        node
    };
    let cases: &[Case<'_>] = &[
        ("nothing", |_| {}, &[]),
        ("an address is gone", |node| _ = node.spec.addresses.pop(), &["/spec/addresses"]),
        ("rebooted", |node| node.spec.bootid = Some("old".into()), &["/spec/bootid"]),
        (
            "a label",
            |node| _ = node.metadata.labels.as_mut().unwrap().remove("zone"),
            &["/metadata/labels/zone"],
        ),
        (
            "a label that the Node has no more",
            |node| _ = node.metadata.labels.as_mut().unwrap().insert("rack".into(), "7".into()),
            &["/metadata/labels/rack"],
        ),
        (
            "an annotation",
            |node| _ = node.metadata.annotations.as_mut().unwrap().remove("network.cilium.io/x"),
            &["/metadata/annotations/network.cilium.io~1x"],
        ),
        (
            "an annotation that the Node has no more",
            |node| {
                let annotations = node.metadata.annotations.as_mut().unwrap();
                annotations.insert("cilium.io/old".into(), "7".into());
            },
            &["/metadata/annotations/cilium.io~1old"],
        ),
        (
            "orphaned",
            |node| node.metadata.owner_references = None,
            &["/metadata/ownerReferences/0"],
        ),
        (
            "a new Node",
            |node| node.metadata.owner_references.as_mut().unwrap()[0].uid = "u0".into(),
            &["/metadata/ownerReferences/0"],
        ),
    ];
    for (name, change, paths) in cases {
        let node = right(*change);
        match write(&config, &facts(&[]), &routers, "boot", &[], Some(&node), None) {
            None => assert!(paths.is_empty(), "{name}"),
            Some(Write::Patch(patch)) => {
                assert_eq!(patch.pointer("/metadata/resourceVersion"), Some(&json!("5")), "{name}");
                assert!(!paths.is_empty(), "{name}: {patch}");
                assert!(paths.iter().all(|path| patch.pointer(path).is_some()), "{name}: {patch}");
                assert_eq!(patch.pointer("/spec/ipam"), None, "the ranges are the operator's");
            }
            Some(other) => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn ranges_of_kubernetes_are_taken_over() {
    let config = config(IpamMode::Kubernetes);
    let Some(Write::Create(node)) =
        write(&config, &facts(&["10.9.0.0/24"]), &[], "boot", &[], None, None)
    else {
        panic!()
    };
    assert_eq!(node.spec.ipam.as_ref().unwrap().pod_cidrs, ["10.9.0.0/24"]);
    let patch = write(&config, &facts(&["10.8.0.0/24"]), &[], "boot", &[], Some(&node), None);
    let Some(Write::Patch(patch)) = patch else { panic!("{patch:?}") };
    assert_eq!(patch.pointer("/spec/ipam/podCIDRs/0"), Some(&json!("10.8.0.0/24")));
}
