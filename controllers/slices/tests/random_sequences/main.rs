//! Random sequences of events against an API server of a few lines.
//!
//! Laws: at every write an endpoint that lives and was visible stays visible; in the end each valid
//! endpoint is in exactly one slice that says the truth of it, nothing else is in any, no slice is
//! too full, mixed or empty, none could be done without, and a restart writes nothing.
//!
//! `CILIA_SEQUENCES` sets how many; `CILIA_SEED` runs a single one.

mod world;

use rand::RngExt;
use world::World;

fn sequences(default: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("CILIA_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("CILIA_SEQUENCES").unwrap_or(default)).collect(),
    }
}

/// Runs each sequence; names the seed of one that fails.
fn check(count: u64, foreign_writers: bool) {
    for seed in sequences(count) {
        let run = std::panic::catch_unwind(|| sequence(seed, foreign_writers));
        assert!(run.is_ok(), "sequence with CILIA_SEED={seed} failed, see above");
    }
}

fn sequence(seed: u64, foreign_writers: bool) {
    let mut world = World::new(seed, foreign_writers);
    for _ in 0..world.rng.random_range(5..80) {
        world.step();
    }
    world.finish();
}

#[test]
fn nobody_disappears_and_all_ends_well() {
    check(10_000, false);
}

#[test]
fn foreign_edits_are_put_right() {
    check(5_000, true);
}
