//! Holds docs/scenarios.md to the tests that it names: each is there, under that name.

use std::path::Path;

use regex::Regex;

const PAGE: &str = include_str!("../../../docs/scenarios.md");

#[test]
fn every_test_that_the_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = r"\b(op|id|ip|kv|rt|controllers)/([\w/]+\.rs)(?:::(\w+|\{[^}]+\}))?";
    let named = Regex::new(named).expect("a regular expression");
    let mut count = 0;
    for one in named.captures_iter(PAGE) {
        let folder = match &one[1] {
            "op" => "controllers/operator/src",
            "id" => "controllers/identity/src",
            "ip" => "controllers/ipam/src",
            "kv" => "controllers/kvstore",
            "rt" => "controllers/runtime/src",
            other => other,
        };
        let file = root.join(folder).join(&one[2]);
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tests = one.get(3).map_or("", |tests| tests.as_str()).trim_matches(['{', '}']);
        for test in tests.split(", ").filter(|test| !test.is_empty()) {
            assert!(text.contains(&format!("fn {test}(")), "{}: no {test}", file.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}
