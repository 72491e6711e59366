//! Packs the relocations, a megabyte otherwise: the loader reads them once, and the pages stay.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
