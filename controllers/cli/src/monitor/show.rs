//! Decides how an event is shown.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{cilium, packet};
use crate::output::{Format, text};

/// What of an event is shown.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag")]
pub(super) struct Show<'a> {
    /// An object in a line, as Cilium's monitor writes it.
    pub(super) cilium: bool,
    /// An object in a line, with all that is known.
    pub(super) json: bool,
    pub(super) format: Option<&'a Format>,
    pub(super) verbose: bool,
    pub(super) hex: bool,
    /// With the name of the node.
    pub(super) named: bool,
}

impl Show<'_> {
    /// Prints an event of an agent.
    pub(super) fn event(&self, node: &str, mut event: Value) -> anyhow::Result<()> {
        if self.cilium {
            let mut object = cilium::object(&event, &unhex(&text(&event["bytes"])));
            if self.named {
                object["node"] = node.into();
            }
            println!("{object}");
            return Ok(());
        }
        if self.json || self.format.is_some() {
            if self.named {
                event["node"] = node.into();
            }
            if let Some(format) = self.format {
                return format.print(&event);
            }
            println!("{event}");
            return Ok(());
        }
        print!("{}", self.text(node, &event));
        Ok(())
    }

    fn text(&self, node: &str, event: &Value) -> String {
        let mut shown = String::new();
        let node = if self.named { format!("{node}: ") } else { String::new() };
        let bytes = unhex(&text(&event["bytes"]));
        if self.verbose {
            let rule = "-".repeat(78);
            // Writing to a text can't fail.
            let _ =
                writeln!(shown, "{rule}\n{node}{} {}", time(&event["time"]), text(&event["line"]));
            for line in packet::parts(&bytes) {
                let _ = writeln!(shown, "{line}");
            }
        } else {
            let _ = writeln!(shown, "{node}{}", text(&event["line"]));
        }
        if self.hex {
            shown.push_str(&dump(&bytes));
        }
        shown
    }
}

fn time(seconds: &Value) -> String {
    let micros = seconds.as_f64().unwrap_or(0.0) * 1e6;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "microseconds since 1970 fit for 290,000 years"
    )]
    let moment = Timestamp::from_microsecond(micros as i64);
    moment.map(|moment| format!("{moment:.6}")).unwrap_or_default()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map_while(|pair| Some(digit(&pair[0])? << 4 | digit(&pair[1])?)).collect()
}

/// Bytes as `hexdump -C` writes them.
fn dump(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for (index, row) in bytes.chunks(16).enumerate() {
        let mut hex = String::new();
        for (column, byte) in row.iter().enumerate() {
            let gap = if column == 8 { " " } else { "" };
            let _ = write!(hex, "{gap}{byte:02x} ");
        }
        let letter = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
        let letters: String = row.iter().map(letter).collect();
        let _ = writeln!(shown, "{:08x}  {hex:<49} |{letters}|", index * 16);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{Show, dump, unhex};
    use serde_json::json;

    #[test]
    fn bytes_as_hexdump_writes_them() {
        assert_eq!(unhex("00ff41zz"), [0, 255, 65]);
        let bytes: Vec<u8> = (60..80).collect();
        let want = "\
00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|
00000010  4c 4d 4e 4f                                       |LMNO|
";
        assert_eq!(dump(&bytes), want);
    }

    #[test]
    fn more_on_request() {
        let event =
            json!({"line": "xx drop (Policy denied) ...", "time": 1_767_225_665.5, "bytes": "41"});
        let show = Show {
            cilium: false,
            json: false,
            format: None,
            verbose: false,
            hex: false,
            named: true,
        };
        assert_eq!(show.text("n1", &event), "n1: xx drop (Policy denied) ...\n");
        let show = Show { verbose: true, hex: true, named: false, ..show };
        let text = show.text("n1", &event);
        assert!(text.contains("\n2026-01-01T00:01:05.500000Z xx drop"), "{text}");
        assert!(text.contains("00000000  41 "), "{text}");
    }
}
