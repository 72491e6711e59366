//! Decides what is logged and how: `--debug`, and `--log-opt` with `level` and `format`.

use std::io;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Config, Error};
use crate::metrics::Metrics;

/// The client reports each failed request as an error, the watcher each refusal; whoever made the
/// request knows better.
const QUIET: &str =
    "kube_client::client=off,kube_runtime=error,hyper=warn,hyper_util=warn,rustls=warn,tower=warn";

type Counts = Family<[(&'static str, String); 2], Counter>;

/// Starts logging to standard error, and counts warnings and errors.
pub fn init(config: &Config, metrics: &Metrics) -> Result<(), Error> {
    let options = config.map("log-opt");
    let level = match options.get("level").map(String::as_str) {
        _ if config.bool("debug") => "debug",
        None => "info",
        Some(
            level @ ("panic" | "fatal" | "error" | "warn" | "warning" | "info" | "debug" | "trace"),
        ) => match level {
            "panic" | "fatal" => "error",
            "warning" => "warn",
            level => level,
        },
        Some(_) => return Err(config.reject("log-opt", "level is one of error, warn, info, debug")),
    };
    let json = match options.get("format").map(String::as_str) {
        None | Some("text" | "text-ts") => false,
        Some("json" | "json-ts") => true,
        Some(_) => {
            return Err(config.reject("log-opt", "format is one of text, text-ts, json, json-ts"));
        }
    };
    // RUST_LOG is for developers: it replaces everything.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},{QUIET}")));
    let counts = Counts::default();
    metrics.register("errors_warnings_total", "Errors and warnings logged", counts.clone());
    let registry = tracing_subscriber::registry().with(filter).with(Count(counts));
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    // Fails only when logging is up already, as in tests.
    let _ = if json {
        registry.with(layer.json().flatten_event(true)).try_init()
    } else {
        registry.with(layer.with_ansi(false)).try_init()
    };
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(())
}

struct Count(Counts);

impl<S: Subscriber> Layer<S> for Count {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => return,
        };
        let subsystem = event.metadata().target().rsplit("::").next().unwrap_or_default();
        self.0.get_or_create(&[("level", level.into()), ("subsystem", subsystem.into())]).inc();
    }
}
