//! The compatibility scenarios CES-01 to CES-34 that concern the core, and the order of writes.

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::EndpointStatus;
use cilia_slices::{Action, Event, Outcome, REMOVAL_BOUND, SliceObject, Slices, Turn, Write};

/// A core whose writes all succeed at once.
struct Operator {
    slices: Slices,
    now: u64,
    version: u64,
    writes: Vec<Write>,
}

impl Operator {
    fn new(max: usize) -> Self {
        let mut slices = Slices::new(max, 1);
        slices.start();
        slices.confirm();
        Self { slices, now: 0, version: 0, writes: Vec::new() }
    }

    fn add(&mut self, namespace: &str, name: &str) {
        let status = EndpointStatus {
            identity: Some(cilia_crds::ciliumendpoint::EndpointIdentity::default()),
            networking: Some(cilia_crds::ciliumendpoint::networking::EndpointNetworking::default()),
            ..Default::default()
        };
        let event = Event::Endpoint { namespace, name, status: Some(&status) };
        self.slices.apply(event, self.now);
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        self.slices.apply(Event::EndpointGone { namespace, name }, self.now);
    }

    /// Writes the most urgent slice.
    fn write(&mut self) -> Option<Write> {
        let slice = self.slices.next(self.now)?;
        let write = self.slices.plan(&slice)?;
        self.version += 1;
        let outcome = match write.action {
            Action::Delete { .. } => Outcome::Deleted,
            _ => Outcome::Stored {
                uid: write.slice.to_string(),
                resource_version: self.version.to_string(),
            },
        };
        self.slices.settle(&slice, outcome);
        self.writes.push(write.clone());
        Some(write)
    }

    fn settle(&mut self) {
        while self.write().is_some() {}
    }

    /// How many slices there are.
    fn count(&self) -> usize {
        self.slices.names().count()
    }
}

fn entries(write: &Write) -> Vec<&str> {
    let endpoints: &[CoreCiliumEndpoint] = match &write.action {
        Action::Create { endpoints, .. } | Action::Update { endpoints, .. } => endpoints,
        Action::Delete { .. } | Action::Read => &[],
    };
    let mut names: Vec<&str> = endpoints.iter().filter_map(|e| e.name.as_deref()).collect();
    names.sort_unstable();
    names
}

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
fn what_is_written() {
    let mut operator = Operator::new(10);
    assert_eq!(operator.write(), None, "CES-14");
    operator.add("ns", "c1");
    operator.add("ns", "c2");
    let write = operator.write().expect("a write");
    assert!(matches!(&write.action, Action::Create { namespace, .. } if &**namespace == "ns"));
    assert_eq!(
        (entries(&write), write.inserted, write.removed),
        (vec!["c1", "c2"], 2, 0),
        "CES-11"
    );
    operator.add("ns", "c1");
    assert_eq!(operator.write(), None, "CES-15: nothing new");
    operator.remove("ns", "c1");
    operator.remove("ns", "c2");
    let write = operator.write().expect("a write");
    assert!(matches!(&write.action, Action::Delete { .. }), "CES-13: {write:?}");
    assert_eq!(operator.write(), None);
}

#[test]
fn an_endpoint_that_comes_back_before_its_removal_costs_nothing() {
    let mut operator = Operator::new(10);
    operator.add("ns", "c1");
    operator.settle();
    operator.remove("ns", "c1");
    operator.add("ns", "c1");
    assert_eq!(operator.write(), None);
    operator.remove("ns", "c1");
    operator.add("ns", "c2");
    let write = operator.write().expect("a write");
    assert!(matches!(&write.action, Action::Update { .. }), "no deletion and creation: {write:?}");
}

#[test]
fn appearances_come_first_but_removals_do_not_wait_for_ever() {
    let mut operator = Operator::new(1);
    let name_of = |write: &Write| entries(write).concat();
    operator.add("ns", "old");
    operator.settle();
    // CES-26, CES-27 in our order: priority, then what appears, those that waited most first.
    operator.remove("ns", "old");
    operator.now += 10;
    operator.add("ns-a", "early");
    operator.now += 10;
    operator.add("ns-b", "late");
    operator.slices.apply(Event::Namespace { name: "ns-f", priority: true }, operator.now);
    operator.add("ns-f", "urgent");
    operator.now += 10;
    let order: Vec<String> =
        std::iter::from_fn(|| operator.write().as_ref().map(name_of)).collect();
    assert_eq!(order, ["urgent", "early", "late", ""]);

    operator.remove("ns-a", "early");
    operator.now += REMOVAL_BOUND + 1;
    operator.add("ns-c", "newer");
    let order: Vec<String> =
        std::iter::from_fn(|| operator.write().as_ref().map(name_of)).collect();
    assert_eq!(order, ["", "newer"], "the removal has waited for its bound");
}

#[test]
fn what_others_took_out_comes_back_as_if_it_had_just_appeared() {
    let mut operator = Operator::new(10);
    operator.slices.apply(Event::Namespace { name: "ns", priority: true }, 0);
    operator.add("ns", "c1");
    operator.settle();
    operator.slices.take_changed();
    let name = operator.writes[0].slice.clone();
    let forged =
        [CoreCiliumEndpoint { name: Some("forged".to_owned()), ..CoreCiliumEndpoint::default() }];
    let edited = SliceObject {
        name: &name,
        uid: &name,
        resource_version: "100",
        namespace: "ns",
        endpoints: &forged,
    };
    let lost = [Event::Slice(edited), Event::SliceGone { name: &name, uid: Some(&name) }];
    for event in lost {
        operator.slices.apply(event, 5);
        let lanes: Vec<bool> =
            operator.slices.take_changed().iter().map(|changed| changed.priority).collect();
        assert_eq!(lanes, [true], "{event:?}");
        operator.version = 200;
        let write = operator.write().expect("a write");
        assert_eq!(entries(&write), ["c1"], "{event:?}");
    }
}

#[test]
fn a_storm_that_is_over_holds_nothing_up() {
    let mut operator = Operator::new(10);
    for number in 0..40 {
        operator.add(&format!("ns-{number}"), "c");
    }
    let waiting = operator.slices.take_changed();
    for changed in &waiting {
        let turn = operator.slices.turn(&changed.slice, 700, 10.0);
        let Some(Turn::Later(wait)) = turn else { panic!("{turn:?} in a storm") };
        assert!(wait <= 250, "nothing tells of its end, so it looks again before {wait} ms");
    }
    for changed in &waiting {
        let turn = operator.slices.turn(&changed.slice, 1_500, 10.0);
        assert!(matches!(turn, Some(Turn::Now(_))), "{turn:?} after the storm");
    }
}

#[test]
fn what_is_only_to_be_tidied_waits_for_the_end_of_a_storm_but_not_for_ever() {
    let mut operator = Operator::new(1);
    operator.slices = operator.slices.scarce_from(0);
    operator.add("ns", "old");
    operator.settle();
    let doubted = operator.writes[0].slice.clone();
    operator.slices.relisted(|_| false);
    operator.add("ns-a", "new");
    operator.add("ns-b", "new");
    for step in 0..1_000 {
        operator.now += 500;
        operator.add(&format!("ns-{step}"), "new");
        let turn = operator.slices.turn(&doubted, operator.now, 10.0);
        match turn {
            Some(Turn::Later(_)) => {}
            Some(Turn::Now(_)) if step < 3 => {}
            Some(Turn::Now(_)) => break,
            None => panic!("nobody has looked at it"),
        }
        let written = operator.write().expect("a write");
        assert_ne!(written.slice, doubted);
    }
    let late = operator.now.saturating_sub(REMOVAL_BOUND);
    assert!((1..=1_000).contains(&late), "{late} ms after its time");
}

#[test]
fn a_namespace_that_gets_priority_changes_lanes() {
    // CES-34.
    let mut operator = Operator::new(10);
    operator.add("ns", "c1");
    let lanes = |operator: &mut Operator| -> Vec<bool> {
        operator.slices.take_changed().iter().map(|changed| changed.priority).collect()
    };
    assert_eq!(lanes(&mut operator), [false]);
    operator.slices.apply(Event::Namespace { name: "ns", priority: true }, 0);
    assert_eq!(lanes(&mut operator), [true]);
    operator.slices.apply(Event::Namespace { name: "ns", priority: false }, 0);
    assert_eq!(lanes(&mut operator), [false]);
    assert_eq!(lanes(&mut operator), [false; 0], "told once");
}

#[test]
fn compaction_never_goes_by_the_priority_lane() {
    let mut operator = Operator::new(2);
    operator.slices.apply(Event::Namespace { name: "ns", priority: true }, 0);
    for name in ["c1", "c2", "c3"] {
        operator.add("ns", name);
    }
    operator.settle();
    operator.remove("ns", "c1");
    operator.settle();
    operator.slices.take_changed();
    assert!(operator.slices.tidy());
    let changed = operator.slices.take_changed();
    assert!(!changed.is_empty() && changed.iter().all(|changed| !changed.priority), "{changed:?}");
    operator.settle();
    assert_eq!(operator.count(), 1);
    assert!(!operator.slices.tidy(), "nothing is left to tidy");
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
    let port = |number: usize| cilia_crds::ciliumendpoint::networking::NamedPort {
        name: Some(format!("{number:0>932}")),
        port: Some(80),
        protocol: Some("TCP".to_owned()),
    };
    EndpointStatus {
        identity: Some(cilia_crds::ciliumendpoint::EndpointIdentity::default()),
        networking: Some(cilia_crds::ciliumendpoint::networking::EndpointNetworking::default()),
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
