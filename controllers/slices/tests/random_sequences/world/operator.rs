//! The operator: what it writes, what becomes of that, and how it dies and is followed by another.

use cilia_slices::{Action, Event, Outcome, Slices, Write};
use rand::RngExt;
use rand::seq::SliceRandom;

use super::{Sent, World};

impl World {
    /// The operator is killed, and another starts.
    pub(super) fn crash(&mut self) {
        self.die();
        self.cep_events.clear();
        self.slice_events.clear();
        self.heard.clear();
        self.delivered.clear();
        self.operator = self.replica();
        self.standby = self.replica();
        for name in self.priority.clone() {
            self.tell(Event::Namespace { name: &name, priority: true });
        }
        let mut slices: Vec<_> = self.slices.clone().into_iter().collect();
        let mut ceps: Vec<_> = self.ceps.clone().into_iter().collect();
        slices.shuffle(&mut self.rng);
        ceps.shuffle(&mut self.rng);
        while !slices.is_empty() || !ceps.is_empty() {
            if self.rng.random_bool(0.5) {
                if let Some((name, ces)) = slices.pop() {
                    self.delivered.insert(name.clone(), ces.uid);
                    self.hear_slice(&name, &ces);
                }
            } else if let Some((key, cep)) = ceps.pop() {
                self.hear_cep(&key, Some(&cep));
            }
        }
        self.operator.start();
        self.operator.confirm();
    }

    /// The operator dies, and the standby goes on from what it has followed so far.
    pub(super) fn hand_over(&mut self) {
        self.die();
        let standby = self.replica();
        self.operator = std::mem::replace(&mut self.standby, standby);
        self.operator.start();
        for name in self.priority.clone() {
            self.standby.apply(Event::Namespace { name: &name, priority: true }, self.step);
        }
        // Another one starts to follow: it lists what there is, and hears what is still to come.
        self.standby_ready = false;
        self.relist();
    }

    /// Of the writes under way some are done.
    pub(super) fn die(&mut self) {
        for sent in std::mem::take(&mut self.sent) {
            if self.rng.random_bool(0.5) {
                self.land(&sent);
            }
        }
        self.late.clear();
    }

    pub(super) fn replica(&mut self) -> Slices {
        Slices::new(self.max, self.rng.random()).scarce_from(self.rng.random_range(0..4))
    }

    pub(super) fn send(&mut self) {
        let Some(slice) = self.operator.next(self.step) else { return };
        let Some(write) = self.operator.plan(&slice) else { panic!("{slice} had to be written") };
        assert_eq!(self.operator.plan(&slice), None, "{slice} is being written");
        self.sent.push(Sent { write, planned_at: self.step });
    }

    /// A write arrives, or does not, and so does its answer.
    pub(super) fn answer(&mut self, sent: Sent) {
        if sent.write.action == Action::Read {
            self.operator.settle(&sent.write.slice, Outcome::Refused);
            if self.rng.random_bool(0.8) {
                self.read(&sent.write.slice);
            }
            return;
        }
        match self.rng.random_range(0..10) {
            0 => self.settled(&sent.write, Outcome::Refused),
            1 => {
                self.settled(&sent.write, Outcome::Unknown);
                self.late.push(sent);
            }
            2 => {
                self.land(&sent);
                self.settled(&sent.write, Outcome::Unknown);
            }
            _ => {
                let outcome = self.land(&sent);
                self.settled(&sent.write, outcome);
            }
        }
    }

    pub(super) fn settled(&mut self, write: &Write, outcome: Outcome) {
        let unknown = outcome == Outcome::Unknown;
        self.operator.settle(&write.slice, outcome);
        if unknown && self.rng.random_bool(0.8) {
            self.read(&write.slice);
        }
    }

    /// The operator reads a slice.
    pub(super) fn read(&mut self, name: &str) {
        if let Some(ces) = self.slices.get(name).cloned() {
            self.hear_slice(name, &ces);
        } else {
            self.operator.apply(Event::SliceGone { name, uid: None }, self.step);
        }
    }
}
