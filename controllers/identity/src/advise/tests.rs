use std::collections::BTreeSet;

use cilia_crds::Labels;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::advise;
use crate::Filter;

fn set(labels: &[(&str, &str)]) -> Labels {
    let mut set = Labels::new();
    for (key, value) in labels {
        set.insert("k8s", key, value);
    }
    set
}

#[test]
fn a_jobs_two_names_are_left_out_together() {
    let mut sets = Vec::new();
    for run in 0..100 {
        let run = run.to_string();
        sets.push(set(&[
            ("io.kubernetes.pod.namespace", "batch"),
            ("app", "report"),
            ("job-name", &run),
            ("batch.kubernetes.io/job-name", &run),
        ]));
    }
    for app in ["a", "b"] {
        sets.push(set(&[("io.kubernetes.pod.namespace", "shop"), ("app", app)]));
    }
    sets.push(sets[0].clone());
    let advice = advise(sets.iter());
    assert_eq!(advice.identities, 102, "the same set twice is one identity");
    let first = advice.first().expect("worth it");
    assert_eq!((first.values, first.without, first.namespace.as_str()), (100, 3, "batch"));
    assert_eq!(first.setting(), r"k8s:!batch\.kubernetes\.io/job-name$ k8s:!job-name$");
    assert_eq!(advice.together, None, "the first is all that helps");
    let text = advice.to_string();
    for part in
        ["job-name", "100 values", "namespace batch", "3 of the 102", first.setting().as_str()]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The namespace is never given up, and what is alike everywhere costs nothing.
    assert!(advice.savings.iter().all(|saving| !saving.setting().contains("namespace")));
    assert_eq!(advise([].iter()).savings, []);
    assert!(advise(sets.iter().skip(99)).first().is_none(), "few identities are no trouble");
}

#[test]
fn what_helps_only_together_is_found_step_by_step() {
    // A commit per build, and builds of many branches.
    let sets: Vec<Labels> = (0..400)
        .map(|n| {
            let (commit, branch) = (n.to_string(), (n % 40).to_string());
            set(&[("app", "ci"), ("commit", &commit), ("branch", &branch)])
        })
        .collect();
    let advice = advise(sets.iter());
    assert_eq!(advice.first().map(|saving| saving.without), Some(40));
    let together = advice.together.expect("both");
    assert_eq!((together.without, together.keys.len()), (1, 2));
}

const KEYS: [&str; 6] =
    ["app", "app.kubernetes.io/name", "apps", "tier", "job.name", "io.kubernetes.pod.namespace"];

/// What the advice says is what the filter then does.
#[test]
fn the_setting_does_what_was_promised() {
    let seed: u64 = std::env::var("CILIA_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for seed in seed..seed + 200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let sets: Vec<Labels> = (0..rng.random_range(1..60))
            .map(|_| {
                let mut labels = Labels::new();
                for key in KEYS {
                    if rng.random_bool(0.7) {
                        let value = rng.random_range(0..key.len()).to_string();
                        labels.insert("k8s", key, &value);
                    }
                }
                labels
            })
            .collect();
        let advice = advise(sets.iter());
        let distinct: BTreeSet<&Labels> = sets.iter().collect();
        assert_eq!(advice.identities, distinct.len(), "seed {seed}");
        for saving in advice.savings.iter().chain(&advice.together) {
            let filter = Filter::new(&[saving.setting()], None).expect("a valid setting");
            let left: BTreeSet<Labels> = sets.iter().map(|labels| filter.apply(labels)).collect();
            let setting = saving.setting();
            assert_eq!(left.len(), saving.without, "seed {seed}: {setting}");
        }
    }
}
