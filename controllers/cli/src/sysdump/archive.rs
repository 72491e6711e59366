//! Writes the dump: a compressed tar file that nobody but its owner may read.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

/// A dump that is being written.
pub(super) struct Archive {
    builder: Builder<GzEncoder<BufWriter<File>>>,
    path: PathBuf,
    /// The folder in which its files are.
    folder: String,
    time: u64,
    files: usize,
}

impl Archive {
    /// A new file; one that exists is not overwritten.
    pub(super) fn create(path: &Path, folder: &str, time: i64) -> anyhow::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("make {}", path.display()))?;
        let encoder = GzEncoder::new(BufWriter::new(file), Compression::fast());
        let time = u64::try_from(time).unwrap_or(0);
        Ok(Self {
            builder: Builder::new(encoder),
            path: path.to_owned(),
            folder: folder.to_owned(),
            time,
            files: 0,
        })
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &str, content: &[u8]) -> anyhow::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let path = format!("{}/{}", self.folder, path.trim_start_matches('/').replace("..", "_"));
        let added = self.builder.append_data(&mut header, &path, content);
        added.with_context(|| format!("write {path} to {}", self.path.display()))?;
        self.files += 1;
        Ok(())
    }

    /// Closes it; returns how many files are in it.
    pub(super) fn finish(self) -> anyhow::Result<usize> {
        let path = self.path;
        let close = || -> std::io::Result<()> {
            let encoder = self.builder.into_inner()?;
            encoder.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
        };
        close().with_context(|| format!("write {}", path.display()))?;
        Ok(self.files)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::Archive;

    pub(crate) fn read(path: &Path) -> BTreeMap<String, Vec<u8>> {
        let file = std::fs::File::open(path).expect("the archive");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let entries = archive.entries().expect("entries").map(|entry| {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("its content");
            (path, content)
        });
        entries.collect()
    }

    #[test]
    fn nobody_else_may_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.tar.gz");
        let mut archive = Archive::create(&path, "x", 7).expect("an archive");
        archive.add("../a", b"1").expect("added");
        archive.add(&"long/".repeat(60), b"2").expect("added");
        assert_eq!(archive.finish().expect("closed"), 2);
        let mode = std::fs::metadata(&path).expect("it").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read(&path)["x/_/a"], b"1");
        assert!(Archive::create(&path, "x", 7).is_err(), "it is there already");
    }
}
