//! Writes the definitions of every kind into a folder, or says where the folder differs from them.
//!
//! `cilia-crds-generate [--check] [FOLDER]`, where the folder is `config/crd` unless given.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut check = false;
    let mut folder = PathBuf::from("config/crd");
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--check" => check = true,
            option if option.starts_with('-') => {
                eprintln!("unknown option {option}: known is --check");
                return ExitCode::from(2);
            }
            path => folder = PathBuf::from(path),
        }
    }
    let result = if check { differing(&folder) } else { write(&folder).map(|()| Vec::new()) };
    match result {
        Ok(names) if names.is_empty() => ExitCode::SUCCESS,
        Ok(names) => {
            eprintln!("{}: out of date: {}", folder.display(), names.join(", "));
            eprintln!("run `make manifests`");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// The files that are not as they would be written, those that are too many included.
fn differing(folder: &Path) -> io::Result<Vec<String>> {
    let mut there = yaml_files(folder)?;
    let mut names = Vec::new();
    for (name, text) in cilia_crds::manifests() {
        there.remove(&name);
        match fs::read_to_string(folder.join(&name)) {
            Ok(found) if found == text => {}
            Ok(_) => names.push(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => names.push(name),
            Err(error) => return Err(error),
        }
    }
    names.extend(there);
    Ok(names)
}

/// Makes the folder hold just the definitions.
fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut stale = yaml_files(folder)?;
    for (name, text) in cilia_crds::manifests() {
        fs::write(folder.join(&name), text)?;
        stale.remove(&name);
    }
    stale.iter().try_for_each(|name| fs::remove_file(folder.join(name)))
}

fn yaml_files(folder: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let yaml = |name: &io::Result<String>| {
        name.as_ref().map_or(true, |name| {
            Path::new(name).extension().is_some_and(|extension| extension == "yaml")
        })
    };
    names.filter(yaml).collect()
}
