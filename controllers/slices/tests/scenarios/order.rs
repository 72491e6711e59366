//! Which slice is written next, by which lane, and when.

use cilia_slices::{Event, REMOVAL_BOUND, Turn, Write};

use super::{Operator, entries};

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
