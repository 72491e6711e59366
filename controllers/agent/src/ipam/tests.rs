use std::collections::BTreeMap;

use cilia_ipam::{Allocation, Family, Request};

use super::Ipam;

#[test]
fn an_endpoint_gets_both_families_or_nothing() {
    let ipam = Ipam::default();
    let nets = ["10.0.0.0/29".parse().unwrap(), "fd00::/126".parse().unwrap()];
    ipam.set_ranges(&nets, &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]).unwrap();
    let pair = ipam.allocate("a", true, true).unwrap();
    assert_eq!(
        (pair.ipv4, pair.ipv6),
        (Some("10.0.0.2".parse().unwrap()), Some("fd00::2".parse().unwrap()))
    );
    let error = ipam.allocate("b", true, true).unwrap_err();
    assert!(error.to_string().contains("fd00::/126"), "{error}");
    assert_eq!(ipam.usage(false).0, 2, "the IPv4 address was taken back");
    ipam.release("a");
    assert!(ipam.allocate("b", true, true).is_ok());
    assert!(ipam.restore("10.0.0.1".parse().unwrap(), "c").is_err());
}

fn listed(pool: &str, cidr: &str) -> Vec<Allocation> {
    vec![Allocation { pool: pool.to_owned(), cidrs: vec![cidr.to_owned()] }]
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_a_range_of_its_pool() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let ipam = Ipam::of_pools((true, false), BTreeMap::new(), "default", notes.clone());
    ipam.restored();
    ipam.pools().know("red", "10.0.0.0/24");
    let wants = [(Family::V4, "red".to_owned())];
    let late = ipam.allocate_out_of(&wants, "n/p (c)", "n/p").await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "allocate IPv4 address from pool \"red\": this node has no range of it (yet)"
    );
    let wish = ipam.wish(&[], true).unwrap().unwrap();
    let ask = |pool: &str| Request { pool: pool.to_owned(), v4: 1, v6: 0 };
    assert_eq!((wish.requested, wish.urgent), (vec![ask("default"), ask("red")], true));

    let asks = ipam.allocate_out_of(&wants, "n/p (c)", "n/p");
    let gives = async {
        tokio::task::yield_now().await;
        ipam.observe(Some(("1", &listed("red", "10.0.0.4/32"))));
    };
    let (pair, ()) = tokio::join!(asks, gives);
    assert_eq!(pair.unwrap().ipv4, Some("10.0.0.4".parse().unwrap()));

    // The pod goes; what is given back is written down first, and the next agent knows of it.
    ipam.release("n/p (c)");
    let wish = ipam.wish(&[], true).unwrap().unwrap();
    assert_eq!((wish.requested, wish.allocated), (vec![ask("default")], Some(vec![])));
    let next = Ipam::of_pools((true, false), BTreeMap::new(), "default", notes.clone());
    next.observe(Some(("1", &listed("red", "10.0.0.4/32"))));
    assert!(next.allocate_out_of(&wants, "n/q (d)", "n/q").await.is_err());
    next.observe(Some(("2", &[])));
    next.observe(Some(("3", &listed("red", "10.0.0.4/32"))));
    assert!(next.allocate_out_of(&wants, "n/q (d)", "n/q").await.is_ok(), "it was given anew");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_keeps_nobody_busy() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let ipam = Ipam::of_pools((true, false), BTreeMap::new(), "default", notes);
    let mut demand = ipam.demand();
    let looks = async {
        for looks in 0.. {
            assert!(looks < 10, "the node is looked at again and again");
            demand.changed().await.unwrap();
            ipam.observe(Some(("1", &[])));
            tokio::task::yield_now().await;
        }
    };
    let wants = [(Family::V4, "red".to_owned())];
    tokio::select! {
        late = ipam.allocate_out_of(&wants, "n/p (c)", "n/p") => assert!(late.is_err()),
        () = looks => {}
    }
}

#[tokio::test(start_paused = true)]
async fn what_went_while_no_agent_ran_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let agent = || Ipam::of_pools((true, false), BTreeMap::new(), "default", notes.clone());
    let first = agent();
    first.restored();
    first.observe(Some(("1", &listed("red", "10.0.0.4/30"))));
    first.wish(&[], true).unwrap();
    let wants = [(Family::V4, "red".to_owned())];
    let pod = first.allocate_out_of(&wants, "n/p (c)", "n/p").await.unwrap();

    let next = agent();
    next.observe(Some(("2", &[])));
    next.restore(pod.ipv4.unwrap().into(), "n/p (c)").unwrap();
    next.restored();
    let wish = next.wish(&[], true).unwrap().unwrap();
    assert_eq!((wish.allocated, wish.urgent), (Some(listed("red", "10.0.0.4/30")), true));
}
