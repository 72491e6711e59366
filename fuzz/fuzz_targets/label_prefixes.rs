//! The file of `label-prefix-file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| {
    let _ = cilia_identity::Filter::new::<&str>(&[], Some(input));
});
