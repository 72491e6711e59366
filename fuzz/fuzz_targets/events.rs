//! Records of the datapath's event ring.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = cilia_loader::event::decode(input);
});
