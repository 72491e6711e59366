//! What is written, and what need not be.

use cilia_crds::CoreCiliumEndpoint;
use cilia_slices::{Action, Event, SliceObject};

use super::{Operator, entries};

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
