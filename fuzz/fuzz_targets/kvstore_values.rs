//! Keys and values of an etcd, as other clusters write them: read or refused, and what was read is written the same.
#![no_main]

use cilia_kvstore::keys;
use cilia_kvstore::value::{
    ClusterConfig, ClusterService, Expected, IpIdentityPair, Node, PolicyNodeStatus, ServiceExport,
    decode, encode, parse_labels,
};

/// The value, if it is one; it is written as it will be read.
fn read<T: serde::Serialize + serde::de::DeserializeOwned>(input: &[u8]) -> Option<T> {
    let value: T = decode("k", input).ok()?;
    let written = encode(&value);
    let again: T = decode("k", &written).expect("what was written");
    assert_eq!(encode(&again), written);
    Some(value)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let east = Expected { cluster: "east".into(), id: 1 };
    if let Some(node) = read::<Node>(input) {
        let _ = (node.check("n1", &east), node.ranges());
    }
    if let Some(pair) = read::<IpIdentityPair>(input) {
        let name = pair.prefix().map(keys::ip_name).unwrap_or_default();
        if let Ok(prefix) = pair.check(&name, Some((&east, &|id| id >> 16 == 1))) {
            assert_eq!(keys::parse_ip_name(&keys::ip_name(prefix)), Some(prefix));
        }
        let _ = pair.tunnel();
    }
    if let Some(service) = read::<ClusterService>(input) {
        let _ = service.check("default/web", &east);
    }
    if let Some(export) = read::<ServiceExport>(input) {
        let _ = export.check("default/web", &east);
    }
    if let Some(config) = read::<ClusterConfig>(input) {
        let _ = config.check(2, 255);
    }
    // Nobody writes it again, and its numbers may be rounded.
    let _ = decode::<PolicyNodeStatus>("k", input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Some(labels) = parse_labels(text) {
        assert_eq!(labels.canonical(), text);
        let key = keys::identity_value(text, "10.0.0.1");
        assert!(keys::is_use_of(&key, text), "{key}");
    }
    if let Some(prefix) = keys::parse_ip_name(text) {
        assert_eq!(keys::parse_ip_name(&keys::ip_name(prefix)), Some(prefix));
    }
    if let Some(number) = keys::parse_identity_id(text) {
        assert_eq!(keys::identity_id(number), text);
    }
    let _ = keys::lock_path(text);
});
