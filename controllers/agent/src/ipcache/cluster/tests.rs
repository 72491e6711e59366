use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::testing::eventually_for;
use futures::{FutureExt, StreamExt};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Cache, Origin, cluster};
use crate::endpoint::testing::api_server;

const ENDPOINTS: u8 = 30;
const IN_A_SLICE: usize = 10;

fn address(number: u8) -> String {
    format!("10.0.0.{number}")
}

async fn make_endpoints(client: &Client) {
    let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "default");
    for number in 0..ENDPOINTS {
        let object = json!({
            "metadata": { "name": format!("pod-{number}") },
            "status": {
                "identity": { "id": 1000 },
                "networking": { "addressing": [{ "ipv4": address(number) }], "node": "192.0.2.1" },
            },
        });
        let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
        api.create(&PostParams::default(), &object).await.expect("create an endpoint");
    }
}

async fn make_slice(client: &Client, numbers: &[u8]) {
    let entries = numbers.iter().map(|number| {
        json!({
            "name": format!("pod-{number}"), "id": 1000, "encryption": {},
            "networking": { "addressing": [{ "ipv4": address(*number) }], "node": "192.0.2.1" },
        })
    });
    let object = json!({
        "metadata": { "name": format!("ces-{}", numbers[0]) },
        "namespace": "default", "endpoints": entries.collect::<Vec<_>>(),
    });
    let object: CiliumEndpointSlice = serde_json::from_value(object).expect("a slice");
    let api: Api<CiliumEndpointSlice> = Api::all(client.clone());
    api.create(&PostParams::default(), &object).await.expect("create a slice");
}

/// An agent with slices switched on.
struct Agent {
    cache: Cache,
    /// Addresses that it knew and forgot.
    forgotten: Arc<Mutex<BTreeSet<IpAddr>>>,
    following: JoinHandle<()>,
}

impl Agent {
    fn start(client: Client) -> Self {
        let (cache, forgotten) = (Cache::default(), Arc::<Mutex<BTreeSet<IpAddr>>>::default());
        let (follower, gone) = (cache.clone(), Arc::clone(&forgotten));
        let following = tokio::spawn(async move {
            let mut cluster = cluster(follower.clone(), client, true);
            while let Some(news) = cluster.next().await {
                let Some((name, said)) = news else {
                    follower.0.listed.send_replace(true);
                    continue;
                };
                follower.table(|table| {
                    let touched = table.set(&Origin::Cluster(name), said);
                    let lost = touched.prefixes.iter().filter(|prefix| table.get(prefix).is_none());
                    gone.lock().expect("no panic").extend(lost.map(|(address, _)| *address));
                });
            }
        });
        Self { cache, forgotten, following }
    }

    fn known(&self) -> usize {
        self.cache.entries().len()
    }

    async fn until_endpoints_are_read(&self, read: bool) {
        eventually_for(Duration::from_secs(30), || async {
            let endpoints = self.cache.table(|table| table.sources(super::is_endpoint)).len();
            if (endpoints > 0) == read { Ok(()) } else { Err(format!("{endpoints} are read")) }
        })
        .await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.following.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn looks_that_were_left_out_are_not_made_up_for() {
    let mut looks = super::looks();
    looks.tick().await;
    tokio::time::advance(Duration::from_hours(24)).await;
    looks.tick().await;
    assert!(looks.tick().now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_is_unknown_while_slices_come_or_go() {
    let server = api_server().await;
    let client = server.client();
    make_endpoints(&client).await;
    let all = usize::from(ENDPOINTS);

    // Switched on before the operator has written anything.
    let early = Agent::start(client.clone());
    early.cache.wait_listed().await;
    assert_eq!(early.known(), all, "endpoints are read where there are no slices");

    // An agent that starts while the operator is at it.
    let numbers: Vec<u8> = (0..ENDPOINTS).collect();
    let (first, others) = numbers.split_at(IN_A_SLICE);
    make_slice(&client, first).await;
    let late = Agent::start(client.clone());
    late.cache.wait_listed().await;
    assert_eq!(late.known(), all, "endpoints are read where slices say too little");

    for numbers in others.chunks(IN_A_SLICE) {
        make_slice(&client, numbers).await;
    }
    for agent in [&early, &late] {
        agent.until_endpoints_are_read(false).await;
        assert_eq!(agent.known(), all, "slices say it all");
    }

    // Switched off: the operator deletes all slices.
    let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
    let (deletion, all_slices) = (DeleteParams::default(), ListParams::default());
    slices.delete_collection(&deletion, &all_slices).await.expect("delete the slices");
    for agent in [&early, &late] {
        agent.until_endpoints_are_read(true).await;
        assert_eq!(agent.known(), all, "endpoints are read again");
    }
    // What goes now goes.
    let endpoints: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "default");
    endpoints.delete("pod-7", &DeleteParams::default()).await.expect("delete an endpoint");
    let gone = BTreeSet::from([address(7).parse().expect("an address")]);
    for agent in [&early, &late] {
        eventually_for(Duration::from_secs(20), || async {
            let forgotten = agent.forgotten.lock().expect("no panic").clone();
            if forgotten == gone { Ok(()) } else { Err(forgotten) }
        })
        .await;
    }
}
