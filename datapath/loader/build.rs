//! Builds the kernel programs and leaves their object where the crate embeds it.
//!
//! The programs are for another target than the rest and need `core` built from source: by
//! rustup's nightly where that has `rust-src`, else by Debian's rustc (packages rustc-web and
//! rust-web-src). They have a target directory of their own below `OUT_DIR`, so that a change of
//! either side rebuilds that side only.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "bpfel-unknown-none";
/// Debug information for the verifier's log, and BTF for the maps.
const RUSTFLAGS: &str = "-Cdebuginfo=2\u{1f}-Clink-arg=--btf";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// What is set for the inner cargo, and not to be removed from it.
const OURS: [&str; 2] = ["RUSTC", "RUSTC_BOOTSTRAP"];
const DEBIAN_CORE: &str = "/usr/lib/rustlib/src/rust/library/core";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let datapath = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("..");
    for watched in ["ebpf/src", "ebpf/Cargo.toml", "ebpf/Cargo.lock", "maps/src"] {
        println!("cargo::rerun-if-changed={}", datapath.join(watched).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PATH");

    if Command::new("bpf-linker").arg("--version").output().is_err() {
        return Err(
            "bpf-linker is not in PATH: install it with `LLVM_PREFIX=/usr/lib/llvm-22 cargo \
                    install bpf-linker --version 0.13.0 --no-default-features --features llvm-22`"
                .into(),
        );
    }
    let target_dir = out.join("ebpf");
    let mut cargo = compiler()?;
    cargo
        .args(["build", "--release", "--locked", "-Zbuild-std=core", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(datapath.join("ebpf"));
    let status = cargo.status().map_err(|error| format!("start {cargo:?}: {error}"))?;
    if !status.success() {
        return Err(format!("building datapath/ebpf failed: {cargo:?}").into());
    }
    let object = target_dir.join(TARGET).join("release/cilia-ebpf");
    std::fs::copy(&object, out.join("cilia-ebpf.o"))
        .map_err(|error| format!("copy {}: {error}", object.display()))?;
    Ok(())
}

/// A cargo that can build `core` for the BPF target, free of what the outer cargo set for itself.
fn compiler() -> Result<Command, Box<dyn Error>> {
    let mut cargo = if nightly_has_source() {
        let mut cargo = Command::new("rustup");
        cargo.args(["run", "nightly", "cargo"]);
        cargo
    } else if Path::new(DEBIAN_RUSTC).exists() && Path::new(DEBIAN_CORE).exists() {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
        cargo
    } else {
        return Err("no compiler for the BPF target: install `rustup toolchain install nightly \
                    --component rust-src`, or Debian's rustc-web and rust-web-src"
            .into());
    };
    let rustup = cargo.get_program() == "rustup";
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let inherited = text.starts_with("CARGO_") && text != "CARGO_HOME"
            || matches!(text, "CARGO" | "RUSTFLAGS" | "RUSTDOC" | "RUSTUP_TOOLCHAIN" | "TARGET")
            || text.starts_with("RUSTC")
            || text.starts_with("DEP_");
        if inherited && (rustup || !OURS.contains(&text)) {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS);
    Ok(cargo)
}

fn nightly_has_source() -> bool {
    let mut sysroot = Command::new("rustup");
    sysroot.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    sysroot.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").output().is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        output.status.success()
            && Path::new(path.trim()).join("lib/rustlib/src/rust/library/core").exists()
    })
}
