//! Decides what an agent does to have a number for a label set.
//!
//! [`Ledger::next`] says one step; the agent does it, tells what came of it, and asks again. What others do
//! meanwhile is told in any order and as often as one likes, and the answer is right for what is known by then:
//!
//! * what exists is used, the oldest first, and never before the garbage collector's mark is off;
//! * what doesn't exist is made under a number that nobody is known to have; the API server lets only one make it.
//!
//! The watch tells in order, the answers to requests come whenever they come: what the watch has said of a number
//! since the request counts more than the answer, which may be older. Several requests may be under way for one number
//! (to make it for one label set, and to take the mark off what another agent made under it meanwhile), and nobody tells
//! whose answer comes: once the watch has said something, none of theirs counts until all are done.

use std::collections::BTreeMap;

use cilia_crds::{Labels, NumericIdentity};
use rand::Rng;

use crate::{Index, Pool, Record, Space};

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The labels have this number.
    Use(NumericIdentity),
    /// The identity is marked for deletion: take the mark off, then ask again.
    Unmark(NumericIdentity),
    /// Nobody has made one: make it with this number, which is set aside until then.
    Make(NumericIdentity),
    /// Others are to make it.
    Wait,
    /// It has to be made, by whomever, and every number of the cluster is taken.
    Full,
}

/// What an agent knows of the cluster's identities. See [`Index`] for the bytes.
#[derive(Debug, Clone)]
pub struct Ledger {
    index: Index,
    pool: Pool,
    /// Numbers that the API server was asked about.
    asked: BTreeMap<NumericIdentity, Asked>,
}

/// Requests that are under way for one number: at least one.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    requests: usize,
    /// The watch has told of the number since the first of them.
    told: bool,
}

impl Ledger {
    /// Nothing is known yet. Nothing is to be asked before everything that exists has been told.
    pub fn new(space: Space) -> Self {
        Self::with_pool(Pool::new(space))
    }

    pub(crate) fn with_pool(pool: Pool) -> Self {
        Self { index: Index::default(), pool, asked: BTreeMap::new() }
    }

    /// What exists.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Which numbers are free.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The watch says what an identity is now, or that there is none (any more); `true` if that is news.
    pub fn heard(&mut self, number: NumericIdentity, record: Option<Record>) -> bool {
        if let Some(asked) = self.asked.get_mut(&number) {
            asked.told = true;
        }
        self.know(number, record)
    }

    /// The API server answers [`Step::Make`] or [`Step::Unmark`]: with the identity that there is, whoever made it,
    /// or that there is none; `true` if that is news.
    pub fn answered(&mut self, number: NumericIdentity, record: Option<Record>) -> bool {
        if self.done(number) {
            self.release(number);
            return false;
        }
        self.know(number, record)
    }

    /// There is no answer, or nobody waits for it any more. If something was done, the watch will say so.
    pub fn unsure(&mut self, number: NumericIdentity) {
        self.done(number);
        self.release(number);
    }

    /// One more request is under way.
    fn ask(&mut self, number: NumericIdentity) {
        self.asked.entry(number).or_default().requests += 1;
    }

    /// One request fewer is under way; whether the watch has told of the number since.
    fn done(&mut self, number: NumericIdentity) -> bool {
        let Some(asked) = self.asked.get_mut(&number) else { return false };
        let told = asked.told;
        asked.requests -= 1;
        if asked.requests == 0 {
            self.asked.remove(&number);
        }
        told
    }

    /// The number is free, unless there is such an identity or it may be being made.
    fn release(&mut self, number: NumericIdentity) {
        if self.index.get(number).is_none() && !self.asked.contains_key(&number) {
            self.pool.release(number);
        }
    }

    fn know(&mut self, number: NumericIdentity, record: Option<Record>) -> bool {
        if let Some(record) = record {
            self.pool.take(number);
            return self.index.upsert(number, record);
        }
        let known = self.index.remove(number);
        self.release(number);
        known
    }

    /// What to do for these labels; what has to be made gets the number `former`, if that is free.
    pub fn next<R: Rng + ?Sized>(
        &mut self,
        labels: &Labels,
        former: Option<NumericIdentity>,
        makes: bool,
        rng: &mut R,
    ) -> Step {
        if let Some(number) = self.index.number(labels) {
            let marked = self.index.get(number).is_some_and(|record| record.marked);
            if !marked {
                return Step::Use(number);
            }
            self.ask(number);
            return Step::Unmark(number);
        }
        if !makes {
            return if self.pool.free() == 0 { Step::Full } else { Step::Wait };
        }
        let again = former.filter(|former| self.pool.take(*former));
        let Some(number) = again.or_else(|| self.pool.draw_for(labels, rng)) else {
            return Step::Full;
        };
        self.ask(number);
        Step::Make(number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cilia_crds::{Labels, NumericIdentity};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::{Ledger, Step};
    use crate::{Record, Space};

    fn labels(app: &str) -> Labels {
        let mut labels = Labels::new();
        labels.insert("k8s", "app", app);
        labels
    }

    fn record(app: &str, marked: bool) -> Record {
        Record { labels: Arc::new(labels(app)), created: 1, marked }
    }

    #[test]
    fn what_exists_is_used_and_what_does_not_is_made() {
        let mut ledger = Ledger::new(Space::new(0, 255).expect("allowed"));
        let mut rng = StdRng::seed_from_u64(1);
        let (web, one) = (labels("web"), NumericIdentity(1000));
        assert_eq!(ledger.next(&web, None, false, &mut rng), Step::Wait);
        assert_eq!(ledger.next(&web, Some(one), true, &mut rng), Step::Make(one));
        let Step::Make(other) = ledger.next(&web, Some(one), true, &mut rng) else {
            panic!("a number is set aside for whoever makes it")
        };
        // Somebody was first, with other labels.
        assert!(ledger.answered(one, Some(record("db", false))));
        ledger.unsure(other);
        assert_eq!(ledger.next(&web, Some(one), true, &mut rng), Step::Make(other));
        ledger.answered(other, Some(record("web", false)));
        assert_eq!(ledger.next(&web, None, false, &mut rng), Step::Use(other));
        ledger.heard(other, Some(record("web", true)));
        assert_eq!(ledger.next(&web, None, false, &mut rng), Step::Unmark(other));
        ledger.answered(other, Some(record("web", false)));
        assert_eq!(ledger.next(&web, None, false, &mut rng), Step::Use(other));
        ledger.heard(other, None);
        assert_eq!(ledger.next(&web, None, true, &mut rng), Step::Make(other));
        // It was made and is gone before the answer to the request.
        ledger.heard(other, Some(record("web", false)));
        ledger.heard(other, None);
        assert!(!ledger.answered(other, Some(record("web", false))));
        assert_eq!(ledger.next(&web, None, true, &mut rng), Step::Make(other));
    }

    #[test]
    fn an_answer_that_is_older_than_the_watch_counts_for_nothing_however_many_were_asked() {
        let mut ledger = Ledger::new(Space::new(0, 255).expect("allowed"));
        let mut rng = StdRng::seed_from_u64(1);
        let (web, db, one) = (labels("web"), labels("db"), NumericIdentity(1000));
        assert_eq!(ledger.next(&web, Some(one), true, &mut rng), Step::Make(one));
        // Another agent was first: its identity is marked, unmarked, and marked again while `web` waits for an answer.
        ledger.heard(one, Some(record("db", true)));
        assert_eq!(ledger.next(&db, None, true, &mut rng), Step::Unmark(one));
        ledger.answered(one, Some(record("db", false)));
        ledger.heard(one, Some(record("db", false)));
        ledger.heard(one, Some(record("db", true)));
        assert!(!ledger.answered(one, Some(record("db", false))), "read before the second mark");
        assert_eq!(ledger.next(&db, None, true, &mut rng), Step::Unmark(one));
        assert!(ledger.answered(one, Some(record("db", false))), "nothing else is under way");
        assert_eq!(ledger.next(&db, None, true, &mut rng), Step::Use(one));
    }

    #[test]
    fn a_full_range_has_what_it_has_and_recovers() {
        let mut ledger = Ledger::new(Space::new(0, 511).expect("allowed"));
        let mut rng = StdRng::seed_from_u64(1);
        for number in Space::new(0, 511).expect("allowed").range() {
            ledger.heard(NumericIdentity(number), Some(record(&number.to_string(), false)));
        }
        let new = labels("new");
        assert_eq!(ledger.next(&new, None, true, &mut rng), Step::Full);
        assert_eq!(ledger.next(&new, None, false, &mut rng), Step::Full, "nobody can make it");
        assert_eq!(
            ledger.next(&labels("300"), None, true, &mut rng),
            Step::Use(NumericIdentity(300))
        );
        ledger.heard(NumericIdentity(4711), None);
        assert_eq!(ledger.next(&new, None, false, &mut rng), Step::Wait);
        assert_eq!(ledger.next(&new, None, true, &mut rng), Step::Make(NumericIdentity(4711)));
    }
}
