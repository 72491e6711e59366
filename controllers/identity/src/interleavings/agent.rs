//! An agent, as far as identities go.

use std::collections::{BTreeSet, VecDeque};

use cilia_crds::NumericIdentity;

use super::server::{Request, Who};
use super::{World, labels};
use crate::{Ledger, Record, Step};

pub(super) struct Agent {
    pub(super) ledger: Ledger,
    pub(super) unheard: VecDeque<(NumericIdentity, Option<Record>)>,
    /// Label sets with a request under way: one each, but there may be several of one number.
    pub(super) busy: BTreeSet<u32>,
}

impl World {
    pub(super) fn hear(&mut self, agent: usize) {
        if let Some((number, record)) = self.agents[agent].unheard.pop_front() {
            self.agents[agent].ledger.heard(number, record);
        }
    }

    /// An agent sees to a pod that has no number, or not the one it should have.
    pub(super) fn agent_works(&mut self, pod: &'static str) {
        let Some((agent, app, has)) = self.pods.get(pod).copied() else { return };
        let (index, labels) = (agent, labels(app));
        let Agent { ledger, busy, .. } = &mut self.agents[agent];
        let current = has.is_some_and(|number| {
            let marked = ledger.index().get(number).is_none_or(|record| record.marked);
            ledger.index().number(&labels) == Some(number) && !marked
        });
        if current || busy.contains(&app) {
            return;
        }
        let step = ledger.next(&labels, has, true, &mut self.rng);
        let who = Who::Agent { index, app };
        match step {
            Step::Use(number) => self.pods.get_mut(pod).expect("a pod").2 = Some(number),
            Step::Make(number) | Step::Unmark(number) => {
                busy.insert(app);
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
}
