//! Records of the datapath's event ring: what can be read can be written, and reads the same.
#![no_main]

use cilia_loader::event::{decode, encode};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(event) = decode(input) {
        assert_eq!(decode(&encode(&event)), Some(event));
    }
});
