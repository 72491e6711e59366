use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Managed, Placed, Plan};
use crate::{Record, Space};

const ONE: NumericIdentity = NumericIdentity(1000);

fn labels(app: &str) -> Arc<Labels> {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", app);
    Arc::new(labels)
}

fn record(app: &str, created: i64) -> Record {
    Record { labels: labels(app), created, marked: false }
}

fn managed() -> (Managed<&'static str>, StdRng) {
    (Managed::new(Space::new(0, 255).expect("allowed")), StdRng::seed_from_u64(1))
}

#[test]
fn an_identity_needs_what_its_users_do() {
    // CID-01 to CID-07: in the store, desired, used; what then.
    type Case = (&'static str, Option<&'static str>, bool, bool, Plan<&'static str>);
    let create = Plan::Create(labels("a"));
    let cases: [Case; 6] = [
        ("CID-01", Some("a"), false, false, Plan::Nothing),
        ("CID-02", None, true, true, create),
        ("CID-03", Some("a"), true, true, Plan::Nothing),
        ("CID-05", None, false, false, Plan::Nothing),
        ("CID-06", Some("a"), false, true, Plan::Nothing),
        ("CID-07", Some("a"), true, false, Plan::Nothing),
    ];
    for (name, store, desired, used, want) in cases {
        let (mut managed, _) = managed();
        if let Some(app) = store {
            managed.seen(ONE, record(app, 1));
        }
        if desired {
            managed.want(ONE, labels("a"), None);
        }
        if used {
            managed.published("slice", vec![ONE]);
        }
        assert_eq!(managed.plan(ONE), want, "{name}");
        assert_eq!(
            managed.pool.take(ONE),
            store.is_none() && !desired && !used,
            "{name}: reserved"
        );
    }
}

#[test]
fn pods_share_the_identity_of_their_labels() {
    let (mut managed, mut rng) = managed();
    // CID-11, CID-13, CID-14.
    let Placed { identity, look } = managed.place("pod1", labels("a"), &mut rng).expect("room");
    assert_eq!(look, [identity]);
    let quiet = Placed { identity, look: vec![] };
    assert_eq!(managed.place("pod1", labels("a"), &mut rng), Ok(quiet.clone()));
    assert_eq!(managed.place("pod2", labels("a"), &mut rng), Ok(quiet));
    assert_eq!(managed.plan(identity), Plan::Create(labels("a")));
    managed.wrote(identity, record("a", 1));
    // CID-15.
    let other = managed.place("pod1", labels("b"), &mut rng).expect("room");
    assert_ne!(other.identity, identity);
    assert_eq!(other.look, [other.identity], "the other pod still has the first");
    assert_eq!(managed.pod_gone(&"pod2"), Some(identity));
    assert_eq!(managed.plan(identity), Plan::Nothing, "that is for the garbage collector");
    // CID-42, CID-43: used, it comes back as it was.
    managed.wrote(other.identity, record("b", 2));
    managed.seen(other.identity, record("forged", 2));
    assert_eq!(managed.plan(other.identity), Plan::Restore(labels("b")));
    managed.gone(other.identity);
    assert_eq!(managed.plan(other.identity), Plan::Create(labels("b")));
    // Unused, it doesn't, and its number is free.
    managed.gone(identity);
    assert_eq!(managed.plan(identity), Plan::Nothing);
    assert!(managed.pool.take(identity));
}

#[test]
fn the_oldest_that_exists_is_adopted() {
    let (mut managed, mut rng) = managed();
    // CID-22, but as agents do: not just any.
    for (number, created) in [(1000, 3), (2000, 1), (3000, 2)] {
        managed.seen(NumericIdentity(number), record("a", created));
    }
    let placed = managed.place("pod", labels("a"), &mut rng);
    assert_eq!(placed, Ok(Placed { identity: NumericIdentity(2000), look: vec![] }));
}

#[test]
fn a_number_of_somebody_elses_is_left_to_them() {
    let (mut managed, mut rng) = managed();
    // CID-09: it is drawn, and then somebody makes it for other labels.
    let drawn = managed.place("pod", labels("a"), &mut rng).expect("room").identity;
    managed.seen(drawn, record("b", 1));
    assert_eq!(managed.plan(drawn), Plan::Again(vec!["pod"]));
    let again = managed.place("pod", labels("a"), &mut rng).expect("room").identity;
    assert_ne!(again, drawn);
    // One that was ours, is gone, and is made by somebody else for other labels, is theirs.
    managed.wrote(again, record("a", 2));
    managed.gone(again);
    assert_eq!(managed.plan(again), Plan::Create(labels("a")));
    managed.seen(again, record("b", 3));
    assert_eq!(managed.plan(again), Plan::Again(vec!["pod"]));
    managed.gone(again);
    let again = managed.place("pod", labels("a"), &mut rng).expect("room").identity;
    // Somebody makes one for the very labels, before ours was made.
    managed.seen(ONE, record("a", 1));
    assert_eq!(managed.plan(again), Plan::Again(vec!["pod"]));
    assert_eq!(managed.place("pod", labels("a"), &mut rng).map(|placed| placed.identity), Ok(ONE));
    assert!(managed.pool.take(again), "not used, so free");
    // An older one than that which the pod has turns up, and that is what agents use.
    let older = NumericIdentity(2000);
    managed.seen(older, record("a", 0));
    assert_eq!(managed.plan(ONE), Plan::Nothing);
    assert_eq!(managed.plan(older), Plan::Again(vec!["pod"]));
    assert_eq!(
        managed.place("pod", labels("a"), &mut rng).map(|placed| placed.identity),
        Ok(older)
    );
    assert_eq!(managed.plan(older), Plan::Nothing);
}

#[test]
fn users_are_counted() {
    let (mut managed, _) = managed();
    let ids = |numbers: &[u32]| numbers.iter().map(|n| NumericIdentity(*n)).collect::<Vec<_>>();
    let counts = |managed: &Managed<&str>| {
        [1000, 2000, 3000].map(|n| managed.uses.get(&NumericIdentity(n)).copied().unwrap_or(0))
    };
    // CID-33 to CID-35.
    assert_eq!(managed.published("ces1", ids(&[1000, 1000, 2000, 3000])), []);
    assert_eq!(counts(&managed), [2, 1, 1]);
    assert_eq!(managed.published("ces2", ids(&[1000, 1000, 2000])), []);
    assert_eq!(counts(&managed), [4, 2, 1]);
    assert_eq!(managed.published("ces1", ids(&[1000, 1000, 2000])), ids(&[3000]));
    assert_eq!(counts(&managed), [4, 2, 0]);
    managed.published("ces1", vec![]);
    assert_eq!(managed.published("ces2", vec![]).last(), Some(&NumericIdentity(2000)));
    assert!(managed.uses.is_empty() && managed.published.is_empty());
}

/// An API server with the objects, and the events of them that were not heard yet.
#[derive(Default)]
struct World {
    objects: BTreeMap<NumericIdentity, Record>,
    unheard: VecDeque<(NumericIdentity, Option<Record>)>,
    /// Every label set that an identity has ever had.
    had: BTreeSet<(NumericIdentity, String)>,
    clock: i64,
    writes: usize,
}

impl World {
    fn put(&mut self, identity: NumericIdentity, labels: &Arc<Labels>) -> Record {
        self.clock += 1;
        let created = self.objects.get(&identity).map_or(self.clock, |record| record.created);
        let record = Record { labels: Arc::clone(labels), created, marked: false };
        self.had.insert((identity, labels.canonical()));
        self.objects.insert(identity, record.clone());
        self.unheard.push_back((identity, Some(record.clone())));
        record
    }

    fn delete(&mut self, identity: NumericIdentity) {
        if self.objects.remove(&identity).is_some() {
            self.unheard.push_back((identity, None));
        }
    }
}

type Pods = BTreeMap<&'static str, &'static str>;

/// Does what an identity needs, as the reconciler would; the pods to place again.
fn perform(
    world: &mut World,
    managed: &mut Managed<&'static str>,
    identity: NumericIdentity,
) -> Vec<&'static str> {
    match managed.plan(identity) {
        Plan::Nothing => {}
        Plan::Again(pods) => return pods,
        Plan::Create(labels) => {
            if let Some(there) = world.objects.get(&identity).cloned() {
                managed.seen(identity, there);
            } else {
                let record = world.put(identity, &labels);
                managed.wrote(identity, record);
                world.writes += 1;
            }
        }
        Plan::Restore(labels) => {
            let was_ours = world.had.contains(&(identity, labels.canonical()));
            assert!(was_ours, "{identity} was never {}", labels.canonical());
            // Guarded by what is known: otherwise the write fails.
            if world.objects.get(&identity) == managed.existing.get(identity) {
                let record = world.put(identity, &labels);
                managed.wrote(identity, record);
                world.writes += 1;
            }
        }
    }
    Vec::new()
}

fn place(
    managed: &mut Managed<&'static str>,
    pods: &Pods,
    pod: &'static str,
    rng: &mut StdRng,
) -> Vec<NumericIdentity> {
    match pods.get(pod) {
        Some(app) => managed.place(pod, labels(app), rng).expect("room").look,
        None => managed.pod_gone(&pod).into_iter().collect(),
    }
}

fn hear(world: &mut World, managed: &mut Managed<&'static str>) -> Option<NumericIdentity> {
    let (identity, record) = world.unheard.pop_front()?;
    match record {
        Some(record) => managed.seen(identity, record),
        None => managed.gone(identity),
    }
    Some(identity)
}

/// Everything is heard and looked at until nothing is left to do; how many writes that took.
fn settle(
    world: &mut World,
    managed: &mut Managed<&'static str>,
    pods: &Pods,
    rng: &mut StdRng,
) -> usize {
    let before = world.writes;
    for round in 0.. {
        assert!(round < 20, "does not settle");
        let writes = world.writes;
        while hear(world, managed).is_some() {}
        for pod in PODS {
            place(managed, pods, pod, rng);
        }
        let all: BTreeSet<NumericIdentity> =
            managed.wanted.keys().chain(world.objects.keys()).copied().collect();
        let mut again = 0;
        for identity in all {
            again += perform(world, managed, identity).len();
        }
        if again == 0 && world.writes == writes && world.unheard.is_empty() {
            break;
        }
    }
    world.writes - before
}

const PODS: [&str; 6] = ["p0", "p1", "p2", "p3", "p4", "p5"];
const APPS: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn whatever_happens_every_pod_has_the_one_identity_of_its_labels() {
    for seed in 0..2_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let space = Space::new(0, 511).expect("allowed");
        let (mut world, mut pods) = (World::default(), Pods::new());
        let mut managed: Managed<&'static str> = Managed::new(space);
        for _ in 0..60 {
            let pod = PODS[rng.random_range(0..PODS.len())];
            let app = APPS[rng.random_range(0..APPS.len())];
            // Somebody's number: mostly one that we are about to use.
            let wanted: Vec<NumericIdentity> = managed.wanted.keys().copied().collect();
            let identity = match wanted.len() {
                0 => NumericIdentity(rng.random_range(256..300)),
                count => wanted[rng.random_range(0..count)],
            };
            match rng.random_range(0..10) {
                0..3 => {
                    pods.insert(pod, app);
                    place(&mut managed, &pods, pod, &mut rng);
                }
                3 => {
                    pods.remove(pod);
                    place(&mut managed, &pods, pod, &mut rng);
                }
                4 => drop(world.put(identity, &labels(app))),
                5 => world.delete(identity),
                6 if rng.random_bool(0.2) => {
                    // The process dies; the next knows what there is before it does anything.
                    managed = Managed::new(space);
                    world.unheard.clear();
                    for (identity, record) in &world.objects {
                        managed.seen(*identity, record.clone());
                    }
                    for pod in PODS {
                        place(&mut managed, &pods, pod, &mut rng);
                    }
                }
                6 | 7 => drop(hear(&mut world, &mut managed)),
                _ => {
                    for pod in perform(&mut world, &mut managed, identity) {
                        place(&mut managed, &pods, pod, &mut rng);
                    }
                }
            }
        }
        settle(&mut world, &mut managed, &pods, &mut rng);
        let mut by_app = BTreeMap::new();
        for (pod, app) in &pods {
            let identity = managed.pods[pod];
            assert_eq!(
                world.objects[&identity].labels,
                labels(app),
                "seed {seed}: {pod} {identity}"
            );
            assert_eq!(*by_app.entry(app).or_insert(identity), identity, "seed {seed}: {app}");
        }
        assert_eq!(settle(&mut world, &mut managed, &pods, &mut rng), 0, "seed {seed}: at rest");
        let taken = managed.pool.size() - managed.pool.free();
        let ours = world.objects.keys().filter(|identity| space.contains(**identity)).count();
        assert_eq!(taken as usize, ours, "seed {seed}: numbers that nobody has are free");
    }
}
