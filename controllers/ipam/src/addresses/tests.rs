use std::collections::BTreeMap;
use std::net::IpAddr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{AddressError, Addresses, Family};

fn node(ranges: &[&str]) -> Addresses {
    let ranges: Vec<_> = ranges.iter().map(|range| range.parse().expect("a CIDR")).collect();
    let mut addresses = Addresses::new();
    addresses.set_ranges(&ranges);
    addresses
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn goes_round() {
    let mut node = node(&["10.0.0.0/29", "fd00::/125"]);
    node.claim(ip("10.0.0.1"), "router").expect("free");
    assert_eq!(node.capacity(Family::V4), 6);
    for last in [2, 3, 4] {
        let given = node.allocate(Family::V4, "a").expect("free");
        assert_eq!(given, ip(&format!("10.0.0.{last}")));
    }
    assert!(node.release(ip("10.0.0.2"), "a"));
    assert_eq!(node.allocate(Family::V4, "b"), Ok(ip("10.0.0.5")));
    assert_eq!(node.allocate(Family::V4, "b"), Ok(ip("10.0.0.6")));
    assert_eq!(node.allocate(Family::V4, "b"), Ok(ip("10.0.0.2")));
    assert_eq!(
        node.allocate(Family::V4, "c").expect_err("full").to_string(),
        "allocate IPv4 address: all 6 addresses of [10.0.0.0/29] are in use"
    );
    assert_eq!(node.allocate(Family::V6, "c"), Ok(ip("fd00::1")));
    assert_eq!(node.release_all("b").len(), 3);
}

#[test]
fn refuses() {
    let mut node = node(&["10.0.0.0/24"]);
    assert_eq!(node.allocate(Family::V6, "a"), Err(AddressError::NoRange(Family::V6)));
    for address in ["10.0.0.0", "10.0.0.255", "10.0.1.1", "fd00::1"] {
        assert_eq!(node.claim(ip(address), "a"), Err(AddressError::NotUsable(ip(address))));
    }
    assert_eq!(node.restore(ip("10.0.1.1"), "a"), Ok(()), "it is in use, wherever it is from");
    let taken = AddressError::Taken { address: ip("10.0.1.1"), owner: "a".to_owned() };
    assert_eq!(node.restore(ip("10.0.1.1"), "b"), Err(taken));
    assert_eq!(node.restore(ip("10.0.1.1"), "a"), Ok(()), "again");
    assert!(!node.release(ip("10.0.1.1"), "b"), "not theirs");
}

#[test]
fn uses_both_of_two_and_one_of_one() {
    for (range, want) in [("10.0.0.4/31", 2), ("10.0.0.4/32", 1), ("fd00::/127", 2)] {
        let mut node = node(&[range]);
        let family = Family::of_net(range.parse().expect("a CIDR"));
        for _ in 0..want {
            node.allocate(family, "a").expect("free");
        }
        assert!(node.allocate(family, "a").is_err(), "{range}");
    }
}

#[test]
fn agrees_with_a_list_of_who_has_what() {
    const RANGES: [&str; 4] = ["10.0.0.0/29", "10.0.0.8/30", "10.9.0.0/31", "fd00::/125"];
    for seed in 0..2_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut node = node(&RANGES);
        let mut model: BTreeMap<IpAddr, String> = BTreeMap::new();
        for step in 0..60 {
            let owner = format!("owner-{}", rng.random_range(0..4));
            let family = Family::BOTH[rng.random_range(0..2)];
            let place = |number: u8| match family {
                Family::V4 => ip(&format!("10.0.0.{number}")),
                Family::V6 => ip(&format!("fd00::{number:x}")),
            };
            let address = place(rng.random_range(0..16));
            match rng.random_range(0..4) {
                0 => {
                    let released = node.release(address, &owner);
                    let had = model.get(&address) == Some(&owner);
                    assert_eq!(released, had, "seed {seed} step {step}");
                    if had {
                        model.remove(&address);
                    }
                }
                1 => {
                    let got = node.restore(address, &owner).is_ok();
                    let holder = model.entry(address).or_insert_with(|| owner.clone());
                    assert_eq!(got, *holder == owner, "seed {seed} step {step}");
                }
                _ => {
                    if let Ok(address) = node.allocate(family, &owner) {
                        let before = model.insert(address, owner);
                        assert_eq!(before, None, "seed {seed} step {step}: given out twice");
                    } else {
                        let free: Vec<_> = node.free_addresses(family);
                        assert_eq!(free, [] as [IpAddr; 0], "seed {seed} step {step}");
                    }
                }
            }
            let held: BTreeMap<_, _> =
                node.iter().map(|(address, owner)| (address, owner.to_owned())).collect();
            assert_eq!(held, model, "seed {seed} step {step}");
        }
    }
}

impl Addresses {
    /// What could be given out, found the slow way.
    fn free_addresses(&self, family: Family) -> Vec<IpAddr> {
        let hosts = self.ranges().filter(|range| Family::of_net(*range) == family);
        let hosts = hosts.flat_map(|range| {
            let all: Vec<IpAddr> = (0..8u8)
                .map(|offset| match range.network() {
                    IpAddr::V4(base) => IpAddr::V4((base.to_bits() + u32::from(offset)).into()),
                    IpAddr::V6(base) => IpAddr::V6((base.to_bits() + u128::from(offset)).into()),
                })
                .filter(|address| range.contains(address))
                .collect();
            if all.len() > 2 { all[1..all.len() - 1].to_vec() } else { all }
        });
        hosts.filter(|address| self.owner(*address).is_none()).collect()
    }
}
