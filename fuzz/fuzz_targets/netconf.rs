//! What the container runtime gives the CNI plugin on stdin.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = cilia_cni::check_configuration(input);
});
