//! Decides what the programs know of their node beside its devices.

use cilia_loader::{Lives, NodeConfig};
use cilia_runtime::config::{Config as Flags, Error};

/// TCP flags by their bit.
const TCP_FLAGS: [&str; 6] = ["fin", "syn", "rst", "psh", "ack", "urg"];

/// The settings that the flags ask for.
pub(super) fn read(
    flags: &Flags,
    cluster_id: u32,
    tunnel_port: Option<u16>,
) -> Result<NodeConfig, Error> {
    Ok(NodeConfig {
        cluster_id: u16::try_from(cluster_id).unwrap_or_default(),
        policy_audit: flags.bool("policy-audit-mode"),
        trace: true,
        allow_icmp_frag_needed: flags.bool("allow-icmp-frag-needed"),
        sctp: flags.bool("enable-sctp"),
        extended_protocols: flags.bool("enable-extended-ip-protocols"),
        policy_accounting: flags.bool("policy-accounting"),
        lives: Lives {
            tcp: seconds(flags, "bpf-ct-timeout-regular-tcp")?,
            tcp_syn: seconds(flags, "bpf-ct-timeout-regular-tcp-syn")?,
            tcp_fin: seconds(flags, "bpf-ct-timeout-regular-tcp-fin")?,
            any: seconds(flags, "bpf-ct-timeout-regular-any")?,
            service_tcp: seconds(flags, "bpf-ct-timeout-service-tcp")?,
            service_any: seconds(flags, "bpf-ct-timeout-service-any")?,
        },
        report_interval: seconds(flags, "monitor-aggregation-interval")?,
        report_flags: tcp_flags(flags)?,
        tunnel_port: tunnel_port.unwrap_or_default(),
        ..NodeConfig::default()
    })
}

/// A time that the programs can measure: they count seconds.
fn seconds(flags: &Flags, flag: &str) -> Result<u32, Error> {
    let time = u32::try_from(flags.duration(flag).as_secs()).ok().filter(|time| *time > 0);
    time.ok_or_else(|| flags.reject(flag, "a time from 1s on"))
}

fn tcp_flags(flags: &Flags) -> Result<u8, Error> {
    const FLAG: &str = "monitor-aggregation-flags";
    let bit = |name: &String| TCP_FLAGS.iter().position(|flag| flag.eq_ignore_ascii_case(name));
    flags.strings(FLAG).iter().try_fold(0, |bits, name| {
        let bit = bit(name)
            .ok_or_else(|| flags.reject(FLAG, format!("a list of {}", TCP_FLAGS.join(", "))))?;
        Ok(bits | 1 << bit)
    })
}
