//! Policies as the API server hands them over.
#![no_main]

use cilia_policy::Config;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let config = Config::default();
    if let Ok(policy) = serde_json::from_slice(input) {
        let _ = cilia_policy::cilium(&policy, &config);
    }
    if let Ok(policy) = serde_json::from_slice(input) {
        let _ = cilia_policy::clusterwide(&policy, &config);
    }
    if let Ok(policy) = serde_json::from_slice(input) {
        let _ = cilia_policy::kubernetes(&policy, &config);
    }
    if let Ok(policy) = serde_json::from_slice(input) {
        let _ = cilia_policy::cluster(&policy, &config);
    }
});
