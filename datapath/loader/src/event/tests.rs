//! Records that are read and written again say the same.

use cilia_maps::event::{CAPTURE, TYPE_DROP, TYPE_TRACE, TYPE_VERDICT};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{Event, decode, encode};

#[test]
fn what_is_written_reads_the_same() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("CILIA_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..2000 {
        let kind = [TYPE_DROP, TYPE_TRACE, TYPE_VERDICT][random.random_range(0..3)];
        let mut record = vec![0; 56 + CAPTURE];
        random.fill(&mut record[..]);
        record[0] = kind;
        if kind == TYPE_VERDICT {
            // A verdict is 0 or minus a reason.
            let verdict = -i32::from(random.random::<u8>() & random.random::<u8>());
            record[20..24].copy_from_slice(&verdict.to_ne_bytes());
        }
        let event = decode(&record).expect("a record");
        let written = encode(&event);
        assert_eq!(decode(&written), Some(event), "CILIA_SEED={seed} round {round}: {record:?}");
        assert_eq!(&written[2..12], &record[2..12], "the head is where it was");
    }
}

/// The layouts that Cilium 1.19's monitor reads: drops 3, traces 2, verdicts 1.
#[test]
fn heads_are_as_long_as_their_versions_say() {
    for (kind, head, version) in [(TYPE_DROP, 48, 3), (TYPE_TRACE, 56, 2), (TYPE_VERDICT, 40, 1)] {
        let mut record = [0; 56 + 4];
        (record[0], record[12]) = (kind, 4);
        record[head..head + 4].copy_from_slice(b"abcd");
        let event = decode(&record).expect("a record");
        let (Event::Drop(super::DropEvent { packet, .. })
        | Event::Trace(super::TraceEvent { packet, .. })
        | Event::Verdict(super::VerdictEvent { packet, .. })) = &event;
        assert_eq!(packet.bytes, b"abcd", "type {kind}");
        let written = encode(&event);
        assert_eq!((&written[head..], written[14], written[15]), (&b"abcd"[..], version, 0));
    }
}
