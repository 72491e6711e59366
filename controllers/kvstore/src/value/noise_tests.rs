//! Values come from other clusters, and from whoever may write an etcd: whatever they are, they are read or refused,
//! and what was read is written in a way that reads the same.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    ClusterConfig, ClusterService, Expected, IpIdentityPair, Node, PolicyNodeStatus, ServiceExport,
    decode, encode, parse_labels,
};
use crate::keys;

const EXAMPLES: [&str; 8] = [
    r#"{"Name":"n1","Cluster":"east","IPAddresses":[{"Type":"InternalIP","IP":"172.18.0.2"}],"IPv4AllocCIDR":{"IP":"10.0.0.0","Mask":"////AA=="},"IPv6AllocCIDR":null,"ClusterID":1,"Source":"local","NodeIdentity":1}"#,
    r#"{"IP":"10.1.2.0","Mask":"////AA==","HostIP":"172.18.0.2","ID":65600,"Key":3,"Metadata":"","NamedPorts":[{"Name":"http","Port":80,"Protocol":"TCP"}]}"#,
    r#"{"cluster":"east","namespace":"default","name":"web","frontends":{"10.96.0.10":{"http":{"Protocol":"TCP","Port":80}}},"backends":{"10.0.0.5":{"":{"Protocol":"TCP","Port":8080}}},"zones":{"10.0.0.5":{"zone":"a","forZones":[{"name":"b"}]}},"labels":{},"selector":{},"includeExternal":true,"shared":true,"clusterID":1}"#,
    r#"{"cluster":"east","name":"web","namespace":"default","Annotations":{"a":"b"},"Labels":null,"exportCreationTimestamp":"2024-05-01T12:00:00Z","ports":[{"name":"http","port":80}],"type":"Headless","sessionAffinity":"None"}"#,
    r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,"serviceExportsEnabled":false}}"#,
    r#"{"UID":"u-1","Namespace":"default","Name":"web","Node":"n1","ok":true,"enforcing":true}"#,
    "k8s:app=web;k8s:io.kubernetes.pod.namespace=default;",
    "10.0.0.0/24",
];
/// What a careless or malicious writer may put somewhere.
const PIECES: [&str; 10] =
    ["null", "-1", "1e999", "\"\"", "{}", "[]", "\\ud800", ";", "/", "4294967296"];

fn spoil(text: &str, rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=bytes.len());
        let end = (at + rng.random_range(0..6)).min(bytes.len());
        let piece = match rng.random_range(0..3) {
            0 => Vec::new(),
            1 => vec![rng.random()],
            _ => PIECES.choose(rng).expect("one").as_bytes().to_vec(),
        };
        bytes.splice(at..end, piece);
    }
    bytes
}

/// The value, if it is one; it is written as it will be read.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = decode("k", bytes).ok()?;
    let written = encode(&value);
    let again: T = decode("k", &written).expect("what was written");
    assert_eq!(encode(&again), written, "{}", String::from_utf8_lossy(bytes));
    Some(value)
}

#[test]
fn whatever_is_there_is_read_or_refused() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("CILIA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let east = Expected { cluster: "east".into(), id: 1 };
    let owned = |id: u32| id >> 16 == 1;
    let mut good = 0;
    for _ in 0..5_000 {
        let bytes = spoil(EXAMPLES.choose(&mut rng).expect("one"), &mut rng);
        if let Some(node) = read::<Node>(&bytes) {
            good += usize::from(node.check("n1", &east).is_ok());
            node.ranges();
        }
        if let Some(pair) = read::<IpIdentityPair>(&bytes) {
            let name = pair.prefix().map(keys::ip_name).unwrap_or_default();
            good += usize::from(pair.check(&name, Some((&east, &owned))).is_ok());
            pair.tunnel();
        }
        if let Some(service) = read::<ClusterService>(&bytes) {
            good += usize::from(service.check("default/web", &east).is_ok());
        }
        if let Some(export) = read::<ServiceExport>(&bytes) {
            good += usize::from(export.check("default/web", &east).is_ok());
        }
        if let Some(config) = read::<ClusterConfig>(&bytes) {
            good += usize::from(config.check(2, 255).is_ok());
        }
        // Nobody writes it again, and its numbers may be rounded.
        let _ = decode::<PolicyNodeStatus>("k", &bytes);
        let text = String::from_utf8_lossy(&bytes);
        if let Some(labels) = parse_labels(&text) {
            assert_eq!(labels.canonical(), text);
        }
        if let Some(prefix) = keys::parse_ip_name(&text) {
            assert_eq!(keys::parse_ip_name(&keys::ip_name(prefix)), Some(prefix));
        }
        keys::parse_identity_id(&format!("{}{text}", keys::identity_ids()));
    }
    assert!(good > 100, "only {good} are good still: nothing is tested");
}
