//! Decides which `CiliumEndpointSlice` each endpoint is in, and which slice to write next.
//!
//! [`Slices`] hears of endpoints, slices and namespaces as they are ([`Event`]), says which slices
//! are not as they should be ([`Slices::take_changed`], [`Slices::next`]), what to write to one
//! ([`Slices::plan`]), and hears how the write went ([`Slices::settle`]).
//!
//! No clock, no client: time is a number of milliseconds that the caller counts.
#![forbid(unsafe_code)]

mod compaction;
mod content;
mod endpoint;
mod event;
mod intake;
mod ledger;
mod name;
mod namespace;
mod placement;
mod plan;
mod slice;
mod slices;
mod storm;
mod text;
mod urgency;

pub use event::{Event, Outcome, SliceObject};
pub use plan::{Action, Write};
pub use slice::MOST_ENDPOINTS;
pub use slices::{Changed, Slices};
pub use text::Text;
pub use urgency::{REMOVAL_BOUND, Turn, Urgency};

/// A moment, in milliseconds since any fixed one.
pub type Millis = u64;
