//! Random clusters, and what becomes of packets in them by the definition of the rules: the measure
//! of the maps, and of whoever applies them.
//!
//! ```
//! # use cilia_policy::testing::World;
//! # use rand::SeedableRng as _;
//! let rng = &mut rand::rngs::SmallRng::seed_from_u64(7);
//! let world = World::new(rng);
//! let mut repository = world.repository();
//! for case in world.cases(rng, &mut repository, 2) {
//!     // The entries of case.map, and repository.blocks(), as the kernel has them, must lead to:
//!     for packet in &case.packets {
//!         assert!(packet.want.admits(case.map.decide(
//!             packet.direction,
//!             packet.identity.0,
//!             packet.block.map(|block| block.0),
//!             packet.proto,
//!             packet.port,
//!         ).0));
//!     }
//! }
//! ```
//!
//! Numbers and labels are drawn from few, so that selectors hit and prefixes nest.

mod cases;
mod draw;
mod oracle;
mod world;

pub use cases::{Case, Packet, Want};
pub use oracle::Side;
pub use world::World;

/// The seeds of a test: `default` many, or what `CILIA_SEED` and `CILIA_SEQUENCES` say.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let one = number("CILIA_SEED");
    let count = number("CILIA_SEQUENCES").unwrap_or(if one.is_some() { 1 } else { default });
    let start = one.unwrap_or(1);
    start..start + count
}
