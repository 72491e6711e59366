//! Pinned maps are kept, carried over into another size, or replaced.

use std::collections::BTreeMap;
use std::os::unix::fs::DirEntryExt;

use crate::bpffs::{BpfFs, small};
use cilia_loader::{EndpointInfo, MapSizes, NodeConfig, PolicyEntry, PolicyKey};

/// Names and inodes of the pinned maps: a pin that is made anew has another inode.
fn pins(bpf: &BpfFs) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(bpf.path().join("tc/globals")).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.ino())
        })
        .collect()
}

#[test]
fn a_restart_keeps_what_is_in_the_maps() {
    let bpf = BpfFs::mount();
    let ip = "10.0.0.1".parse().unwrap();
    let info = EndpointInfo { id: 7, ifindex: 3, identity: 300, ..EndpointInfo::default() };
    let key = PolicyKey::port(300, false, 6, 80);
    let first = bpf.load(NodeConfig::default());
    first.endpoints().upsert(&ip, &info).unwrap();
    first.policy(7).unwrap().upsert(&key, &PolicyEntry::default()).unwrap();
    drop(first);
    let pins = pins(&bpf);
    assert!(pins.len() > 20, "{pins:?}");

    let same = bpf.load(NodeConfig::default());
    assert_eq!(same.endpoints().get(&ip).unwrap(), Some(info));
    assert_eq!(same.policies().unwrap(), [7]);
    assert_eq!(self::pins(&bpf), pins, "a map was replaced");
    drop(same);

    let bigger = bpf.load_sized(NodeConfig::default(), MapSizes { endpoints: 2048, ..small() });
    assert_eq!(bigger.endpoints().max_entries(), 2048);
    assert_eq!(bigger.endpoints().get(&ip).unwrap(), Some(info));
    assert_eq!(bigger.policy(7).unwrap().entries().unwrap(), [(key, PolicyEntry::default())]);
}

#[test]
fn another_file_system_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let config = cilia_loader::Config {
        bpf_root: directory.path().into(),
        ipv4: true,
        ipv6: true,
        sizes: small(),
        node: NodeConfig::default(),
    };
    let error = cilia_loader::Datapath::load(&config).unwrap_err().to_string();
    assert!(error.contains("mount -t bpf bpf"), "{error}");
}
