//! Decides when a program is built from its Go module, and where it is kept.
//!
//! The folder's name is a hash of all that the build depends on, so a program that is there is
//! right. It gets its name only when complete, and one process builds at a time.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::{KUBERNETES, Tool};
use crate::Error;
use crate::command::{command, output};
use crate::error::io;
use crate::image::hex;
use crate::place::make_dir;
use crate::progress::Progress;

/// The modules, as they were when this program was built.
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");
/// Where an archive of Go is usually unpacked.
const GO_ELSEWHERE: &str = "/usr/local/go/bin/go";

/// The folder for what is costly to make: `CILIA_CACHE`, else `cilia` in the user's cache.
pub(crate) fn cache_root() -> PathBuf {
    let own = env::var_os("CILIA_CACHE").map(PathBuf::from);
    let users = || env::var_os("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("cilia"));
    let home = || env::var_os("HOME").map(|dir| PathBuf::from(dir).join(".cache/cilia"));
    own.or_else(users).or_else(home).unwrap_or_else(|| PathBuf::from("/root/.cache/cilia"))
}

pub(super) async fn build<'a>(
    tools: &[&'a Tool],
    progress: &Progress,
) -> Result<Vec<(&'a Tool, PathBuf)>, Error> {
    if tools.is_empty() {
        return Ok(Vec::new());
    }
    let go = go().await?;
    let root = cache_root().join("tools");
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for &tool in tools {
        let path = root.join(key(tool, &go)?).join(tool.name);
        if !path.is_file() {
            missing.push((tool, path.clone()));
        }
        found.push((tool, path));
    }
    if !missing.is_empty() {
        make_dir(&root)?;
        let lock = lock(root).await?;
        for (count, (tool, path)) in missing.iter().enumerate() {
            if !path.is_file() {
                let of = missing.len();
                progress.say(format!("building {} ({} of {of})", tool.name, count + 1));
                build_one(tool, path, &go).await?;
            }
        }
        drop(lock);
    }
    Ok(found)
}

async fn build_one(tool: &Tool, path: &Path, go: &Go) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(path);
    make_dir(dir)?;
    let unfinished = path.with_extension("unfinished");
    let mut build =
        command(&go.path, if tool.tests { ["test", "-c"].as_slice() } else { &["build"] });
    build.args(["-trimpath", "-ldflags", &ldflags(tool), "-o"]);
    build.arg(&unfinished).arg(tool.package);
    build.current_dir(Path::new(MODULES).join(tool.module)).env("CGO_ENABLED", "0");
    output(&mut build).await?;
    fs::rename(&unfinished, path).map_err(io("rename", &unfinished))
}

/// The folder of a module's source, which Go fetches if it is not there.
pub(super) async fn source(tool: &Tool, module: &str) -> Result<PathBuf, Error> {
    let mut list = command(&go().await?.path, ["list", "-m", "-f", "{{.Dir}}", module]);
    list.current_dir(Path::new(MODULES).join(tool.module));
    Ok(PathBuf::from(output(&mut list).await?.trim()))
}

fn ldflags(tool: &Tool) -> String {
    let version = format!(" -X k8s.io/component-base/version.gitVersion={KUBERNETES}");
    let kubernetes = tool.package.starts_with("k8s.io/kubernetes/");
    format!("-s -w{}", if kubernetes { version.as_str() } else { "" })
}

struct Go {
    path: PathBuf,
    version: String,
}

async fn go() -> Result<Go, Error> {
    for path in ["go", GO_ELSEWHERE] {
        // In a module's folder, so that the version is the one its go.mod asks for.
        let mut ask = command(path, ["env", "GOVERSION"]);
        ask.current_dir(Path::new(MODULES).join("kubernetes"));
        if let Ok(version) = output(&mut ask).await {
            return Ok(Go { path: PathBuf::from(path), version: version.trim().to_owned() });
        }
    }
    Err(Error::Missing {
        what: "Go 1.26 or newer, which builds Kubernetes and etcd".to_owned(),
        remedy: "unpack an archive from https://go.dev/dl/ in /usr/local".to_owned(),
    })
}

fn key(tool: &Tool, go: &Go) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = Path::new(MODULES).join(tool.module).join(file);
        hash.update(fs::read(&path).map_err(io("read", &path))?);
    }
    hash.update(go.version.as_bytes());
    hash.update(ldflags(tool).as_bytes());
    Ok(format!("{}-{}", tool.module, hex(&hash.finalize()[..6])))
}

async fn lock(dir: PathBuf) -> Result<Flock<File>, Error> {
    let task = tokio::task::spawn_blocking(move || {
        let file = File::open(&dir).map_err(io("open", &dir))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| Error::Io {
            operation: "lock",
            path: dir,
            source: errno.into(),
        })
    });
    task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
