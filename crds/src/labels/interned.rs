//! Keeps one copy of what many repeat, for as long as anybody has it.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// No look for what nobody has before there is so much.
const FIRST_LOOK: usize = 1024;

/// The one copy of each value.
pub(super) struct Interned<T: ?Sized>(LazyLock<Mutex<Table<T>>>);

struct Table<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// When there are so many, those that nobody has are dropped.
    look_at: usize,
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    pub(super) const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(Table { values: HashSet::new(), look_at: FIRST_LOOK })))
    }

    /// The copy that all share, made if nobody has one yet.
    pub(super) fn share(&self, value: &T, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        self.share_with(value, |_| make())
    }

    /// The same, made of what is asked for.
    pub(super) fn share_with<V: Borrow<T>>(
        &self,
        value: V,
        make: impl FnOnce(V) -> Arc<T>,
    ) -> Arc<T> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.values.get(value.borrow()) {
            return Arc::clone(known);
        }
        if table.values.len() >= table.look_at {
            table.values.retain(|known| Arc::strong_count(known) > 1);
            table.look_at = FIRST_LOOK.max(2 * table.values.len());
        }
        let shared = make(value);
        table.values.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{FIRST_LOOK, Interned};

    #[test]
    fn what_nobody_has_is_dropped() {
        let interned: Interned<str> = Interned::new();
        let kept = interned.share("kept", || "kept".into());
        assert!(Arc::ptr_eq(&kept, &interned.share("kept", || "kept".into())));
        for number in 0..4 * FIRST_LOOK {
            drop(interned.share(&number.to_string(), || "other".into()));
        }
        assert!(interned.0.lock().expect("a lock").values.len() <= FIRST_LOOK + 1);
        assert!(Arc::ptr_eq(&kept, &interned.share("kept", || "kept".into())));
    }
}
