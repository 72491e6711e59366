//! Finds flags that a program accepts as built although none of its code reads them.

use std::path::{Path, PathBuf};

/// Where a program's list of built flags begins in its source, and where it ends.
const LIST: (&str, &str) = ("const BUILT: &[&str] = &[", "];");

/// Those of the flags that no source in these folders names as a text of its own.
///
/// # Panics
/// If a source cannot be read.
pub fn unread_flags<'f>(built: &[&'f str], folders: &[PathBuf]) -> Vec<&'f str> {
    let mut sources = String::new();
    for folder in folders {
        gather(folder, &mut sources);
    }
    built.iter().copied().filter(|flag| !sources.contains(&format!("\"{flag}\""))).collect()
}

fn gather(folder: &Path, sources: &mut String) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| failed(folder, &error));
    for path in entries.map(|entry| entry.expect("a folder's entry").path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            gather(&path, sources);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !name.contains("test") {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| failed(&path, &error));
            // What only its own list or a test says is not read.
            let text = text.split("\nmod tests {").next().unwrap_or_default();
            let (before, list) = text.split_once(LIST.0).unwrap_or((text, ""));
            sources.push_str(before);
            sources.push_str(list.split_once(LIST.1).unwrap_or_default().1);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> ! {
    panic!("{}: {error}", path.display())
}
