//! Templates of `-o jsonpath`, read and applied.
#![no_main]

use cilia_cli::jsonpath::Template;

libfuzzer_sys::fuzz_target!(|input: &str| {
    if let Ok(template) = Template::parse(input) {
        let items = serde_json::json!([{"id": 1, "n": "a"}, {"id": 2, "list": [3, [4]]}]);
        let _ = template.show(&serde_json::json!({"items": items, "odd.name": null}));
    }
});
