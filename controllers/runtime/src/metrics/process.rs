//! Reads the `process_*` metrics of this process from `/proc` at each scrape.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// `/proc` counts time in hundredths of a second on every Linux platform.
const TICKS_PER_SECOND: f64 = 100.0;

/// Fields of `/proc/self/stat`, counted from the one after the command's name.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const START_TIME: usize = 19;
const VIRTUAL_BYTES: usize = 20;

#[derive(Debug)]
pub(super) struct Process {
    prefix: String,
}

impl Process {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .map(|f| f.parse().unwrap_or(0.0))
            .collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or(0.0);
        let cpu = ConstCounter::new((field(USER_TIME) + field(SYSTEM_TIME)) / TICKS_PER_SECOND);
        let name = format!("{}_process_cpu_seconds", self.prefix);
        cpu.encode(encoder.encode_descriptor(
            &name,
            "User and system CPU time spent",
            None,
            cpu.metric_type(),
        )?)?;
        let gauges = [
            (
                "resident_memory_bytes",
                "Resident memory size",
                number_after("/proc/self/status", "VmRSS:") * 1024.0,
            ),
            ("virtual_memory_bytes", "Virtual memory size", field(VIRTUAL_BYTES)),
            ("open_fds", "Open file descriptors", open_files()),
            (
                "max_fds",
                "Most file descriptors allowed",
                number_after("/proc/self/limits", "Max open files"),
            ),
            (
                "start_time_seconds",
                "Start time since the epoch",
                number_after("/proc/stat", "btime") + field(START_TIME) / TICKS_PER_SECOND,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let name = format!("{}_process_{name}", self.prefix);
            gauge.encode(encoder.encode_descriptor(&name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// The first number on the line of `path` that starts with `label`.
fn number_after(path: &str, label: &str) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.and_then(|rest| rest.split_whitespace().find_map(|word| word.parse().ok())).unwrap_or(0.0)
}

fn open_files() -> f64 {
    let count = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
