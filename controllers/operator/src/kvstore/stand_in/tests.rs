use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cilia_kvstore::value::{Address, IpIdentityPair, Node, encode};
use cilia_kvstore::{KeyValue, Swap, keys, stand_ins_of};
use tokio::time::Instant;

use super::{Endpoints, LAG, Pod, RETURN, SETTLE, StandIns};

/// An agent's lease.
pub(super) const AGENT: i64 = 7;

pub(super) fn name(node: u8) -> String {
    format!("n{node}")
}

pub(super) fn host(node: u8) -> IpAddr {
    Ipv4Addr::new(172, 18, 0, node).into()
}

pub(super) fn pod(node: u8, pod: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, node, pod).into()
}

pub(super) fn node_key(node: u8) -> String {
    keys::node("east", &name(node))
}

pub(super) fn node_value(node: u8) -> Vec<u8> {
    let address = Address { kind: "InternalIP".into(), ip: host(node).to_string() };
    encode(&Node {
        name: name(node),
        cluster: "east".into(),
        addresses: vec![address],
        ..Node::default()
    })
}

pub(super) fn ip_value(node: u8, address: IpAddr, identity: u32) -> Vec<u8> {
    let pair = IpIdentityPair::new(address.into(), identity, Some(host(node)));
    encode(&IpIdentityPair { namespace: "default".into(), pod: "web".into(), ..pair })
}

pub(super) fn endpoint(node: u8, address: IpAddr, identity: u32) -> Pod {
    Pod { address, said: Some((host(node), ip_value(node, address, identity).into())) }
}

pub(super) fn kv(value: Vec<u8>, lease: i64, mod_revision: i64) -> KeyValue {
    KeyValue { value, lease, mod_revision, ..KeyValue::default() }
}

#[test]
fn what_a_silent_agent_said_is_put_back_until_it_speaks() {
    let (start, all) = (Instant::now(), ["10.0.1.1", "10.0.1.2", "10.0.1.3"]);
    let mut core = StandIns::new("east", 1);
    core.lives("n1", true, start);
    core.node("n1", &kv(node_value(1), AGENT, 1), start);
    for (one, end) in (1..).zip(all) {
        core.address(end, &kv(ip_value(1, pod(1, one), 300), AGENT, 2));
    }
    assert_eq!(core.decide("n1", start), super::Decision::default());
    // Given up by an agent that speaks: it is gone.
    assert_eq!(core.address_gone("10.0.1.3", start).as_deref(), Some("n1"));
    assert_eq!(core.decide("n1", start).again, Some(start + LAG));
    assert_eq!(core.decide("n1", start + LAG), super::Decision::default());
    // Its lease ends; the node's key is heard of last.
    let end = start + Duration::from_hours(1);
    for address in &all[..2] {
        core.address_gone(address, end);
    }
    assert_eq!(core.decide("n1", end).swaps, []);
    core.node_gone("n1", end);
    assert_eq!(core.decide("n1", end).again, Some(end + SETTLE));
    let create = |key: String, value| Swap { key, since: 0, value: Some(value) };
    let ip = |end: &str| format!("{}{end}", keys::ips());
    let node = create(node_key(1), node_value(1));
    let first = create(ip("10.0.1.1"), ip_value(1, pod(1, 1), 300));
    let second = create(ip("10.0.1.2"), ip_value(1, pod(1, 2), 300));
    let decision = core.decide("n1", end + SETTLE);
    assert_eq!(decision.swaps, [node.clone(), first.clone(), second]);
    assert_eq!(core.silent().len(), 1);
    // The second one's pod goes before that is done.
    let mut all = Endpoints::default();
    let pods = [1, 2].map(|one| endpoint(1, pod(1, one), 300));
    all.add(&pods);
    core.endpoints(Some(all));
    assert_eq!(core.endpoint(&pods[1..], &[]).len(), 1);
    assert_eq!(core.decide("n1", end + SETTLE).swaps, [node, first]);
    let lease = stand_ins_of(1);
    core.node("n1", &kv(node_value(1), lease, 10), end + SETTLE);
    core.address("10.0.1.1", &kv(ip_value(1, pod(1, 1), 300), lease, 11));
    assert_eq!(core.decide("n1", end + SETTLE), super::Decision::default());
    assert!(core.stands_in());
    // It speaks again, and doesn't say this one any more.
    let back = end + Duration::from_hours(1);
    core.node("n1", &kv(node_value(1), AGENT, 20), back);
    assert_eq!(core.silent(), Vec::<std::sync::Arc<str>>::new());
    assert_eq!(core.decide("n1", back).again, Some(back + RETURN));
    let gone = Swap { key: ip("10.0.1.1"), since: 11, value: None };
    assert_eq!(core.decide("n1", back + RETURN).swaps, [gone]);
}

#[test]
fn a_node_takes_its_stand_ins_along() {
    let (now, lease) = (Instant::now(), stand_ins_of(1));
    let mut core = StandIns::new("east", 1);
    // A next leader finds them.
    core.node("n1", &kv(node_value(1), lease, 5), now);
    core.address("10.0.1.1", &kv(ip_value(1, pod(1, 1), 300), lease, 6));
    core.address("10.0.2.1", &kv(ip_value(2, pod(2, 1), 300), lease, 7));
    assert_eq!(core.decide("n1", now).swaps, [], "there may be nodes yet");
    assert_eq!(core.orphans(), []);
    core.lives("n3", true, now);
    let back = |key: String, since| Swap { key, since, value: None };
    let ip = |address: IpAddr| keys::ip(address.into());
    assert_eq!(core.decide("n1", now).swaps, [back(ip(pod(1, 1)), 6), back(node_key(1), 5)]);
    assert_eq!(core.orphans(), [back(ip(pod(2, 1)), 7)], "nobody has n2");
    core.address_gone("10.0.1.1", now);
    core.node_gone("n1", now);
    assert_eq!(core.decide("n1", now), super::Decision::default());
    core.address_gone("10.0.2.1", now);
    assert!(core.nodes.len() == 1 && core.hosts.is_empty() && core.addresses.is_empty());
    assert!(core.of_host.is_empty() && !core.stands_in());
}

#[test]
fn what_was_lost_unseen_is_said_as_kubernetes_has_it() {
    let start = Instant::now();
    let mut core = StandIns::new("east", 1);
    core.lives("n1", true, start);
    assert_eq!(core.decide("n1", start).again, Some(start + RETURN), "it may be on its way");
    let late = start + RETURN;
    assert!(core.decide("n1", late).unheard);
    core.learned("n1", node_value(1), late);
    let mut all = Endpoints::default();
    all.add(&[endpoint(1, pod(1, 1), 300), endpoint(2, pod(2, 1), 300)]);
    core.endpoints(Some(all));
    let create = |key: String, value| Swap { key, since: 0, value: Some(value) };
    let node = create(node_key(1), node_value(1));
    let address = create(keys::ip(pod(1, 1).into()), ip_value(1, pod(1, 1), 300));
    assert_eq!(core.decide("n1", late + SETTLE).swaps, [node, address]);
    // Its agent is there after all: what it says counts.
    core.node("n1", &kv(node_value(1), AGENT, 1), late);
    core.learned("n1", Vec::new(), late);
    assert_eq!(core.decide("n1", late + SETTLE), super::Decision::default());
}

#[test]
fn what_a_node_has_lost_with_its_address_is_not_put_back_for_the_next_one_there() {
    let start = Instant::now();
    let mut core = StandIns::new("east", 1);
    core.lives("n1", true, start);
    core.node("n1", &kv(node_value(1), AGENT, 1), start);
    core.address("10.0.1.1", &kv(ip_value(1, pod(1, 1), 300), AGENT, 2));
    core.address_gone("10.0.1.1", start);
    // It is at another address now, and its former one is another node's.
    core.node("n1", &kv(node_value(3), AGENT, 3), start);
    core.lives("n2", true, start);
    core.node("n2", &kv(node_value(1), AGENT, 4), start);
    core.node_gone("n2", start);
    let swaps = core.decide("n2", start + SETTLE).swaps;
    let keys: Vec<&str> = swaps.iter().map(|swap| swap.key.as_str()).collect();
    assert_eq!(keys, [node_key(2)]);
}

#[test]
fn what_stands_in_for_another_cluster_s_agents_is_left_alone() {
    let start = Instant::now();
    let mut core = StandIns::new("east", 1);
    core.lives("n1", true, start);
    core.node("n1", &kv(node_value(1), AGENT, 1), start);
    // Of nodes that are not known here.
    core.address("10.0.2.1", &kv(ip_value(2, pod(2, 1), 300), stand_ins_of(2), 2));
    assert_eq!((core.stands_in(), core.orphans()), (false, vec![]));
    core.address("10.0.3.1", &kv(ip_value(3, pod(3, 1), 300), stand_ins_of(1), 3));
    let orphan = Swap { key: keys::ip(pod(3, 1).into()), since: 3, value: None };
    assert_eq!((core.stands_in(), core.orphans()), (true, vec![orphan]));
}
