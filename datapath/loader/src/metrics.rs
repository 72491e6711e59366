//! The datapath's counters: packets and bytes, forwarded or dropped and why.

use cilia_maps::metrics as kernel;
use cilia_maps::{Plain, reason};

use crate::event::Direction;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricKey {
    /// 0 forwarded, small numbers as Cilium's, from 130 a drop reason.
    pub reason: u8,
    /// Towards the endpoint or from it; none where that means nothing.
    pub direction: Option<Direction>,
}

impl MetricKey {
    /// The reason as metrics name it.
    pub fn reason_text(&self) -> String {
        match self.reason {
            reason::FORWARDED => "Success".into(),
            reason::FRAGMENT => "Fragmented packet".into(),
            reason::FRAGMENT_UPDATE_FAILED => "Fragmented packet entry update failed".into(),
            other => reason::text(other).map_or_else(|| other.to_string(), Into::into),
        }
    }

    /// Whether packets counted here went nowhere.
    pub fn is_drop(&self) -> bool {
        self.reason >= reason::INVALID_SIP
    }
}

/// Adds up the CPUs of one entry: its key, packets and bytes.
pub(crate) fn decode(key: &[u8], per_cpu: &[u8]) -> Option<(MetricKey, u64, u64)> {
    let key = kernel::MetricsKey::from_bytes(key)?;
    let direction = match key.dir {
        kernel::INGRESS => Some(Direction::Ingress),
        kernel::EGRESS => Some(Direction::Egress),
        _ => None,
    };
    let (count, bytes) = per_cpu
        .chunks_exact(size_of::<kernel::MetricsValue>())
        .filter_map(kernel::MetricsValue::from_bytes)
        .fold((0, 0), |(count, bytes), value| (count + value.count, bytes + value.bytes));
    Some((MetricKey { reason: key.reason, direction }, count, bytes))
}
