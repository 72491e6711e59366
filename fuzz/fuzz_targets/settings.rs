//! Command lines, one argument a line.
#![no_main]

use cilia_runtime::config::{Config, Flags};

libfuzzer_sys::fuzz_target!(|input: &str| {
    // Files that flags name are not the fuzzer's to open.
    let arguments = input.lines().filter(|line| !line.contains("config")).map(str::to_owned);
    let _ = Config::load(Flags::agent(), arguments, []);
});
