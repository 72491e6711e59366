//! A key on its way through a worker, with the right to one write.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::rate::Rate;

/// A key to process.
#[derive(Debug)]
pub struct Job<K> {
    /// The key.
    pub key: K,
    /// The lane it was in.
    pub lane: usize,
    /// Failures since it last succeeded.
    pub failures: u32,
    /// The time since it was first asked for.
    pub waited: Duration,
    pub(super) permit: Option<Permit>,
}

impl<K> Job<K> {
    /// To be called before each write: the first one is paid for already, others wait for the budget.
    ///
    /// A job that never calls this costs the budget nothing.
    pub async fn write(&self) {
        if let Some(permit) = &self.permit
            && permit.spent.swap(true, Ordering::Relaxed)
        {
            permit.rate.write().await;
        }
    }
}

impl<K> Deref for Job<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.key
    }
}

/// A token of the budget; goes back when it is dropped unspent.
#[derive(Debug)]
pub(super) struct Permit {
    rate: Rate,
    spent: AtomicBool,
}

impl Permit {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, spent: AtomicBool::new(false) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.spent.load(Ordering::Relaxed) {
            self.rate.give_back();
        }
    }
}
