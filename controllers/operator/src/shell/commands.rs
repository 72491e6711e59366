//! The commands that every operator's shell has.

use std::sync::Arc;

use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use futures::FutureExt;

use super::Command;
use crate::wiring::duties;

/// What can be asked of every operator.
pub(crate) fn builtin(config: &Config, metrics: &Metrics) -> Vec<Command> {
    let metrics = metrics.clone();
    let shown = move |pattern: Option<&str>| {
        let text = metrics.render();
        let fits = |line: &&str| {
            !line.starts_with('#') && pattern.is_none_or(|pattern| line.contains(pattern))
        };
        text.lines().filter(fits).collect::<Vec<_>>().join("\n")
    };
    let parts = duties().iter().map(|duty| duty.name).collect::<Vec<_>>().join("\n");
    let settings: Vec<(String, String)> = config
        .iter()
        .map(|(name, value)| {
            (name.to_owned(), format!("{name}: {value}	# {}", config.origin(name)))
        })
        .collect();
    vec![
        Command {
            name: "config",
            arguments: "[text]",
            about: "show the settings whose name contains the text, and who set them",
            run: of(move |arguments| {
                let part = arguments.first().map(String::as_str).unwrap_or_default();
                let fits = settings.iter().filter(|(name, _)| name.contains(part));
                fits.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(
                    "
",
                )
            }),
        },
        Command {
            name: "hive",
            arguments: "",
            about: "show the duties of a leader",
            run: of(move |_| parts.clone()),
        },
        Command {
            name: "metrics",
            arguments: "[text]",
            about: "show the metrics whose line contains the text",
            run: of(move |arguments| shown(arguments.first().map(String::as_str))),
        },
        Command {
            name: "version",
            arguments: "",
            about: "show the version",
            run: of(|_| format!("{}\n", env!("CARGO_PKG_VERSION"))),
        },
    ]
}

fn of(answer: impl Fn(&[String]) -> String + Send + Sync + 'static) -> super::Run {
    Arc::new(move |arguments| std::future::ready(Ok(answer(&arguments))).boxed())
}
