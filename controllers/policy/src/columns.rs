//! The columns of a policy map, shared between its versions.
//!
//! A copy costs one pointer for each bucket, and a change copies one bucket: so a new identity
//! costs a map of thousands of columns next to nothing, and two versions differ only where their
//! buckets are not the same allocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::column::Column;

const BUCKETS: usize = 64;

type Bucket = BTreeMap<u32, Arc<Column>>;

/// Columns by peer identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Columns(Vec<Arc<Bucket>>);

impl Default for Columns {
    fn default() -> Self {
        Self(vec![Arc::default(); BUCKETS])
    }
}

fn place(identity: u32) -> usize {
    identity as usize % BUCKETS
}

impl Columns {
    /// The column of an identity.
    pub(crate) fn get(&self, identity: u32) -> Option<&Arc<Column>> {
        self.0[place(identity)].get(&identity)
    }

    /// Sets the column of an identity; an empty one is none.
    pub(crate) fn set(&mut self, identity: u32, column: Arc<Column>) {
        let bucket = &mut self.0[place(identity)];
        if !column.is_empty() {
            Arc::make_mut(bucket).insert(identity, column);
        } else if bucket.contains_key(&identity) {
            Arc::make_mut(bucket).remove(&identity);
        }
    }

    /// Every column, with its identity.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<Column>)> {
        self.0.iter().flat_map(|bucket| bucket.iter().map(|(identity, column)| (*identity, column)))
    }

    /// The identities whose column isn't the same allocation in both, with both.
    pub(crate) fn changed<'a>(
        &'a self,
        old: &'a Self,
    ) -> impl Iterator<Item = (u32, Option<&'a Column>, Option<&'a Column>)> {
        let pairs = self.0.iter().zip(&old.0).filter(|(new, old)| !Arc::ptr_eq(new, old));
        pairs.flat_map(|(new, old)| {
            let now = new.iter().map(|(identity, column)| (*identity, Some(column), old.get(identity)));
            let gone = old.iter().filter(|(identity, _)| !new.contains_key(identity));
            let all = now.chain(gone.map(|(identity, column)| (*identity, None, Some(column))));
            all.filter(|(_, now, before)| !matches!((now, before), (Some(now), Some(before)) if Arc::ptr_eq(now, before)))
                .map(|(identity, now, before)| (identity, now.map(AsRef::as_ref), before.map(AsRef::as_ref)))
        })
    }
}
