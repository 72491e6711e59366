//! Two agents, two operators of which one leads, and the garbage collector on an API server that stalls: whatever
//! comes in whatever order, a number never stands for two label sets at once.
//!
//! The one thing that time has to do with: a mark stays on for longer than an event or a request takes, for that is
//! what `identity-heartbeat-timeout` is for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Ledger, Managed, Plan, Pool, Record, Step};

const AGENTS: usize = 2;
const PODS: [&str; 6] = ["p0", "p1", "p2", "p3", "p4", "p5"];
/// As few numbers as there may be label sets in use and unused ones on their way out.
const NUMBERS: std::ops::RangeInclusive<u32> = 1000..=1007;
const APPS: u32 = 5;

fn labels(app: u32) -> Arc<Labels> {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &app.to_string());
    Arc::new(labels)
}

#[derive(Debug, Clone)]
struct Object {
    /// Made anew it is another one.
    uid: u64,
    version: u64,
    record: Record,
}

#[derive(Debug, Clone)]
enum Request {
    Create(Arc<Labels>),
    Get,
    Unmark,
    Mark { version: u64 },
    Delete { uid: u64, version: u64 },
}

#[derive(Debug, Clone)]
enum Answer {
    Is(Record),
    None,
    Conflict,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Agent(usize),
    /// The leader of this term.
    Operator(u64),
    Collector,
}

#[derive(Debug)]
struct Flight {
    who: Who,
    number: NumericIdentity,
    request: Request,
    answer: Option<Answer>,
    /// Whoever sent it has given up.
    orphan: bool,
}

struct Agent {
    ledger: Ledger,
    unheard: VecDeque<(NumericIdentity, Option<Record>)>,
    /// Label sets with a request under way.
    busy: BTreeMap<NumericIdentity, u32>,
}

struct Operator {
    managed: Managed<&'static str>,
    unheard: VecDeque<(NumericIdentity, Option<Record>)>,
    term: u64,
    look: BTreeSet<NumericIdentity>,
}

struct World {
    objects: BTreeMap<NumericIdentity, Object>,
    clock: u64,
    flights: Vec<Flight>,
    agents: Vec<Agent>,
    operator: Operator,
    /// Which agent has the pod, its labels, and the number that its packets carry.
    pods: BTreeMap<&'static str, (usize, u32, Option<NumericIdentity>)>,
    rng: StdRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let agent = || Agent {
            ledger: Ledger::with_pool(Pool::of(NUMBERS)),
            unheard: VecDeque::new(),
            busy: BTreeMap::new(),
        };
        Self {
            objects: BTreeMap::new(),
            clock: 0,
            flights: Vec::new(),
            agents: (0..AGENTS).map(|_| agent()).collect(),
            operator: Operator {
                managed: Managed::with_pool(Pool::of(NUMBERS)),
                unheard: VecDeque::new(),
                term: 0,
                look: BTreeSet::new(),
            },
            pods: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn any(&mut self, count: usize) -> usize {
        self.rng.random_range(0..count)
    }

    fn tell(&mut self, number: NumericIdentity) {
        let record = self.objects.get(&number).map(|object| object.record.clone());
        for agent in &mut self.agents {
            agent.unheard.push_back((number, record.clone()));
        }
        self.operator.unheard.push_back((number, record));
    }

    fn send(&mut self, who: Who, number: NumericIdentity, request: Request) {
        self.flights.push(Flight { who, number, request, answer: None, orphan: false });
    }

    /// The API server does what it is asked.
    fn serve(&mut self, at: usize) {
        let (number, request) = (self.flights[at].number, self.flights[at].request.clone());
        self.clock += 1;
        let (clock, present) = (self.clock, self.objects.get(&number).cloned());
        let mut changed = None;
        let answer = match (request, present) {
            (Request::Create(labels), None) => {
                // Several are made in the same second.
                let created = i64::try_from(clock / 8).expect("small");
                let record = Record { labels, created, marked: false };
                changed = Some(Some(Object { uid: clock, version: clock, record: record.clone() }));
                Answer::Is(record)
            }
            (Request::Get, Some(object)) => Answer::Is(object.record),
            (Request::Unmark, Some(mut object)) => {
                if object.record.marked {
                    (object.record.marked, object.version) = (false, clock);
                    changed = Some(Some(object.clone()));
                }
                Answer::Is(object.record)
            }
            (Request::Mark { version }, Some(mut object)) if object.version == version => {
                (object.record.marked, object.version) = (true, clock);
                changed = Some(Some(object.clone()));
                Answer::Is(object.record)
            }
            (Request::Delete { uid, version }, Some(object))
                if (object.uid, object.version) == (uid, version) =>
            {
                changed = Some(None);
                Answer::None
            }
            (Request::Create(_) | Request::Mark { .. } | Request::Delete { .. }, Some(_)) => {
                Answer::Conflict
            }
            (_, None) => Answer::None,
        };
        if let Some(object) = changed {
            match object {
                Some(object) => drop(self.objects.insert(number, object)),
                None => drop(self.objects.remove(&number)),
            }
            self.tell(number);
        }
        self.flights[at].answer = Some(answer);
    }

    /// The answer arrives, or whoever waits for it has waited long enough.
    fn answer(&mut self, at: usize) {
        let (who, number) = (self.flights[at].who, self.flights[at].number);
        let orphan = std::mem::replace(&mut self.flights[at].orphan, true);
        let answer = self.flights[at].answer.clone().unwrap_or(Answer::Lost);
        let done = self.flights[at].answer.is_some();
        let created = matches!(self.flights[at].request, Request::Create(_));
        if done {
            self.flights.swap_remove(at);
        }
        match who {
            _ if orphan => {}
            Who::Agent(agent) if created && matches!(answer, Answer::Conflict) => {
                self.send(Who::Agent(agent), number, Request::Get);
            }
            Who::Agent(agent) => {
                let agent = &mut self.agents[agent];
                agent.busy.remove(&number);
                match answer {
                    Answer::Is(record) => drop(agent.ledger.answered(number, Some(record))),
                    Answer::None => drop(agent.ledger.answered(number, None)),
                    Answer::Conflict | Answer::Lost => agent.ledger.unsure(number),
                }
            }
            Who::Operator(term) if term == self.operator.term => {
                self.operator.look.insert(number);
                match answer {
                    Answer::Is(record) => self.operator.managed.wrote(number, record),
                    Answer::Conflict if created => self.send(who, number, Request::Get),
                    _ => {}
                }
            }
            Who::Operator(_) | Who::Collector => {}
        }
    }

    fn hear(&mut self, agent: usize) {
        if let Some((number, record)) = self.agents[agent].unheard.pop_front() {
            self.agents[agent].ledger.heard(number, record);
        }
    }

    fn operator_hears(&mut self) {
        let Some((number, record)) = self.operator.unheard.pop_front() else { return };
        match record {
            Some(record) => self.operator.managed.seen(number, record),
            None => self.operator.managed.gone(number),
        }
        self.operator.look.insert(number);
    }

    /// An agent sees to a pod that has no number, or not the one it should have.
    fn agent_works(&mut self, pod: &'static str) {
        let Some((agent, app, has)) = self.pods.get(pod).copied() else { return };
        let (index, labels) = (agent, labels(app));
        let Agent { ledger, busy, .. } = &mut self.agents[agent];
        let current = has.is_some_and(|number| {
            let marked = ledger.index().get(number).is_none_or(|record| record.marked);
            ledger.index().number(&labels) == Some(number) && !marked
        });
        if current || busy.values().any(|under_way| *under_way == app) {
            return;
        }
        let step = ledger.next(&labels, has, true, &mut self.rng);
        let who = Who::Agent(index);
        match step {
            Step::Use(number) => self.pods.get_mut(pod).expect("a pod").2 = Some(number),
            Step::Make(number) | Step::Unmark(number) => {
                busy.insert(number, app);
                let unmark = matches!(step, Step::Unmark(_));
                self.send(
                    who,
                    number,
                    if unmark { Request::Unmark } else { Request::Create(labels) },
                );
            }
            Step::Wait => panic!("agents make identities"),
            Step::Full => {}
        }
    }

    fn operator_places(&mut self, pod: &'static str) {
        let managed = &mut self.operator.managed;
        let look = match self.pods.get(pod) {
            // Where no number is left it tries again later.
            Some((_, app, _)) => managed
                .place(pod, labels(*app), &mut self.rng)
                .map_or_else(|_| Vec::new(), |placed| placed.look),
            None => managed.pod_gone(&pod).into_iter().collect(),
        };
        self.operator.look.extend(look);
    }

    fn operator_works(&mut self) {
        let Some(number) = self.operator.look.pop_first() else { return };
        let under_way = |flight: &Flight| {
            flight.who == Who::Operator(self.operator.term)
                && flight.number == number
                && !flight.orphan
        };
        if self.flights.iter().any(under_way) {
            return;
        }
        match self.operator.managed.plan(number) {
            Plan::Nothing => {}
            Plan::Create(labels) => {
                self.send(Who::Operator(self.operator.term), number, Request::Create(labels));
            }
            Plan::Restore(labels) => panic!("nobody changes labels: {number} {labels}"),
            Plan::Again(pods) => pods.into_iter().for_each(|pod| self.operator_places(pod)),
        }
    }

    /// Another operator leads: it lists what there is, and begins.
    fn election(&mut self) {
        self.operator.managed = Managed::with_pool(Pool::of(NUMBERS));
        self.operator.unheard.clear();
        self.operator.look.clear();
        self.operator.term += 1;
        for (number, object) in &self.objects {
            self.operator.managed.seen(*number, object.record.clone());
        }
        for pod in PODS {
            self.operator_places(pod);
        }
    }

    /// The collector looks at an identity.
    fn collect(&mut self, number: NumericIdentity) {
        let Some(object) = self.objects.get(&number).cloned() else { return };
        if self.pods.values().any(|(_, _, has)| *has == Some(number)) {
            return;
        }
        let request = if object.record.marked {
            let unheard = self.agents.iter().flat_map(|agent| &agent.unheard);
            let unheard = unheard.chain(&self.operator.unheard).any(|(of, _)| *of == number);
            if unheard || self.flights.iter().any(|flight| flight.number == number) {
                return;
            }
            Request::Delete { uid: object.uid, version: object.version }
        } else {
            Request::Mark { version: object.version }
        };
        self.send(Who::Collector, number, request);
    }

    fn check(&self, context: &str) {
        let mut owners = BTreeMap::new();
        for (pod, (_, app, has)) in &self.pods {
            let Some(number) = has else { continue };
            assert_eq!(
                *owners.entry(number).or_insert(app),
                app,
                "{context}: two owners of {number}"
            );
            if let Some(object) = self.objects.get(number) {
                assert_eq!(object.record.labels, labels(*app), "{context}: {pod} has {number}");
            }
        }
    }

    fn step(&mut self) {
        let pod = PODS[self.any(PODS.len())];
        match self.any(20) {
            0 | 1 => {
                let app = self.rng.random_range(0..APPS);
                let agent = self.any(AGENTS);
                // Other labels are another pod here: what a pod has until it moves is the agent's business.
                self.pods.insert(pod, (agent, app, None));
                self.operator_places(pod);
            }
            2 => {
                self.pods.remove(pod);
                self.operator_places(pod);
            }
            3..8 => self.agent_works(pod),
            8..11 => {
                let agent = self.any(AGENTS);
                self.hear(agent);
            }
            11 => self.operator_hears(),
            12 | 13 => self.operator_works(),
            14 if self.rng.random_bool(0.1) => self.election(),
            14 | 15 => {
                let number = self.rng.random_range(NUMBERS);
                self.collect(NumericIdentity(number));
            }
            _ if self.flights.is_empty() => {}
            16..19 => {
                let at = self.any(self.flights.len());
                if self.flights[at].answer.is_none() {
                    self.serve(at);
                } else {
                    self.answer(at);
                }
            }
            _ => {
                let at = self.any(self.flights.len());
                if self.rng.random_bool(0.3) {
                    self.answer(at);
                }
            }
        }
    }

    /// Everything that is under way arrives, and everybody does what is left to do.
    fn settle(&mut self, context: &str) {
        for round in 0.. {
            assert!(round < 60, "{context}: does not settle");
            let before = self.clock;
            while !self.flights.is_empty() {
                if self.flights[0].answer.is_none() {
                    self.serve(0);
                }
                self.answer(0);
                self.check(context);
            }
            for agent in 0..AGENTS {
                while !self.agents[agent].unheard.is_empty() {
                    self.hear(agent);
                }
            }
            while !self.operator.unheard.is_empty() {
                self.operator_hears();
            }
            for pod in PODS {
                self.operator_places(pod);
                self.agent_works(pod);
                self.check(context);
            }
            while !self.operator.look.is_empty() {
                self.operator_works();
            }
            if self.flights.is_empty() && self.clock == before {
                break;
            }
        }
    }
}

#[test]
fn a_number_never_stands_for_two_label_sets() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = match number("CILIA_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("CILIA_SEQUENCES").unwrap_or(150)),
    };
    for seed in first..first + count {
        let mut world = World::new(seed);
        for step in 0..400 {
            world.step();
            world.check(&format!("CILIA_SEED={seed}, step {step}"));
        }
        let context = format!("CILIA_SEED={seed}, at the end");
        // What nobody uses goes, and with that there is room for all.
        for _ in 0..6 {
            world.settle(&context);
            for number in NUMBERS {
                world.collect(NumericIdentity(number));
            }
        }
        world.settle(&context);
        let mut used = BTreeMap::new();
        for (pod, (_, app, has)) in &world.pods {
            let number = has.unwrap_or_else(|| panic!("{context}: {pod} has no number"));
            assert_eq!(
                *used.entry(*app).or_insert(number),
                number,
                "{context}: one number per set"
            );
            let object =
                world.objects.get(&number).unwrap_or_else(|| panic!("{context}: {number}"));
            assert!(object.record.labels == labels(*app) && !object.record.marked, "{context}");
        }
        assert_eq!(world.objects.len(), used.len(), "{context}: nothing is left over");
    }
}
