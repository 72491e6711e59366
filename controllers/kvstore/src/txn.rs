//! Writes that happen together, and only if the keys are as they are thought to be.

use crate::keys::range_end;
use crate::messages::{
    Compare, DeleteRequest, KeyValue, Operation, Outcome, PutRequest, RangeRequest, RequestOp,
    ResponseOp, Target, TxnRequest,
};

const EQUAL: i32 = 0;
const LESS: i32 = 2;
const CREATE: i32 = 1;
const MOD: i32 = 2;

/// A transaction.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    pub(crate) request: TxnRequest,
}

impl Txn {
    /// One without conditions and writes.
    pub fn new() -> Self {
        Self::default()
    }

    fn when(mut self, target: i32, key: &str, union: Target, prefix: bool) -> Self {
        self.request.compare.push(Compare {
            result: EQUAL,
            target,
            key: key.into(),
            union: Some(union),
            range_end: if prefix { range_end(key) } else { Vec::new() },
        });
        self
    }

    /// If there is no such key.
    #[must_use]
    pub fn if_absent(self, key: &str) -> Self {
        self.when(CREATE, key, Target::CreateRevision(0), false)
    }

    /// If no key that begins like this was written after this revision.
    #[must_use]
    pub fn if_none_younger_under(mut self, prefix: &str, revision: i64) -> Self {
        self = self.when(MOD, prefix, Target::ModRevision(revision + 1), true);
        if let Some(compare) = self.request.compare.last_mut() {
            compare.result = LESS;
        }
        self
    }

    /// If the key was made by the write of this revision.
    #[must_use]
    pub fn if_created_at(self, key: &str, revision: i64) -> Self {
        self.when(CREATE, key, Target::CreateRevision(revision), false)
    }

    /// If the last write to the key was that of this revision.
    #[must_use]
    pub fn if_unchanged_since(self, key: &str, revision: i64) -> Self {
        self.when(MOD, key, Target::ModRevision(revision), false)
    }

    /// If the key has this value.
    #[must_use]
    pub fn if_value(self, key: &str, value: &[u8]) -> Self {
        const VALUE: i32 = 3;
        self.when(VALUE, key, Target::Value(value.to_vec()), false)
    }

    fn then(mut self, operation: Operation) -> Self {
        self.request.success.push(RequestOp { operation: Some(operation) });
        self
    }

    fn otherwise(mut self, operation: Operation) -> Self {
        self.request.failure.push(RequestOp { operation: Some(operation) });
        self
    }

    /// Then write.
    #[must_use]
    pub fn put(self, key: &str, value: &[u8], lease: i64) -> Self {
        self.then(Operation::Put(PutRequest { key: key.into(), value: value.to_vec(), lease }))
    }

    /// Then delete.
    #[must_use]
    pub fn delete(self, key: &str) -> Self {
        self.then(Operation::Delete(DeleteRequest { key: key.into(), range_end: Vec::new() }))
    }

    /// Then read.
    #[must_use]
    pub fn get(self, key: &str) -> Self {
        self.then(Operation::Range(read(key)))
    }

    /// Else read.
    #[must_use]
    pub fn else_get(self, key: &str) -> Self {
        self.otherwise(Operation::Range(read(key)))
    }
}

fn read(key: &str) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

/// What became of a transaction.
#[derive(Debug, Clone)]
pub struct Outcomes {
    /// Whether every condition held.
    pub done: bool,
    /// The store's revision then.
    pub revision: i64,
    /// What was read, in order.
    pub read: Vec<Option<KeyValue>>,
}

pub(crate) fn read_of(responses: Vec<ResponseOp>) -> Vec<Option<KeyValue>> {
    let read = |response: ResponseOp| match response.outcome {
        Some(Outcome::Range(range)) => Some(range.kvs.into_iter().next()),
        _ => None,
    };
    responses.into_iter().filter_map(read).collect()
}
