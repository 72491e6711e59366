//! The operator that leads, the next one that does, and the collector of what nobody uses.

use std::collections::{BTreeSet, VecDeque};

use cilia_crds::NumericIdentity;

use super::server::{Flight, Request, Who};
use super::{NUMBERS, PODS, World, labels};
use crate::{Managed, Plan, Pool, Record};

pub(super) struct Operator {
    pub(super) managed: Managed<&'static str>,
    pub(super) unheard: VecDeque<(NumericIdentity, Option<Record>)>,
    pub(super) term: u64,
    pub(super) look: BTreeSet<NumericIdentity>,
}

impl World {
    pub(super) fn operator_hears(&mut self) {
        let Some((number, record)) = self.operator.unheard.pop_front() else { return };
        match record {
            Some(record) => self.operator.managed.seen(number, record),
            None => self.operator.managed.gone(number),
        }
        self.operator.look.insert(number);
    }

    pub(super) fn operator_places(&mut self, pod: &'static str) {
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

    pub(super) fn operator_works(&mut self) {
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
    pub(super) fn election(&mut self) {
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
    pub(super) fn collect(&mut self, number: NumericIdentity) {
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
}
