//! Pinned maps are kept, carried over into another size, or replaced.

use std::collections::BTreeMap;
use std::os::unix::fs::DirEntryExt;

use cilia_loader::testing::{BpfFs, small_maps};
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

    let bigger = bpf.load_sized(MapSizes { endpoints: 2048, ..small_maps() });
    assert_eq!(bigger.endpoints().max_entries(), 2048);
    assert_eq!(bigger.endpoints().get(&ip).unwrap(), Some(info));
    assert_eq!(bigger.policy(7).unwrap().entries().unwrap(), [(key, PolicyEntry::default())]);
}

#[test]
fn policies_keep_their_entries_in_maps_of_another_size() {
    let bpf = BpfFs::mount();
    let sized = |policy| bpf.load_sized(MapSizes { policy, ..small_maps() });
    let key = |port| PolicyKey::port(300, false, 6, port);
    let entry = |port: u16| PolicyEntry { deny: port == 81, view: 0, cookie: port.into() };
    let want: Vec<_> = [80, 81, 443].map(|port| (key(port), entry(port))).into();
    let first = sized(1024);
    for (key, entry) in &want {
        first.policy(7).unwrap().upsert(key, entry).unwrap();
    }
    drop(first);
    // Three entries do not fit into two: the map stays, rather than lose what it denies.
    for (policy, size) in [(2048, 2048), (512, 512), (2, 512), (512, 512)] {
        let datapath = sized(policy);
        let map = datapath.policy(7).unwrap();
        assert_eq!(map.max_entries(), size, "{policy} wanted");
        let mut entries = map.entries().unwrap();
        entries.sort_unstable_by_key(|(key, _)| *key);
        assert_eq!(entries, want, "{policy} wanted");
        assert_eq!(datapath.policies().unwrap(), [7]);
        assert!(!pins(&bpf).keys().any(|name| name.ends_with("_new")));
    }
}

#[test]
fn another_file_system_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let config = cilia_loader::Config {
        bpf_root: directory.path().into(),
        ipv4: true,
        ipv6: true,
        sizes: small_maps(),
        node: NodeConfig::default(),
    };
    let error = cilia_loader::Datapath::load(&config).unwrap_err().to_string();
    assert!(error.contains("mount -t bpf bpf"), "{error}");
}
