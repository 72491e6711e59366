//! Tells somebody how requests fare that a client's rate lets through.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Client;

/// How a request fared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fared {
    /// How long it waited for its turn.
    pub waited: Duration,
    /// How long the answer took.
    pub took: Duration,
    /// Whether it was answered, well.
    pub well: bool,
    /// Requests per second, and at once after a pause.
    pub rate: (f64, f64),
    /// How many are under way.
    pub in_flight: usize,
    /// How many may be.
    pub parallel: usize,
}

/// Who is told; nobody at first, and then the first who asks for it.
pub(crate) struct Listener<F: ?Sized>(OnceLock<Arc<F>>);

/// Of one client.
pub(super) type OfClient = Listener<dyn Fn(&Fared) + Send + Sync>;
/// Of the clients of other clusters, by the clusters' names.
pub(crate) type OfClusters = Listener<dyn Fn(&str, &Fared) + Send + Sync>;

impl<F: ?Sized> Listener<F> {
    pub(crate) fn set(&self, tell: Arc<F>) {
        // The first one stays.
        let _ = self.0.set(tell);
    }

    pub(crate) fn get(&self) -> Option<&Arc<F>> {
        self.0.get()
    }
}

impl<F: ?Sized> Default for Listener<F> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<F: ?Sized> std::fmt::Debug for Listener<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.0.get().is_some()).finish()
    }
}

impl Client {
    /// Tells of every request from now on; the first who asks for it.
    pub fn tell_of_limits(&self, tell: impl Fn(&Fared) + Send + Sync + 'static) {
        self.0.listener.set(Arc::new(tell));
    }

    pub(super) fn fared(&self, waited: Duration, took: Duration, well: bool) {
        let Some(tell) = self.0.listener.get() else { return };
        let parallel = self.0.options.max_inflight;
        let in_flight = parallel.saturating_sub(self.0.inflight.available_permits());
        tell(&Fared { waited, took, well, rate: self.0.rate.limits(), in_flight, parallel });
    }
}
