//! What a mirror does about a key: tables, and random sequences against a store.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Entry, KeyValue, Known, Step, Table};
use crate::stand_in::stand_ins_of;

const OURS: i64 = 7;

fn known(value: &str, lease: i64, revision: i64) -> Known {
    Known { value: value.into(), lease, revision }
}

#[expect(clippy::unnecessary_wraps, reason = "what should be there, or nothing")]
fn entry(value: &str, leased: bool) -> Option<Entry> {
    Some(Entry { value: value.into(), leased })
}

#[test]
fn each_state_has_its_step() {
    let put = || Step::Put(b"a".to_vec());
    let cases = [
        ("not looked yet", entry("a", true), None, Step::Read),
        ("missing", entry("a", true), Some(None), put()),
        ("right", entry("a", true), Some(Some(known("a", OURS, 5))), Step::Nothing),
        ("another value", entry("a", true), Some(Some(known("b", OURS, 5))), put()),
        ("a lease that ends", entry("a", true), Some(Some(known("a", 6, 5))), put()),
        ("no lease", entry("a", true), Some(Some(known("a", 0, 5))), put()),
        ("shared, missing", entry("a", false), Some(None), Step::Create(b"a".to_vec())),
        ("shared, another's", entry("a", false), Some(Some(known("b", 0, 5))), Step::Nothing),
        ("shared, right", entry("a", false), Some(Some(known("a", 0, 5))), Step::Nothing),
        (
            "shared, on another's lease",
            entry("a", false),
            Some(Some(known("a", 6, 5))),
            Step::Unbind(b"a".to_vec(), 5),
        ),
        ("not ours", None, None, Step::Nothing),
        ("given up", None, Some(Some(known("a", OURS, 5))), Step::Delete(5)),
        ("given up and taken over", None, Some(Some(known("a", OURS, -1))), Step::Nothing),
    ];
    for (name, desired, is, want) in cases {
        let mut table = Table::default();
        table.want("k", desired);
        if let Some(is) = is {
            table.known.insert("k".into(), is);
        }
        assert_eq!(table.step("k", |lease| lease == OURS), want, "{name}");
    }
}

#[test]
fn what_others_took_while_a_lease_had_expired_is_theirs() {
    let (before, after) = (|lease| lease == OURS, |lease| lease == OURS + 1);
    let mut table = Table::default();
    table.want("k", entry("mine", true));
    table.wrote("k", known("mine", OURS, 5));
    assert_eq!(table.step("k", before), Step::Nothing);
    // Overwritten while it lives: it is ours, and repaired.
    table.found("k", Some(known("theirs", 9, 6)));
    assert_eq!(table.step("k", before), Step::Put(b"mine".to_vec()));
    table.wrote("k", known("mine", OURS, 7));
    assert_eq!(table.step("k", after), Step::Return(b"mine".to_vec()));
    table.taken("k", known("theirs", 9, 8), false, 0);
    assert_eq!(table.step("k", after), Step::Nothing);
    table.look_at_all();
    table.found("k", Some(known("theirs", 9, 8)));
    assert_eq!(table.step("k", after), Step::Nothing, "however often one looks");
    // Given up by us, or by them.
    let mut given_up = table.clone();
    given_up.want("k", None);
    assert_eq!(given_up.step("k", after), Step::Nothing, "it is not ours to delete");
    assert!(table.vanished("k"));
    assert_eq!(table.step("k", after), Step::Return(b"mine".to_vec()));
    table.taken("k", known("mine", 9, 9), false, 0);
    assert_eq!(table.step("k", after), Step::Put(b"mine".to_vec()), "the same is no conflict");
    // One that came back with an older copy of etcd is not another's.
    table.rewound();
    table.taken("k", known("older", 3, 2), false, 0);
    assert_eq!(table.step("k", after), Step::Read);
    table.found("k", Some(known("older", 3, 2)));
    assert_eq!(table.step("k", after), Step::Put(b"mine".to_vec()));
}

#[test]
fn what_an_operator_put_there_meanwhile_is_taken_back() {
    let (after, stand_in) = (|lease| lease == OURS + 1, stand_ins_of(1));
    let mut table = Table::default();
    table.want("k", entry("mine", true));
    table.wrote("k", known("mine", OURS, 5));
    assert!(table.vanished("k"));
    // Found when it is written again; the value has changed since.
    let mut returned = table.clone();
    returned.want("k", entry("new", true));
    assert_eq!(returned.step("k", after), Step::Return(b"new".to_vec()));
    returned.taken("k", known("mine", stand_in, 9), false, 0);
    assert_eq!(returned.step("k", after), Step::Replace(b"new".to_vec(), 9));
    // Somebody else was faster: it is his.
    let mut lost = returned.clone();
    lost.taken("k", known("theirs", 3, 10), false, 0);
    assert_eq!(lost.step("k", after), Step::Nothing);
    // Given up meanwhile: it goes.
    returned.want("k", None);
    assert_eq!(returned.step("k", after), Step::Delete(9));
    // By another agent that starts, and by one that hears of it before its end.
    for mut table in [Table::default(), table] {
        table.want("k", entry("mine", true));
        table.found("k", Some(known("mine", stand_in, 9)));
        assert_eq!(table.step("k", after), Step::Replace(b"mine".to_vec(), 9));
    }
    let mut table = Table::default();
    table.want("k", entry("mine", true));
    table.wrote("k", known("mine", OURS, 5));
    let (value, lease) = (b"mine".to_vec(), stand_in);
    let kv = KeyValue { mod_revision: 9, value, lease, ..KeyValue::default() };
    assert!(table.seen("k", &kv));
    assert_eq!(table.step("k", |lease| lease == OURS), Step::Replace(b"mine".to_vec(), 9));
    assert!(!table.seen("k", &kv), "it is known");
}

#[test]
fn what_is_forgotten_while_it_is_written_stays() {
    let mut table = Table::default();
    table.want("k", entry("a", false));
    table.found("k", None);
    assert_eq!(table.step("k", |_| false), Step::Create(b"a".to_vec()));
    // Somebody else was faster, which is told before the answer is there.
    table.forget("k");
    table.found("k", Some(known("b", 0, 5)));
    assert_eq!(table.step("k", |_| false), Step::Nothing, "it is another's");
    // In whichever way it came: a key of everybody is not deleted.
    table.want("k", entry("a", false));
    table.found("k", Some(known("b", 0, 5)));
    table.want("k", None);
    assert_eq!(table.step("k", |_| false), Step::Nothing);
    // A former process's own, on its lease, is.
    table.want("own", entry("a", true));
    table.want("own", None);
    table.found("own", Some(known("a", 6, 5)));
    assert_eq!(table.step("own", |_| false), Step::Delete(5));
}

#[test]
fn a_look_that_is_due_takes_nothing_away() {
    let mut table = Table::default();
    table.want("k", entry("v", true));
    let ours = |lease| lease == OURS;
    assert!(!table.holds("k", ours), "nobody has looked yet");
    table.found("k", Some(known("v", OURS, 5)));
    assert!(table.holds("k", ours));
    table.look_at_all();
    assert!(table.holds("k", ours) && table.step("k", ours) == Step::Read);
    assert!(!table.holds("k", |_| false), "its lease is lost");
    table.doubt("k");
    assert!(!table.holds("k", ours), "it may be lost");
    table.found("k", Some(known("v", OURS, 5)));
    assert!(table.holds("k", ours) && table.step("k", ours) == Step::Nothing);
    table.want("k", None);
    assert!(!table.holds("k", ours));
}

/// A store, and what is wanted of it.
#[derive(Default)]
struct World {
    table: Table,
    store: BTreeMap<String, Known>,
    wanted: BTreeMap<String, String>,
    lease: i64,
    revision: i64,
    /// Keys of others that were read before we had any: they look like a former process's own.
    former: BTreeSet<String>,
}

impl World {
    /// One step for a key; whether there was one.
    fn step(&mut self, key: &str) -> bool {
        self.revision += 1;
        let lease = self.lease;
        let write = |world: &mut Self, value| {
            let known = Known { value, lease, revision: world.revision };
            world.store.insert(key.into(), known.clone());
            world.table.wrote(key, known);
        };
        match self.table.step(key, |on| on == lease) {
            Step::Nothing => return false,
            Step::Read => {
                if !self.table.held.contains_key(key) {
                    self.former.insert(key.into());
                }
                self.table.found(key, self.store.get(key).cloned());
            }
            Step::Replace(_, at)
                if self.store.get(key).is_none_or(|there| there.revision != at) =>
            {
                match self.store.get(key).cloned() {
                    Some(there) => self.table.taken(key, there.clone(), there.lease == lease, 0),
                    None => self.table.found(key, None),
                }
            }
            Step::Put(value) | Step::Replace(value, _) => write(self, value),
            Step::Return(value) => match self.store.get(key).cloned() {
                Some(there) => self.table.taken(key, there.clone(), there.lease == lease, 0),
                None => write(self, value),
            },
            Step::Create(_) | Step::Unbind(..) => unreachable!(),
            Step::Delete(at) => {
                let gone = self.store.get(key).filter(|known| known.revision == at);
                let theirs = gone.is_some_and(|known| known.lease == THEIRS);
                assert!(!theirs || self.former.contains(key), "{key} is another's");
                if gone.is_some() {
                    self.store.remove(key);
                }
                self.table.gone(key, at);
            }
        }
        true
    }
}

const THEIRS: i64 = 1;

/// Doing what it says makes a store right, whatever others do to it and to our leases in between.
#[test]
fn settles() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("CILIA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..2000 {
        let mut world = World { lease: OURS, ..World::default() };
        for _ in 0..30 {
            let key = format!("k{}", rng.random_range(0..3));
            match rng.random_range(0..8) {
                0 => {
                    let value = format!("v{}", rng.random_range(0..2));
                    world.table.want(&key, entry(&value, true));
                    world.wanted.insert(key.clone(), value);
                }
                1 => {
                    world.table.want(&key, None);
                    world.wanted.remove(&key);
                }
                2 => {
                    world.store.remove(&key);
                    world.table.vanished(&key);
                }
                3 => world.table.look_at_all(),
                4 => {
                    // What hung on the lease is gone, whether or not a watch says so.
                    let lease = world.lease;
                    world.store.retain(|_, known| known.lease != lease);
                    world.lease += 1;
                }
                5 if !world.store.contains_key(&key) => {
                    world.revision += 1;
                    let theirs = known("theirs", THEIRS, world.revision);
                    world.store.insert(key.clone(), theirs);
                }
                6 if !world.store.contains_key(&key) => {
                    world.revision += 1;
                    let value = format!("v{}", rng.random_range(0..2));
                    let stand_in = known(&value, stand_ins_of(1), world.revision);
                    world.store.insert(key.clone(), stand_in.clone());
                    if rng.random_bool(0.5) {
                        let Known { value, lease, revision } = stand_in;
                        let kv = KeyValue {
                            mod_revision: revision,
                            value,
                            lease,
                            ..KeyValue::default()
                        };
                        world.table.seen(&key, &kv);
                    }
                }
                _ => {}
            }
            for _ in 0..rng.random_range(0..4) {
                if !world.step(&key) {
                    break;
                }
            }
        }
        world.table.look_at_all();
        for key in ["k0", "k1", "k2"] {
            while world.step(key) {}
            let there = world.store.get(key);
            let value = there.map(|known| String::from_utf8_lossy(&known.value).into_owned());
            let ours = there.is_some_and(|known| known.lease == world.lease);
            match (world.wanted.get(key), there) {
                (_, Some(known)) if known.lease == THEIRS => {}
                // It is the operator's to take back.
                (None, Some(known)) if known.lease == stand_ins_of(1) => {}
                (None, there) => assert_eq!(there, None, "{key} is not wanted"),
                (wanted, _) => assert!(ours && value.as_ref() == wanted, "{key}: {there:?}"),
            }
        }
        let lease = world.lease;
        assert_eq!(world.table.pending(|_, on| on == lease), 0);
    }
}
