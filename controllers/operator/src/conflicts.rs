//! Decides what follows when objects change under our hands: look again soon, and say so if it doesn't end.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cilia_runtime::lanes::Next;

use crate::failure::{Failure, NOT_FOUND};

/// The first wait; doubles. The object's event is on its way, and mostly comes first.
const FIRST: Duration = Duration::from_millis(200);
/// Conflicts in a row that are nobody's fault.
const QUIET: u32 = 4;

/// The keys whose last write met a conflict, with how many in a row; nothing of the others.
#[derive(Debug)]
pub(crate) struct Conflicts<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Conflicts<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Conflicts<K> {
    /// What follows a write: nothing if it was done or the object is gone, another look soon after a
    /// conflict. Whatever else failed, or conflicts without end, is an error: the lane logs it and waits longer.
    pub(crate) fn next(&self, key: &K, written: Result<(), Failure>) -> Result<Next, Failure> {
        let mut conflicts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Err(failure) if failure.is_stale() => {
                let before = conflicts.entry(key.clone()).or_default();
                if *before == QUIET {
                    return Err(failure);
                }
                *before += 1;
                Ok(Next::After(FIRST * (1 << (*before - 1))))
            }
            Err(failure) if failure.code() != Some(NOT_FOUND) => Err(failure),
            Ok(()) | Err(_) => {
                conflicts.remove(key);
                Ok(Next::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_runtime::lanes::Next;
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::Conflicts;
    use crate::failure::Failure;

    fn answer(code: u16, details: Option<Value>) -> Result<(), Failure> {
        let details = details.map(|details| serde_json::from_value(details).expect("details"));
        let status = Status { details, ..Status::failure("", "").with_code(code) };
        Err(Failure::of("patch", "node", "a")(kube::Error::Api(status.boxed())))
    }

    #[test]
    fn conflicts_are_quiet_for_a_while_and_refusals_are_not() {
        let conflicts = Conflicts::default();
        let next = |written| conflicts.next(&"a", written).ok();
        let wait = |millis| Some(Next::After(Duration::from_millis(millis)));
        // A failed test of a JSON patch looks like this.
        let untested = || answer(422, Some(json!({})));
        let waits = [answer(409, None), untested(), answer(409, None), answer(422, None)];
        assert_eq!(waits.map(next), [200, 400, 800, 1600].map(wait));
        assert_eq!(next(answer(409, None)), None, "from now on it is logged");
        assert_eq!(next(Ok(())), Some(Next::Done));
        assert_eq!(next(answer(409, None)), wait(200), "counted anew");
        assert_eq!(next(answer(404, None)), Some(Next::Done));

        for about in [json!({ "causes": [{ "field": "spec.taints" }] }), json!({ "kind": "Node" })]
        {
            assert_eq!(next(answer(422, Some(about))), None, "an invalid object stays one");
        }
        assert_eq!(next(answer(403, None)), None);
        assert_eq!(next(answer(500, None)), None);
    }
}
