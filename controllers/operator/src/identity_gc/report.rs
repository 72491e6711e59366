//! Says how the collection goes, and which labels take up the range: as metrics, and as events on namespaces.

use std::sync::Arc;
use std::time::Duration;

use cilia_crds::Labels;
use cilia_identity::{Advice, advise};
use cilia_runtime::events::Recorder;
use cilia_runtime::metrics::Metrics;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tracing::warn;

use super::counts::{Collection, Collections};
use super::pace::Load;

/// Label keys that are shown.
const SHOWN: usize = 10;

pub(super) struct Report {
    collection: Collection,
    numbers: Family<[(&'static str, &'static str); 1], Gauge>,
    excess: Family<Vec<(String, String)>, Gauge>,
    events: Recorder,
}

impl Report {
    pub(super) fn new(metrics: &Metrics, collections: &Collections, events: Recorder) -> Self {
        let (numbers, excess) = (Family::default(), Family::default());
        let help = "Identity numbers of this cluster";
        metrics.register("identity_numbers", help, Family::clone(&numbers));
        let help =
            "Identities that there would not be without the label, of the labels that make most";
        metrics.register("identity_label_excess", help, Family::clone(&excess));
        Self { collection: collections.of("crd", true), numbers, excess, events }
    }

    /// A run is over; `total` identities are left.
    pub(super) fn ran(&self, total: usize, deleted: usize, well: bool, took: Duration) {
        self.collection.left(total, deleted);
        self.collection.ran(well, took);
    }

    /// Shows what labels cost; whoever makes most of a range that fills is told.
    pub(super) async fn advise(&self, load: Load, identities: Vec<Arc<Labels>>) {
        let taken = i64::from(load.taken);
        self.numbers.get_or_create(&[("state", "taken")]).set(taken);
        self.numbers.get_or_create(&[("state", "free")]).set((i64::from(load.size) - taken).max(0));
        // Nothing else runs on this thread meanwhile: tens of thousands of sets take their time.
        let compute = move || advise(identities.iter().map(|labels| &**labels));
        let advice = tokio::task::spawn_blocking(compute).await.unwrap_or_default();
        self.excess.clear();
        let worth = advice.savings.iter().take(SHOWN).filter(|_| advice.first().is_some());
        for saving in worth {
            for key in &saving.keys {
                let excess = gauge(advice.identities - saving.without);
                self.excess.get_or_create(&vec![("label".to_owned(), key.to_string())]).set(excess);
            }
        }
        if load.is_filling() {
            self.tell(load, &advice);
        }
    }

    fn tell(&self, load: Load, advice: &Advice) {
        let Load { taken, size, .. } = load;
        let note = format!("{taken} of {size} identity numbers of the cluster are taken; {advice}");
        warn!("{note}");
        let Some(saving) = advice.first() else { return };
        let namespace = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(saving.namespace.clone()),
            ..ObjectReference::default()
        };
        self.events.about(namespace, EventType::Warning, "IdentitiesMultiply", note);
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
