//! Random sequences of events against an API server of a few lines.
//!
//! Laws: at every write an endpoint that lives and was visible stays visible; in the end each valid
//! endpoint is in exactly one slice that says the truth of it, nothing else is in any, no slice is
//! too full, mixed or empty, none could be done without, and a restart writes nothing.
//!
//! Each run draws new seeds and prints the first. `CILIA_SEQUENCES` sets how many sequences there are,
//! `CILIA_SEED` runs a single one.

mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use rand::RngExt;
use world::World;

/// Runs `count` sequences on all cores; names the seed of one that fails.
fn check(count: u64, foreign_writers: bool) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, count) = match number("CILIA_SEED") {
        Some(seed) => (seed, 1),
        None => (u64::from(rand::random::<u32>()), number("CILIA_SEQUENCES").unwrap_or(count)),
    };
    println!("{count} sequences from seed {first}");
    let done = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = done.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let seed = first + number;
                    let run = std::panic::catch_unwind(|| sequence(seed, foreign_writers));
                    assert!(run.is_ok(), "sequence with CILIA_SEED={seed} failed, see above");
                }
            });
        }
    });
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
    check(70_000, false);
}

#[test]
fn foreign_edits_are_put_right() {
    check(30_000, true);
}
