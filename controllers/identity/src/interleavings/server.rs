//! The API server and the way to it: requests that are under way, done or given up, and who hears of what.

use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};

use super::World;
use crate::Record;

#[derive(Debug, Clone)]
pub(super) struct Object {
    /// Made anew it is another one.
    pub(super) uid: u64,
    pub(super) version: u64,
    pub(super) record: Record,
}

#[derive(Debug, Clone)]
pub(super) enum Request {
    Create(Arc<Labels>),
    Get,
    Unmark,
    Mark { version: u64 },
    Delete { uid: u64, version: u64 },
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Is(Record),
    None,
    Conflict,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// For these labels.
    Agent {
        index: usize,
        app: u32,
    },
    /// The leader of this term.
    Operator(u64),
    Collector,
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) who: Who,
    pub(super) number: NumericIdentity,
    pub(super) request: Request,
    pub(super) answer: Option<Answer>,
    /// Whoever sent it has given up.
    pub(super) orphan: bool,
}

impl World {
    fn tell(&mut self, number: NumericIdentity) {
        let record = self.objects.get(&number).map(|object| object.record.clone());
        for agent in &mut self.agents {
            agent.unheard.push_back((number, record.clone()));
        }
        self.operator.unheard.push_back((number, record));
    }

    pub(super) fn send(&mut self, who: Who, number: NumericIdentity, request: Request) {
        self.flights.push(Flight { who, number, request, answer: None, orphan: false });
    }

    /// The API server does what it is asked.
    pub(super) fn serve(&mut self, at: usize) {
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
    pub(super) fn answer(&mut self, at: usize) {
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
            Who::Agent { .. } if created && matches!(answer, Answer::Conflict) => {
                self.send(who, number, Request::Get);
            }
            Who::Agent { index, app } => {
                let agent = &mut self.agents[index];
                agent.busy.remove(&app);
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
}
