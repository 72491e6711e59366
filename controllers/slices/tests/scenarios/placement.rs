//! Which slice an endpoint goes to, and how many slices there are.

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::networking::{
    AddressPair, EncryptionSpec, EndpointNetworking, NamedPort,
};
use cilia_crds::ciliumendpoint::{EndpointIdentity, EndpointStatus};
use cilia_slices::{Action, Event, MOST_ENDPOINTS, SliceObject, Slices, Write};

use super::{Operator, entries};

#[test]
fn placement() {
    let mut operator = Operator::new(2);
    for number in 1..=5 {
        operator.add("ns", &format!("c{number}"));
    }
    operator.settle();
    assert_eq!(operator.count(), 3, "CES-02");

    let mut operator = Operator::new(5);
    for number in 1..=5 {
        operator.add(&format!("ns-{number}"), "c");
    }
    operator.settle();
    assert_eq!(operator.count(), 5, "CES-03");

    let mut operator = Operator::new(2);
    for (name, add) in [
        ("c1", true),
        ("c2", true),
        ("c1", false),
        ("c3", true),
        ("c2", false),
        ("c4", true),
        ("c3", false),
        ("c5", true),
    ] {
        if add {
            operator.add("ns", name);
        } else {
            operator.remove("ns", name);
        }
        operator.settle();
        assert_eq!(operator.count(), 1, "CES-05 after {name}");
    }
    let last = operator.writes.last().expect("writes");
    assert_eq!(entries(last), ["c4", "c5"]);
}

#[test]
fn the_fullest_slice_with_room_is_filled() {
    // CES-06: slices of 1, 3 and 4 endpoints.
    let mut operator = Operator::new(4);
    for number in 0..12 {
        operator.add("ns", &format!("c{number:02}"));
        operator.settle();
    }
    for number in [1, 4, 5, 6] {
        operator.remove("ns", &format!("c{number:02}"));
    }
    operator.settle();
    operator.add("ns", "new");
    let write = operator.write().expect("a write");
    assert_eq!(entries(&write), ["c00", "c02", "c03", "new"]);
}

#[test]
fn while_writes_are_scarce_a_namespace_needs_one() {
    // Slices of 99, 98 and 3 endpoints; the budget is used up by others.
    let mut operator = Operator::new(100);
    operator.slices = operator.slices.scarce_from(0);
    for number in 0..203 {
        operator.add("ns", &format!("c{number:03}"));
    }
    operator.settle();
    for number in [1, 100, 101] {
        operator.remove("ns", &format!("c{number:03}"));
    }
    operator.settle();
    operator.add("other", "c");
    operator.slices.take_changed();
    for number in 0..10 {
        operator.add("ns", &format!("new{number}"));
        operator.slices.take_changed();
    }
    let news = |write: &Write| entries(write).iter().filter(|name| name.starts_with("new")).count();
    let mut writes: Vec<usize> =
        std::iter::from_fn(|| operator.write().as_ref().map(news)).collect();
    writes.sort_unstable();
    assert_eq!(writes, [0, 10], "one of the other namespace, one of this");
}

#[test]
fn over_full_slices_are_split() {
    // CES-25, but put right: ces1 lists four of two, ces2 three.
    let mut slices = Slices::new(2, 1);
    let entry =
        |name: &str| CoreCiliumEndpoint { name: Some(name.to_owned()), ..Default::default() };
    let lists: [&[&str]; 2] = [&["c1", "c2", "c3", "c4"], &["c5", "c6", "c7"]];
    for (name, list) in ["ces1", "ces2"].into_iter().zip(lists) {
        let endpoints: Vec<CoreCiliumEndpoint> = list.iter().map(|name| entry(name)).collect();
        let object = SliceObject {
            name,
            uid: name,
            resource_version: "1",
            namespace: "ns",
            endpoints: &endpoints,
        };
        slices.apply(Event::Slice(object), 0);
    }
    let mut operator = Operator { slices, now: 0, version: 1, writes: Vec::new() };
    for number in 1..=7 {
        operator.add("ns", &format!("c{number}"));
    }
    operator.slices.start();
    operator.slices.confirm();
    operator.settle();
    assert_eq!(operator.count(), 4);
    let shrunk = |name: &str| {
        let write = operator.writes.iter().rev().find(|write| &*write.slice == name);
        entries(write.expect("the slice is rewritten")).concat()
    };
    assert_eq!((shrunk("ces1"), shrunk("ces2")), ("c1c2".to_owned(), "c5c6".to_owned()));
}

/// An endpoint whose entry takes about so many kB.
fn large(kilobytes: usize) -> EndpointStatus {
    let port = |number: usize| NamedPort {
        name: Some(format!("{number:0>932}")),
        port: Some(80),
        protocol: Some("TCP".to_owned()),
    };
    EndpointStatus {
        identity: Some(EndpointIdentity::default()),
        networking: Some(EndpointNetworking::default()),
        named_ports: (0..kilobytes).map(port).collect(),
        ..Default::default()
    }
}

#[test]
fn no_slice_outgrows_what_etcd_takes() {
    let mut operator = Operator::new(100);
    let add = |operator: &mut Operator, name: &str, kilobytes: usize| {
        let status = large(kilobytes);
        let event = Event::Endpoint { namespace: "ns", name, status: Some(&status) };
        operator.slices.apply(event, operator.now);
    };
    for number in 0..100 {
        add(&mut operator, &format!("c{number:02}"), 20);
    }
    operator.settle();
    assert_eq!(operator.count(), 3, "100 of 20 kB");
    // Small ones that grow.
    for number in 0..60 {
        add(&mut operator, &format!("d{number:02}"), 0);
    }
    operator.settle();
    for number in 0..60 {
        add(&mut operator, &format!("d{number:02}"), 20);
    }
    operator.settle();
    let mut sizes = std::collections::BTreeMap::new();
    for write in &operator.writes {
        sizes.insert(write.slice.clone(), entries(write).len());
    }
    assert_eq!(sizes.values().sum::<usize>(), 160, "{sizes:?}");
    assert!(sizes.values().all(|count| count * 20 <= 800), "{sizes:?}");
    assert_eq!(operator.write(), None);
    assert!(!operator.slices.tidy());
}

/// The longest entry that still counts as usual, for an endpoint with a name of seven letters.
fn usual() -> EndpointStatus {
    let pair = AddressPair {
        ipv4: Some("100.100.100.100".to_owned()),
        ipv6: Some("fd00:1000:1000:1000:1000:1000:1000:1000".to_owned()),
    };
    let node = "100.100.100.100".to_owned();
    let name = "n".repeat(512 - 60 - "TCP".len() - node.len() - 7);
    let port = NamedPort { name: Some(name), port: Some(65_535), protocol: Some("TCP".to_owned()) };
    EndpointStatus {
        identity: Some(EndpointIdentity { id: Some(16_777_215), ..Default::default() }),
        networking: Some(EndpointNetworking { addressing: vec![pair], node: Some(node) }),
        encryption: Some(EncryptionSpec { key: Some(255) }),
        named_ports: vec![port],
        ..Default::default()
    }
}

#[test]
fn the_largest_slice_there_can_be_fits_into_etcd() {
    let mut operator = Operator::new(100_000);
    let add = |operator: &mut Operator, name: &str, status: &EndpointStatus| {
        let event = Event::Endpoint { namespace: "ns", name, status: Some(status) };
        operator.slices.apply(event, operator.now);
    };
    for number in 0..40 {
        add(&mut operator, &format!("large{number:02}"), &large(20));
    }
    for number in 0..1_500 {
        add(&mut operator, &format!("u{number:06}"), &usual());
    }
    operator.settle();
    let sizes: Vec<(usize, usize)> = operator
        .writes
        .iter()
        .map(|write| {
            let Action::Create { endpoints, .. } = &write.action else { panic!("{write:?}") };
            (endpoints.len(), serde_json::to_vec(endpoints).expect("JSON").len())
        })
        .collect();
    let (entries, bytes) = sizes.iter().copied().max_by_key(|(_, bytes)| *bytes).expect("slices");
    assert_eq!(entries, MOST_ENDPOINTS, "{sizes:?}");
    // What else is in an object takes less than four kilobytes.
    let limit = 1536 * 1024 - 4096;
    assert!((limit * 9 / 10..limit).contains(&bytes), "{sizes:?}");
}
