//! Heals fragmentation: where a namespace could do with one slice fewer, one is emptied.
//!
//! Only while nothing else is to be written, one slice at a time, the one with the least in it.
//! Its endpoints go where there is most room, so that the fewest slices are written.

use crate::slices::Slices;

impl Slices {
    /// Starts to empty one slice that is not needed; `false` if there is none, or other work.
    pub fn tidy(&mut self) -> bool {
        self.refresh();
        let busy = self.slices.iter().any(|(_, slice)| slice.in_flight.is_some());
        if !self.started || busy || !self.pending.is_empty() {
            return false;
        }
        let fragmented = self.namespaces.values().find(|namespace| {
            let (slices, members) = namespace
                .used()
                .fold((0, 0), |(slices, members), (count, _)| (slices + 1, members + count));
            // With entries of unusual size, what fits by number may not fit by size.
            let usual = |(_, slice)| self.slices[slice].excess == 0;
            slices > 1 && members <= (slices - 1) * self.max && namespace.used().all(usual)
        });
        let Some(namespace) = fragmented else { return false };
        let mut slices = namespace.used().map(|(_, slice)| slice);
        let Some(emptied) = slices.next() else { return false };
        let targets: Vec<_> = slices.collect();
        let mut leaving = self.slices[emptied].members.clone().into_iter();
        for target in targets {
            let room = self.max.saturating_sub(self.slices[target].occupancy());
            for endpoint in leaving.by_ref().take(room) {
                self.set_home(endpoint, Some(target));
            }
        }
        true
    }
}
