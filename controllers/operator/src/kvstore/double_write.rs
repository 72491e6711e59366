//! Says how far the identities of Kubernetes and the kvstore differ, before one is given up.

use std::collections::BTreeSet;

use cilia_crds::CiliumIdentity;
use cilia_kvstore::{Client, keys};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;

use crate::listing;
use crate::wiring::Context;

/// Numbers of one side that are logged.
const SAMPLES: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Reporter {
    crd: Gauge,
    kvstore: Gauge,
    crd_only: Gauge,
    kvstore_only: Gauge,
}

impl Reporter {
    pub(super) fn new(context: &Context, on: bool) -> Self {
        let reporter = Self::default();
        if on {
            for (name, help, gauge) in [
                ("doublewrite_crd_identities", "Identities in Kubernetes", &reporter.crd),
                ("doublewrite_kvstore_identities", "Identities in the kvstore", &reporter.kvstore),
                (
                    "doublewrite_crd_only_identities",
                    "Identities in Kubernetes and not in the kvstore",
                    &reporter.crd_only,
                ),
                (
                    "doublewrite_kvstore_only_identities",
                    "Identities in the kvstore and not in Kubernetes",
                    &reporter.kvstore_only,
                ),
            ] {
                context.metrics.register(name, help, gauge.clone());
            }
        }
        reporter
    }

    pub(super) async fn report(&self, context: &Context, client: &Client) -> anyhow::Result<()> {
        let mut crd = BTreeSet::new();
        let api: Api<CiliumIdentity> = Api::all(context.client.clone());
        listing::metadata(&api, "CiliumIdentities", ListParams::default(), |identity| {
            crd.extend(identity.name_any().parse::<u32>());
        })
        .await?;
        let (listed, _) = client.list(&keys::identity_ids()).await?;
        let number = |key: &[u8]| std::str::from_utf8(key).ok().and_then(keys::parse_identity_id);
        let kvstore: BTreeSet<u32> = listed.iter().filter_map(|kv| number(&kv.key)).collect();
        let crd_only: Vec<u32> = crd.difference(&kvstore).copied().collect();
        let kvstore_only: Vec<u32> = kvstore.difference(&crd).copied().collect();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.crd.set(count(crd.len()));
        self.kvstore.set(count(kvstore.len()));
        self.crd_only.set(count(crd_only.len()));
        self.kvstore_only.set(count(kvstore_only.len()));
        let sample = |numbers: &[u32]| numbers[..numbers.len().min(SAMPLES)].to_vec();
        if !crd_only.is_empty() || !kvstore_only.is_empty() {
            let (crd_only, kvstore_only) = (sample(&crd_only), sample(&kvstore_only));
            tracing::info!(?crd_only, ?kvstore_only, "identities differ");
        }
        Ok(())
    }
}
