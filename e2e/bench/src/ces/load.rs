//! The load: namespaces, `CiliumEndpoints`, and the storm over them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cilia_crds::CiliumEndpoint;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};
use rand::RngExt;
use tokio::task::JoinSet;

use super::follow::Key;

/// The namespace whose slices are written first.
const PRIORITY: &str = "bench-prio";
/// Requests in flight.
const PARALLEL: usize = 48;

pub(crate) fn is_priority(key: &Key) -> bool {
    key.0 == PRIORITY
}

/// What the storm did.
pub(crate) struct Storm {
    /// Every endpoint that was created, with the moment before the request.
    pub(crate) made: HashMap<Key, Instant>,
    /// The moment after the answer to it.
    pub(crate) answered: HashMap<Key, Instant>,
    pub(crate) deleted: usize,
}

pub(crate) struct Load {
    client: Client,
    namespaces: usize,
}

impl Load {
    pub(crate) fn new(client: Client, namespaces: usize) -> Self {
        Self { client, namespaces }
    }

    fn namespace_of(&self, number: usize) -> String {
        format!("bench-{}", number % self.namespaces)
    }

    pub(crate) async fn namespaces(&self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let mut priority = Namespace::default();
        priority.metadata.name = Some(PRIORITY.to_owned());
        priority.annotations_mut().insert("cilium.io/ces-namespace".into(), "priority".into());
        api.create(&PostParams::default(), &priority).await?;
        for number in 0..self.namespaces {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(self.namespace_of(number));
            api.create(&PostParams::default(), &namespace).await?;
        }
        Ok(())
    }

    /// Creates `count` endpoints, spread over the standard namespaces.
    pub(crate) async fn seed(&self, count: usize) -> Result<()> {
        stream::iter(0..count)
            .map(|number| {
                create(
                    self.client.clone(),
                    self.namespace_of(number),
                    format!("pod-{number}"),
                    number,
                )
            })
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }

    /// `rate` creates and as many deletes a second, and one create a second in the priority
    /// namespace. The victims are seeded endpoints, in their order.
    pub(crate) async fn churn(
        &self,
        seeded: usize,
        rate: usize,
        length: Duration,
    ) -> Result<Storm> {
        let mut storm = Storm { made: HashMap::new(), answered: HashMap::new(), deleted: 0 };
        let (mut creates, mut deletes) = (JoinSet::new(), JoinSet::new());
        let begin = Instant::now();
        let pace = Duration::from_secs(1) / u32::try_from(rate.max(1))?;
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        for tick in 0.. {
            ticks.tick().await;
            if begin.elapsed() >= length {
                break;
            }
            let namespace = self.namespace_of(rand::rng().random_range(0..self.namespaces));
            let number = seeded + tick;
            let mut made = |namespace: String, name: String| {
                let key = (namespace.clone(), name.clone());
                storm.made.insert(key.clone(), Instant::now());
                let create = create(self.client.clone(), namespace, name, number);
                creates.spawn(async move { create.await.map(|()| (key, Instant::now())) });
            };
            made(namespace, format!("new-{number}"));
            if tick % rate == 0 {
                made(PRIORITY.to_owned(), format!("prio-{number}"));
            }
            if tick < seeded {
                storm.deleted += 1;
                let (namespace, name) = (self.namespace_of(tick), format!("pod-{tick}"));
                deletes.spawn(delete(self.client.clone(), namespace, name));
            }
        }
        while let Some(done) = creates.join_next().await {
            storm.answered.extend([done??]);
        }
        while let Some(done) = deletes.join_next().await {
            done??;
        }
        Ok(storm)
    }
}

async fn create(client: Client, namespace: String, name: String, number: usize) -> Result<()> {
    let identity = number % 500;
    let address = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    let endpoint: CiliumEndpoint = serde_json::from_value(serde_json::json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumEndpoint",
        "metadata": { "name": name, "namespace": namespace },
        "status": {
            "id": number % 65535,
            "identity": { "id": 1000 + identity, "labels": [format!("k8s:app=a{identity}")] },
            "networking": {
                "addressing": [{ "ipv4": address }],
                "node": format!("192.168.0.{}", number % 250 + 1),
            },
            "state": "ready",
            "encryption": {},
        },
    }))?;
    let api: Api<CiliumEndpoint> = Api::namespaced(client, &namespace);
    api.create(&PostParams::default(), &endpoint).await.with_context(|| name)?;
    Ok(())
}

async fn delete(client: Client, namespace: String, name: String) -> Result<()> {
    let api: Api<CiliumEndpoint> = Api::namespaced(client, &namespace);
    api.delete(&name, &DeleteParams::default()).await.with_context(|| name)?;
    Ok(())
}
