//! Decides which images there are and what is in them.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Image, libraries, stale};
use crate::command::{command, output};
use crate::error::io;
use crate::node::PAUSE_IMAGE;
use crate::place::{make_dir, write};
use crate::tools::cache_root;
use crate::{Error, Tools};

/// agnhost, Kubernetes' program for tests.
pub const AGNHOST_IMAGE: &str = "localhost/cilia/agnhost:2.63.0";
/// The cluster's DNS server.
pub const COREDNS_IMAGE: &str = "localhost/cilia/coredns:1";
/// The agent, with the CNI plugin and the command line.
pub const AGENT_IMAGE: &str = "localhost/cilia/agent:dev";
/// The operator.
pub const OPERATOR_IMAGE: &str = "localhost/cilia/operator:dev";

/// agnhost where SCTP may be missing.
const WITHOUT_SCTP: &str = r#"#!/bin/sh
[ $# -gt 0 ] || set -- pause
if [ ! -e /proc/net/sctp ]; then
  for name in $(env | sed -n 's/^\(SERVE_SCTP_PORT_[A-Za-z0-9_]*\)=.*/\1/p'); do unset "$name"; done
fi
exec /agnhost.real "$@"
"#;

/// Waits for ever: a pod's sandbox needs a process, not a program.
const PAUSE: &str = "fn main() {\n    loop {\n        std::thread::park();\n    }\n}\n";

/// What every cluster needs.
pub async fn base(tools: &Tools) -> Result<Vec<Image>, Error> {
    Ok(vec![pause().await?, agnhost(tools).await?, coredns(tools)])
}

/// The images of Cilia, from the programs in `target` (`target/debug` or `target/release`).
pub async fn cilia(target: &Path) -> Result<Vec<Image>, Error> {
    Ok(vec![agent(target).await?, operator(target).await?])
}

async fn pause() -> Result<Image, Error> {
    let dir = cache_root().join("pause");
    make_dir(&dir)?;
    let program = dir.join("pause");
    let source = dir.join("pause.rs");
    if !program.is_file() || std::fs::read_to_string(&source).ok().as_deref() != Some(PAUSE) {
        write(&source, PAUSE)?;
        let flags = ["-O", "-Ctarget-feature=+crt-static", "-Cpanic=abort", "-Cstrip=symbols"];
        let mut compile = command("rustc", flags);
        output(compile.arg("-o").arg(&program).arg(&source)).await?;
    }
    Ok(named("pause", &[PAUSE_IMAGE], "/pause").copy(program, "/pause"))
}

/// agnhost, with a shell and the usual tools beside it.
async fn agnhost(tools: &Tools) -> Result<Image, Error> {
    let image = named("agnhost", &[AGNHOST_IMAGE], "/agnhost");
    with_shell(image.copy(tools.path("agnhost"), "/agnhost")).await
}

/// agnhost under the names by which a suite asks for it.
///
/// Its `porter` ends where it is to serve SCTP and the kernel has none, and the suite's pods with
/// it: there it isn't asked for SCTP, and what asks it by SCTP fails alone.
pub async fn agnhost_for(tools: &Tools, tags: Vec<String>) -> Result<Image, Error> {
    let dir = cache_root().join("agnhost");
    make_dir(&dir)?;
    let wrapper = dir.join("agnhost");
    write(&wrapper, WITHOUT_SCTP)?;
    std::fs::set_permissions(&wrapper, Permissions::from_mode(0o755))
        .map_err(io("make executable", &wrapper))?;
    let bash = which("bash")?;
    let mut image = named("agnhost-suite", &[], "/agnhost")
        .copy(tools.path("agnhost"), "/agnhost.real")
        .copy(wrapper, "/agnhost");
    image.tags = tags;
    image = with_libraries(image, &bash).await?.copy(bash, "/bin/bash");
    with_shell(image).await
}

async fn with_shell(image: Image) -> Result<Image, Error> {
    let mut image = image.copy(which("busybox")?, "/bin/busybox").folder("/tmp", 0o1777);
    let applets = output(&mut command("busybox", ["--list"])).await?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        image = image.link(format!("/bin/{applet}"), "busybox");
    }
    // What runs in it by default waits, as the original does.
    image.entrypoint = vec!["/agnhost".to_owned()];
    Ok(image)
}

fn coredns(tools: &Tools) -> Image {
    named("coredns", &[COREDNS_IMAGE], "/coredns")
        .copy(tools.path("coredns"), "/coredns")
        .folder("/tmp", 0o1777)
}

async fn agent(target: &Path) -> Result<Image, Error> {
    let mut image = named("agent", &[AGENT_IMAGE], "/usr/bin/cilia-agent").folder("/tmp", 0o1777);
    for program in ["cilia-agent", "cilia-cni", "cilia"] {
        let source = built(target, program).await?;
        image = with_libraries(image, &source).await?.copy(source, format!("/usr/bin/{program}"));
    }
    let nft = which("nft")?;
    image = with_libraries(image, &nft).await?.copy(nft, "/usr/sbin/nft");
    image = image.copy(which("busybox")?, "/bin/busybox");
    for applet in ["sh", "cat", "ls", "cp", "mv", "rm", "mkdir", "ip", "sleep", "grep", "mount"] {
        image = image.link(format!("/bin/{applet}"), "busybox");
    }
    // The plugin is installed on the node from here, and names Cilium's tools are called by.
    Ok(image
        .link("/opt/cni/bin/cilia-cni", "/usr/bin/cilia-cni")
        .link("/usr/bin/cilium-dbg", "cilia"))
}

async fn operator(target: &Path) -> Result<Image, Error> {
    let source = built(target, "cilia-operator").await?;
    let image = named("operator", &[OPERATOR_IMAGE], "/usr/bin/cilia-operator");
    let image = with_libraries(image.folder("/tmp", 0o1777), &source).await?;
    Ok(image.copy(source, "/usr/bin/cilia-operator"))
}

fn named(name: &'static str, tags: &[&str], entrypoint: &str) -> Image {
    Image {
        name,
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        entrypoint: vec![entrypoint.to_owned()],
        files: Vec::new(),
    }
}

async fn with_libraries(mut image: Image, program: &Path) -> Result<Image, Error> {
    for library in libraries::of(program).await? {
        let path = library.display().to_string();
        image = image.copy(library, path);
    }
    Ok(image)
}

/// A program of ours without its debugger's tables: they are most of it, and nodes are many.
async fn built(target: &Path, program: &str) -> Result<PathBuf, Error> {
    let path = target.join(program);
    if !path.is_file() {
        return Err(Error::Missing {
            what: path.display().to_string(),
            remedy: "build it with `cargo build` (`make images` does)".to_owned(),
        });
    }
    let dir = cache_root().join("stripped");
    make_dir(&dir)?;
    let built = std::fs::metadata(&path).map_err(io("read", &path))?;
    let key = format!("{program}-{}-{}-{}", built.len(), built.mtime(), built.mtime_nsec());
    let stripped = dir.join(key);
    if !stripped.is_file() {
        for old in std::fs::read_dir(&dir).map_err(io("read", &dir))?.flatten() {
            let name = old.file_name().to_string_lossy().into_owned();
            // What follows the name is digits: `cilia` is not the beginning of `cilia-agent`.
            let rest = name.strip_prefix(program).and_then(|rest| rest.strip_prefix('-'));
            let ours = rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if ours && stale(&old) {
                std::fs::remove_file(old.path()).map_err(io("remove", &old.path()))?;
            }
        }
        let unfinished = stripped.with_extension(std::process::id().to_string());
        let mut strip = command("strip", ["--strip-debug", "-o"]);
        output(strip.arg(&unfinished).arg(&path)).await?;
        std::fs::rename(&unfinished, &stripped).map_err(io("rename", &unfinished))?;
    }
    Ok(stripped)
}

fn which(program: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file());
    found.ok_or_else(|| Error::Missing {
        what: program.to_owned(),
        remedy: "install the package that has it".to_owned(),
    })
}
