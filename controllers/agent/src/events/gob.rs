//! Decides how an event looks on the wire to Cilium's own monitor: a stream of one struct in Go's encoding `gob`.
//!
//! The stream begins with the struct's definition, once, and each message has its length before it. A field
//! that is zero is left out, as the encoding wants it: a reader that keeps its struct sees the last value.
//! The rules are in the documentation of Go's package `encoding/gob`.

/// What the stream's messages are: `Payload {Data []byte, CPU int, Lost uint64, Type int}`, type 64.
const DEFINITION: &[u8] =
    b"\x37\x7f\x03\x01\x01\x07Payload\x01\xff\x80\x00\x01\x04\x01\x04Data\x01\x0a\x00\
    \x01\x03CPU\x01\x04\x00\x01\x04Lost\x01\x06\x00\x01\x04Type\x01\x04\x00\x00\x00";
/// The number that the definition gives the struct.
const TYPE: i64 = 64;

/// A number of so many bytes has this before it: minus their number.
const MINUS: [u8; 9] = [0, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8];

/// `Type` of an event, as perf's records have it.
const SAMPLE: i64 = 9;
/// `Type` of a loss.
const LOST: i64 = 2;

/// A message of the stream. The CPU is always 0: the ring doesn't tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// A record of the datapath.
    Record(&'a [u8]),
    /// So many are missing here.
    Lost(u64),
}

/// Begins a stream.
pub fn begin(stream: &mut Vec<u8>) {
    stream.extend_from_slice(DEFINITION);
}

/// Adds a message to a stream.
pub fn add(stream: &mut Vec<u8>, payload: Payload<'_>) {
    let mut fields = Vec::new();
    signed(&mut fields, TYPE);
    // Each field has before it how far it is from the one before.
    let kind = match payload {
        Payload::Record([]) => (4, SAMPLE),
        Payload::Record(record) => {
            unsigned(&mut fields, 1);
            unsigned(&mut fields, record.len() as u64);
            fields.extend_from_slice(record);
            (3, SAMPLE)
        }
        Payload::Lost(0) => (4, LOST),
        Payload::Lost(count) => {
            unsigned(&mut fields, 3);
            unsigned(&mut fields, count);
            (1, LOST)
        }
    };
    unsigned(&mut fields, kind.0);
    signed(&mut fields, kind.1);
    fields.push(0);
    unsigned(stream, fields.len() as u64);
    stream.append(&mut fields);
}

/// Up to 127 a byte; else minus how many bytes follow, and these, the highest first.
fn unsigned(to: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(small) if small < 128 => to.push(small),
        _ => {
            let skipped = number.leading_zeros() as usize / 8;
            let bytes = &number.to_be_bytes()[skipped..];
            to.push(MINUS[bytes.len()]);
            to.extend_from_slice(bytes);
        }
    }
}

/// The sign in the lowest bit, and a negative number's bits turned.
fn signed(to: &mut Vec<u8>, number: i64) {
    unsigned(to, (number << 1 ^ number >> 63).cast_unsigned());
}

#[cfg(test)]
mod tests {
    use super::{Payload, add, begin, signed, unsigned};

    fn hex(bytes: &[u8]) -> String {
        let digit = |four: u8| char::from_digit(four.into(), 16).expect("a digit");
        bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
    }

    /// What `gob.NewEncoder(w).Encode(&payload)` of Go 1.26 writes.
    #[test]
    fn as_go_writes_it() {
        let mut stream = Vec::new();
        begin(&mut stream);
        add(&mut stream, Payload::Record(&[1, 2, 3]));
        let want = "377f030101075061796c6f616401ff80000104010444617461010a00010343505501040001044c6f7374\
                    01060001045479706501040000000aff800103010203031200";
        assert_eq!(hex(&stream), want);
        let zeros = [0; 128];
        let long = format!("ff88ff8001ff80{}031200", "00".repeat(128));
        let cases = [
            (Payload::Lost(70000), "0aff8003fd011170010400"),
            (Payload::Lost(127), "07ff80037f010400"),
            (Payload::Lost(128), "08ff8003ff80010400"),
            (Payload::Record(&[]), "05ff80041200"),
            (Payload::Record(&zeros), long.as_str()),
        ];
        for (payload, want) in cases {
            let mut message = Vec::new();
            add(&mut message, payload);
            assert_eq!(hex(&message), want, "{payload:?}");
        }
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        let cases = [
            (0, "00"),
            (127, "7f"),
            (128, "ff80"),
            (255, "ffff"),
            (256, "fe0100"),
            (1 << 63, "f88000000000000000"),
            (u64::MAX, "f8ffffffffffffffff"),
        ];
        for (number, want) in cases {
            let mut bytes = Vec::new();
            unsigned(&mut bytes, number);
            assert_eq!(hex(&bytes), want, "{number}");
        }
        for (number, want) in [(0, "00"), (-1, "01"), (63, "7e"), (-64, "7f"), (64, "ff80")] {
            let mut bytes = Vec::new();
            signed(&mut bytes, number);
            assert_eq!(hex(&bytes), want, "{number}");
        }
    }
}
