//! Writes the generated files of the chart and of `config/`, or checks that they are up to date.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use cilia_chart::{chart, kustomize, repository, schema, values};

fn main() -> anyhow::Result<()> {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => bail!("unknown argument {other:?}; allowed: --check"),
    };
    // The schema first: helm checks the chart's values against the one it finds.
    settle(&chart_files()?, check)?;
    let config = repository().join("config");
    let bases =
        kustomize::generate()?.into_iter().map(|(path, text)| (config.join(path), text)).collect();
    settle(&bases, check)
}

fn chart_files() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    Ok([
        (chart().join("values.schema.json"), schema::generate()?),
        (chart().join("files/unbuilt-values.tsv"), values::unbuilt()?),
    ]
    .into())
}

/// Makes the files what they should be, or says which are not.
fn settle(files: &BTreeMap<PathBuf, String>, check: bool) -> anyhow::Result<()> {
    let stale: Vec<_> = files
        .iter()
        .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
        .collect();
    if check {
        if let Some((path, _)) = stale.first() {
            bail!("{} is out of date: run `make manifests` and commit the result", path.display());
        }
        return Ok(());
    }
    for (path, text) in stale {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("create {}", folder.display()))?;
        }
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
