//! `kvstore-opt`, one option a line, and the file of `etcd.config`.
#![no_main]

use cilia_kvstore::{Endpoints, Options};

libfuzzer_sys::fuzz_target!(|input: &str| {
    if let Ok(endpoints) = Endpoints::parse(input) {
        assert!(endpoints.endpoints.iter().all(|url| url.starts_with("http")), "{endpoints:?}");
    }
    let option = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    if let Ok(options) = Options::parse(&input.lines().filter_map(option).collect()) {
        assert!(options.qps > 0.0 && options.max_inflight > 0, "{options:?}");
    }
});
