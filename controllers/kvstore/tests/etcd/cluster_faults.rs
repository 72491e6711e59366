//! Faults of a whole etcd, three members with TLS and users, while agents work: nothing is lost.
//!
//! Agents give label sets their numbers, write addresses and count under a lock, all on leases of half
//! a minute; somebody who may only read mirrors everything. After each fault all are done, and agree.
//! `CILIA_QUORUM_LOST_SECONDS` has the quorum lost, too, for so long, and after `CILIA_FAULTS` more faults
//! follow in random order (`CILIA_SEED` repeats one).

mod agents;
mod world;

use std::time::Duration;

use cilia_kvstore::keys;
use cilia_runtime::testing::eventually_for;
use cilia_runtime::testing::proxy::Mode;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::number;
use world::{LIMIT, World};

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// A member dies that follows.
    Follower,
    /// The member dies that leads.
    Leader,
    /// Two members die.
    Quorum,
    /// Nobody reaches etcd, whose history goes meanwhile.
    Compaction,
    /// Etcd has no room left.
    NoSpace,
    /// Everything is late.
    SlowLink,
}

const FAULTS: [Fault; 6] = [
    Fault::Follower,
    Fault::Leader,
    Fault::Compaction,
    Fault::SlowLink,
    Fault::NoSpace,
    Fault::Quorum,
];
const LOST: &str = "CILIA_QUORUM_LOST_SECONDS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_given_twice() {
    let mut world = World::start().await;
    world.work(2).done(Duration::ZERO).await;
    world.is_right_after("the start").await;
    let seed = number("CILIA_SEED", rand::rng().random_range(0..1_000_000));
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed as u64);
    let long = std::env::var_os(LOST).is_some();
    let first = FAULTS.into_iter().filter(|fault| long || !matches!(fault, Fault::Quorum));
    let more = (0..number("CILIA_FAULTS", 0)).filter_map(|_| FAULTS.choose(&mut rng).copied());
    for (count, fault) in first.chain(more).enumerate() {
        let start = std::time::Instant::now();
        match fault {
            Fault::Follower => a_member_dies(&mut world, false).await,
            Fault::Leader => a_member_dies(&mut world, true).await,
            Fault::Quorum => the_quorum_is_lost(&mut world).await,
            Fault::Compaction => the_history_goes(&world).await,
            Fault::NoSpace => there_is_no_room(&world).await,
            Fault::SlowLink => the_link_is_slow(&world).await,
        }
        let took = start.elapsed().as_secs_f64();
        world.is_right_after(&format!("{fault:?}, fault {count}, CILIA_SEED={seed}")).await;
        println!("{fault:?}: {took:.1} s, agrees after {:.1} s", start.elapsed().as_secs_f64());
    }
}

async fn a_member_dies(world: &mut World, leads: bool) {
    let leader = leader(world).await;
    let member = if leads { leader } else { (leader + 1) % world.etcd.size() };
    let work = world.work(2);
    world.etcd.kill(member);
    work.done(Duration::ZERO).await;
    world.etcd.run(member);
    world.work(1).done(Duration::ZERO).await;
}

async fn the_quorum_is_lost(world: &mut World) {
    let pause = Duration::from_secs(number(LOST, 0) as u64);
    world.etcd.kill(0);
    world.etcd.kill(1);
    let mut work = world.work(2);
    world.known_identities_are_had().await;
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
        assert!(work.goes_on(), "nobody writes without a quorum");
        world.known_identities_are_had().await;
        for agent in &world.agents {
            let health = agent.watchdog.health().borrow().clone();
            assert!(!health.ok && health.message.contains("quorum check failed"), "{health:?}");
        }
    }
    world.etcd.run(0);
    world.etcd.run(1);
    work.done(Duration::ZERO).await;
    if !pause.is_zero() {
        for agent in &world.agents {
            eventually_for(LIMIT, || async {
                let health = agent.watchdog.health().borrow().clone();
                if health.ok { Ok(()) } else { Err(health) }
            })
            .await;
        }
    }
}

async fn the_history_goes(world: &World) {
    let other = keys::ip("10.9.9.9/32".parse().expect("an address"));
    world.root.put(&other, b"0", false).await.expect("a write");
    world.is_read(&other).await;
    let work = world.work(2);
    world.link(Mode::Cut);
    for value in 0..20u8 {
        world.root.put(&other, &[value], false).await.expect("a write");
    }
    // Nobody will ever be told of this by a watch.
    world.root.delete(&other).await.expect("a deletion");
    let revision = world.root.put("after", b"", false).await.expect("a write");
    world.root.compact(revision).await.expect("a compaction");
    world.link(Mode::Pass);
    work.done(Duration::ZERO).await;
}

async fn there_is_no_room(world: &World) {
    let filler = vec![b'x'; 1_000_000];
    // The quota counts what is committed, a tenth of a second later.
    let mut full = None;
    for file in 0..200 {
        if let Err(error) = world.root.put(&format!("filler/{file}"), &filler, false).await {
            full = Some(error);
            break;
        }
    }
    let full = full.expect("there is room for everything");
    assert!(full.is_no_space(), "{full}");
    let mut work = world.work(1);
    world.known_identities_are_had().await;
    assert!(work.goes_on(), "nobody writes without room");
    let (_, revision) = world.root.list("filler/").await.expect("a list");
    world.root.delete_prefix("filler/").await.expect("deletions need no room");
    world.root.compact(revision + 1).await.expect("a compaction");
    world.etcd.make_room().await;
    work.done(Duration::ZERO).await;
}

async fn the_link_is_slow(world: &World) {
    // An answer takes a tenth of a second.
    world.link(Mode::Slow(50));
    world.work(1).done(Duration::ZERO).await;
    world.link(Mode::Pass);
}

async fn leader(world: &World) -> usize {
    eventually_for(LIMIT, || async { world.etcd.leader().await.ok_or("no leader") }).await
}
