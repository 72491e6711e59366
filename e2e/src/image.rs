//! Decides how a container image is made from local files, without an engine.
//!
//! The result is an archive that `ctr images import` and `docker load` take. The same files give
//! the same bytes, and nothing is written while an archive of these files is there.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self as stdio, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::Error;
use crate::error::io;
use crate::place::make_dir;
use crate::tools::cache_root;

pub mod catalog;
mod libraries;

/// How many digits of a hash tell one archive from another.
const KEY: usize = 12;
/// For how long a file of the cache may be in use by whoever asked for it.
const IN_USE: Duration = Duration::from_hours(1);

/// An image to be made.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// The name of its archive.
    pub name: &'static str,
    /// Its names in a container runtime, with tags.
    pub tags: Vec<String>,
    /// What runs.
    pub entrypoint: Vec<String>,
    /// Its files.
    pub files: Vec<Entry>,
}

/// A file of an image.
#[derive(Debug, Clone)]
pub struct Entry {
    path: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Copy(PathBuf),
    Link(String),
    Folder(u32),
}

impl Image {
    /// Adds a copy of the file at `source`, executable if that is.
    #[must_use]
    pub fn copy(mut self, source: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        self.files.push(Entry { path: path.into(), content: Content::Copy(source.into()) });
        self
    }

    /// Adds a symbolic link to `target`.
    #[must_use]
    pub fn link(mut self, path: impl Into<String>, target: impl Into<String>) -> Self {
        self.files.push(Entry { path: path.into(), content: Content::Link(target.into()) });
        self
    }

    /// Adds an empty folder.
    #[must_use]
    pub fn folder(mut self, path: impl Into<String>, mode: u32) -> Self {
        self.files.push(Entry { path: path.into(), content: Content::Folder(mode) });
        self
    }

    /// The image's archive in the cache, made if it is not there.
    pub fn archive(&self) -> Result<PathBuf, Error> {
        let dir = cache_root().join("images");
        make_dir(&dir)?;
        let path = dir.join(format!("{}-{}.tar", self.name, self.key()?));
        if !path.is_file() {
            let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
            self.write(&unfinished)?;
            self.forget_older(&dir)?;
            fs::rename(&unfinished, &path).map_err(io("rename", &unfinished))?;
        }
        Ok(path)
    }

    /// Writes the image's archive to `path`.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let layer_path = path.with_extension("layer");
        let layer = self.write_layer(&layer_path).map_err(io("write", &layer_path))?;
        let written = self.write_archive(path, &layer_path, &layer);
        fs::remove_file(&layer_path).map_err(io("remove", &layer_path))?;
        written.map_err(io("write", path))
    }

    fn write_layer(&self, path: &Path) -> stdio::Result<String> {
        let mut hashing =
            Hashing { inner: BufWriter::new(File::create(path)?), hash: Sha256::new() };
        let mut tar = Builder::new(&mut hashing);
        for entry in self.with_parents() {
            let mut header = Header::new_gnu();
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            match &entry.content {
                Content::Copy(source) => {
                    let file = File::open(source)?;
                    let meta = file.metadata()?;
                    header.set_size(meta.len());
                    let executable = meta.permissions().mode() & 0o111 != 0;
                    header.set_mode(if executable { 0o755 } else { 0o644 });
                    tar.append_data(&mut header, &entry.path, file.take(meta.len()))?;
                }
                Content::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_size(0);
                    header.set_mode(0o777);
                    tar.append_link(&mut header, &entry.path, target)?;
                }
                Content::Folder(mode) => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_size(0);
                    header.set_mode(*mode);
                    tar.append_data(&mut header, &entry.path, stdio::empty())?;
                }
            }
        }
        tar.finish()?;
        drop(tar);
        hashing.flush()?;
        Ok(hex(&hashing.hash.finalize()))
    }

    fn write_archive(&self, path: &Path, layer_path: &Path, layer: &str) -> stdio::Result<()> {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        })
        .to_string();
        let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
        let layer_name = format!("{layer}.tar");
        let manifest = json!([{
            "Config": config_name, "RepoTags": self.tags, "Layers": [layer_name],
        }])
        .to_string();
        let mut tar = Builder::new(BufWriter::new(File::create(path)?));
        let mut append = |name: &str, size: u64, content: &mut dyn Read| {
            let mut header = Header::new_gnu();
            header.set_mtime(0);
            header.set_mode(0o644);
            header.set_size(size);
            tar.append_data(&mut header, name, content)
        };
        append(&config_name, config.len() as u64, &mut config.as_bytes())?;
        let mut file = File::open(layer_path)?;
        append(&layer_name, file.metadata()?.len(), &mut file)?;
        append("manifest.json", manifest.len() as u64, &mut manifest.as_bytes())?;
        tar.into_inner()?.flush()
    }

    /// All entries in order of their paths, with the folders they need.
    fn with_parents(&self) -> Vec<Entry> {
        let mut all = std::collections::BTreeMap::new();
        for entry in &self.files {
            let path = entry.path.trim_start_matches('/').to_owned();
            let mut parent = Path::new(&path).parent();
            while let Some(dir) = parent.filter(|dir| !dir.as_os_str().is_empty()) {
                all.entry(dir.display().to_string()).or_insert(Content::Folder(0o755));
                parent = dir.parent();
            }
            all.insert(path, entry.content.clone());
        }
        all.into_iter().map(|(path, content)| Entry { path, content }).collect()
    }

    /// A hash of everything that decides the archive's bytes, without reading the files.
    fn key(&self) -> Result<String, Error> {
        let mut hash = Sha256::new();
        hash.update(format!("{:?}{:?}", self.tags, self.entrypoint));
        for entry in self.with_parents() {
            hash.update(format!("{entry:?}"));
            if let Content::Copy(source) = &entry.content {
                let meta = fs::metadata(source).map_err(io("read", source))?;
                let times = (meta.mtime(), meta.mtime_nsec());
                hash.update(format!("{}{times:?}{}", meta.len(), meta.mode()));
            }
        }
        Ok(hex(&hash.finalize())[..KEY].to_owned())
    }

    fn forget_older(&self, dir: &Path) -> Result<(), Error> {
        let prefix = format!("{}-", self.name);
        for entry in fs::read_dir(dir).map_err(io("read", dir))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours =
                name.strip_prefix(&prefix).is_some_and(|rest| rest.len() == KEY + ".tar".len());
            if ours && stale(&entry) {
                fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
            }
        }
        Ok(())
    }
}

struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> stdio::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> stdio::Result<()> {
        self.inner.flush()
    }
}

/// Whether a file of the cache can go: another build's user has long read it.
fn stale(entry: &fs::DirEntry) -> bool {
    let modified = entry.metadata().and_then(|meta| meta.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > IN_USE))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::Image;

    #[test]
    fn is_deterministic_and_complete() {
        let dir = tempfile::tempdir().expect("a folder");
        let source = dir.path().join("source");
        std::fs::write(&source, "content").expect("write");
        let image = Image { name: "test", tags: vec!["t:1".to_owned()], ..Image::default() }
            .copy(&source, "/usr/bin/tool")
            .link("/bin", "usr/bin")
            .folder("/tmp", 0o1777);
        let archives = ["a.tar", "b.tar"].map(|name| dir.path().join(name));
        for archive in &archives {
            image.write(archive).expect("an archive");
        }
        let [a, b] = archives.map(|path| std::fs::read(path).expect("it was written"));
        assert_eq!(a, b);
        let paths: Vec<_> = image.with_parents().into_iter().map(|entry| entry.path).collect();
        assert_eq!(paths, ["bin", "tmp", "usr", "usr/bin", "usr/bin/tool"]);
    }
}
