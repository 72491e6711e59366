//! Decides the fingerprints of labels and label sets: the same in every process, on every node, in every version.

use cilia_crds::{LabelKey, Labels};

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The fingerprint of one label.
pub(crate) fn label(name: &LabelKey, value: &str) -> u64 {
    let parts = [name.source.as_bytes(), b":", name.key.as_bytes(), b"=", value.as_bytes()];
    let bytes = parts.into_iter().flatten();
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    mixed(hash)
}

/// The fingerprint of a set: the labels' own, added, so that one can be taken away again.
pub(crate) fn set(labels: &Labels) -> u64 {
    labels.iter().fold(0, |sum, (name, value)| sum.wrapping_add(label(name, value)))
}

/// Spreads what differs little over all bits (the finalizer of `SplitMix64`).
pub(crate) fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use cilia_crds::Labels;

    use super::set;

    #[test]
    fn a_set_has_one_fingerprint_for_ever() {
        let mut labels = Labels::new();
        labels.insert("k8s", "app", "web");
        labels.insert("k8s", "io.kubernetes.pod.namespace", "shop");
        // Agents of different versions must draw the same number.
        assert_eq!(set(&labels), 187_830_322_431_123_047);
    }
}
