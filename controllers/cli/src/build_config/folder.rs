//! Writes settings as the kubelet writes a config map: a reader never sees a part of them.
//!
//! Files are in `..data_TIME`; the link `..data` is swapped to it, and a link per setting goes
//! through `..data`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const DATA: &str = "..data";

/// Writes the settings; returns how many.
pub(super) fn write(folder: &Path, settings: &BTreeMap<String, String>) -> Result<usize, Error> {
    fs::create_dir_all(folder)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut name = format!("{DATA}_{now}");
    let mut more = 0;
    // Twice in a second, for instance by a container that restarts.
    while folder.join(&name).exists() {
        more += 1;
        name = format!("{DATA}_{now}_{more}");
    }
    let data = folder.join(&name);
    fs::create_dir(&data)?;
    for (setting, value) in settings {
        fs::write(data.join(setting), value)?;
    }
    let former = fs::read_link(folder.join(DATA)).ok();
    let swap = folder.join(format!("{DATA}_tmp"));
    absent(fs::remove_file(&swap))?;
    symlink(&name, &swap)?;
    fs::rename(&swap, folder.join(DATA))?;
    for setting in settings.keys() {
        let link = folder.join(setting);
        let target = Path::new(DATA).join(setting);
        if fs::read_link(&link).is_ok_and(|present| present == target) {
            continue;
        }
        absent(fs::remove_file(&link))?;
        symlink(target, link)?;
    }
    // Settings that are no more, and the folder of the former ones.
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let through = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(DATA));
        if !file.starts_with(DATA) && through && !settings.contains_key(&file) {
            absent(fs::remove_file(entry.path()))?;
        }
    }
    if let Some(former) = former.filter(|former| *former != Path::new(&name)) {
        absent(fs::remove_dir_all(folder.join(former)))?;
    }
    Ok(settings.len())
}

/// What isn't there needn't be removed.
fn absent(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::write;

    #[test]
    fn readers_see_all_of_it_or_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        assert_eq!(write(folder.path(), &map(&[("a", "1"), ("b", "1")])).expect("written"), 2);
        assert_eq!((read("a").as_deref(), read("b").as_deref()), (Some("1"), Some("1")));
        write(folder.path(), &map(&[("b", "2"), ("c", "2")])).expect("written");
        assert_eq!(
            (read("a"), read("b").as_deref(), read("c").as_deref()),
            (None, Some("2"), Some("2"))
        );
        let link = fs::read_link(folder.path().join("b")).expect("a link");
        assert_eq!(link.to_str(), Some("..data/b"));
        let data = fs::read_link(folder.path().join("..data")).expect("a link");
        assert!(data.to_string_lossy().starts_with("..data_"));
        let folders = fs::read_dir(folder.path()).expect("entries").flatten();
        let folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        assert_eq!(folders.count(), 1, "the former one is gone");
    }
}
