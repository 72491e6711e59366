//! Holds the metrics of identities, collections and addresses to Cilium's: names, types, labels, buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cilia_identity::Space;
use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::leader::Leadership;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{client_of, eventually};
use tokio_util::sync::CancellationToken;

use crate::clustermesh::Remotes;
use crate::identity_gc::Collections;
use crate::wiring::{Context, Leading, duties};

const QUEUE: &str = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 \
                     60 300 900 1800 3600 +Inf";
const TRIGGER: &str = "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3";

/// Name without `cilium_operator_`, type, labels, the first buckets.
type Contract = (&'static str, &'static str, &'static [&'static str], &'static str);

const CONTRACT: &[Contract] = &[
    // Identities that the operator makes.
    ("cid_controller_work_queue_event_count", "counter", &["resource", "outcome"], ""),
    ("cid_controller_work_queue_latency", "histogram", &["resource", "phase"], QUEUE),
    // Collections.
    ("identity_gc_entries", "gauge", &["status", "identity_type"], ""),
    ("identity_gc_runs", "gauge", &["outcome", "identity_type"], ""),
    ("identity_gc_latency", "gauge", &["outcome", "identity_type"], ""),
    ("endpoint_gc_objects", "counter", &["outcome"], ""),
    ("doublewrite_crd_identities", "gauge", &[], ""),
    ("doublewrite_kvstore_identities", "gauge", &[], ""),
    ("doublewrite_crd_only_identities", "gauge", &[], ""),
    ("doublewrite_kvstore_only_identities", "gauge", &[], ""),
    ("unmanaged_pods", "gauge", &[], ""),
    // Addresses of load balancers, in a cluster without pools: nothing by pool, and nothing of its events.
    ("lbipam_conflicting_pools", "gauge", &[], ""),
    ("lbipam_services_matching", "gauge", &[], ""),
    ("lbipam_services_unsatisfied", "gauge", &[], ""),
    // Addresses of pods. Cilium has more where a cloud gives them: that is not built.
    ("ipam_k8s_sync_queued_total", "counter", &[], ""),
    ("ipam_k8s_sync_folds", "gauge", &[], ""),
    ("ipam_k8s_sync_duration_seconds", "histogram", &[], TRIGGER),
    ("ipam_k8s_sync_latency_seconds", "histogram", &[], TRIGGER),
];

/// Our own; they are there once there is something to tell.
const OWN: [&str; 2] = ["identity_numbers", "identity_label_excess"];

/// How the names of these duties begin.
const SECTIONS: [&str; 7] =
    ["cid_", "identity_", "endpoint_gc_", "doublewrite_", "unmanaged_", "lbipam_", "ipam_"];

/// What a scrape says of these duties.
#[derive(Default)]
struct Said {
    types: BTreeMap<String, String>,
    /// Of a series of the metric.
    labels: BTreeMap<String, Vec<String>>,
    /// Of all series of the metric, one after the other.
    buckets: BTreeMap<String, Vec<String>>,
}

fn said(text: &str) -> Said {
    let mut said = Said::default();
    let own = |name: &str| {
        let name = name.strip_prefix("cilium_operator_")?;
        SECTIONS.iter().any(|start| name.starts_with(start)).then(|| name.to_owned())
    };
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a name and a type");
            said.types.extend(own(name).map(|name| (name, kind.to_owned())));
        }
        let Some((series, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let (name, pairs) = series.split_once('{').unwrap_or((series, ""));
        let Some(name) = own(name) else { continue };
        let pairs = pairs.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
        let (bounds, labels): (Vec<_>, Vec<_>) = pairs.partition(|(label, _)| *label == "le");
        let labels = labels.into_iter().map(|(label, _)| label.to_owned()).collect();
        if let Some(name) = name.strip_suffix("_bucket") {
            let bounds = bounds.into_iter().map(|(_, bound)| bound.trim_matches('"').to_owned());
            said.buckets.entry(name.to_owned()).or_default().extend(bounds);
            said.labels.insert(name.to_owned(), labels);
        } else {
            said.labels.insert(name, labels);
        }
    }
    said
}

#[tokio::test]
async fn names_types_labels_and_buckets_are_those_of_the_contract() {
    let arguments = [
        "--identity-allocation-mode=doublewrite-readcrd",
        "--identity-management-mode=operator",
        "--kvstore=etcd",
        "--kvstore-opt=etcd.address=http://127.0.0.1:1",
        "--cluster-pool-ipv4-cidr=10.0.0.0/8",
        "--enable-ipv6=false",
    ];
    let config = Config::load(crate::config::flags(), arguments.map(String::from), []);
    let (metrics, stop) = (Metrics::new("cilium_operator"), CancellationToken::new());
    let (_begin, leading) = Leading::not_yet();
    let client = client_of(([127, 0, 0, 1], 1).into(), "test");
    let context = Context {
        events: Recorder::new(client.clone(), "test"),
        bulk: client.clone(),
        slices: client.clone(),
        client,
        leadership: Leadership::until(tokio::time::Instant::now() + Duration::from_hours(1)),
        space: Space::new(0, 255).expect("allowed"),
        config: Arc::new(config.expect("valid settings")),
        collections: Collections::register(&metrics),
        remotes: Remotes::default(),
        workqueues: Workqueues::register(&metrics),
        metrics: metrics.clone(),
        leading,
        stop: stop.clone(),
    };
    // These have no series before the first run.
    let collection = context.collections.of("crd", true);
    collection.left(1, 0);
    collection.ran(true, Duration::ZERO);
    crate::lb_ipam::register(&context.config, &metrics);
    // Nobody answers them, so they do nothing but begin.
    for duty in duties() {
        tokio::spawn((duty.run)(context.clone()));
    }
    let want: BTreeSet<(&str, &str)> =
        CONTRACT.iter().map(|(name, kind, ..)| (*name, *kind)).collect();
    eventually(|| async {
        let said = said(&metrics.render());
        let has: BTreeSet<(&str, &str)> =
            said.types.iter().map(|(name, kind)| (&**name, &**kind)).collect();
        let missing: Vec<_> = want.difference(&has).collect();
        let unknown = has.difference(&want).filter(|(name, _)| !OWN.contains(name));
        let unknown: Vec<_> = unknown.collect();
        if missing.is_empty() && unknown.is_empty() {
            Ok(())
        } else {
            Err(format!("missing: {missing:?}; not in the contract: {unknown:?}"))
        }
    })
    .await;
    let said = said(&metrics.render());
    for (name, _, wanted, first) in CONTRACT {
        let has = said.labels.get(*name).unwrap_or_else(|| panic!("{name} has no series"));
        assert_eq!(has, wanted, "{name}");
        let has = said.buckets.get(*name).map(|bounds| bounds.join(" ")).unwrap_or_default();
        assert!(has.starts_with(first) && has.is_empty() == first.is_empty(), "{name}: {has}");
    }
    stop.cancel();
}
