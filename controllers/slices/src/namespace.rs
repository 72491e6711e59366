//! One namespace: its endpoints by name, and its slices by how full they are.

use std::collections::{BTreeSet, HashMap};

use crate::endpoint::{EndpointId, SliceId};
use crate::text::Text;

#[derive(Debug, Clone, Default)]
pub(crate) struct Namespace {
    pub(crate) priority: bool,
    pub(crate) endpoints: HashMap<Text, EndpointId>,
    /// Every slice with the number of endpoints that belong in it.
    pub(crate) slices: BTreeSet<(usize, SliceId)>,
    /// The slice that got an endpoint last and has not been written since.
    pub(crate) open: Option<SliceId>,
}

impl Namespace {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        !self.priority && self.endpoints.is_empty() && self.slices.is_empty()
    }

    /// The slices that something belongs in, the emptiest first.
    pub(crate) fn used(&self) -> impl DoubleEndedIterator<Item = (usize, SliceId)> + '_ {
        self.slices.range((1, 0)..).copied()
    }
}
