//! Decides where answers go, and in which format programs read them.
//!
//! `print!`, `println!` and `eprintln!` of these programs are those of this module: they write what several agents answer at once
//! one after the other, and a reader that has seen enough (`| head`) ends the program quietly.

use std::cell::RefCell;
use std::future::Future;
use std::io::{ErrorKind, Write as _};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, anyhow};
use serde_json::Value;

use crate::jsonpath::Template;

/// Prints where answers go.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::output::write(&format!($($argument)*)) };
}
/// Prints a line where answers go.
#[macro_export]
macro_rules! println {
    () => { $crate::output::write("\n") };
    ($($argument:tt)*) => { $crate::output::write(&format!("{}\n", format_args!($($argument)*))) };
}

/// Prints a line on standard error.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::output::complain("\n") };
    ($($argument:tt)*) => { $crate::output::complain(&format!("{}\n", format_args!($($argument)*))) };
}

tokio::task_local! {
    static KEPT: RefCell<String>;
}

/// Does `work`; also returns what it printed, which is not shown.
pub async fn captured<F: Future>(work: F) -> (F::Output, String) {
    let keep = async {
        let output = work.await;
        (output, KEPT.with(RefCell::take))
    };
    KEPT.scope(RefCell::default(), keep).await
}

/// Prints a text, or keeps it for [`captured`].
pub fn write(text: &str) {
    write_bytes(text.as_bytes());
}

/// Prints bytes that need not be text, or keeps what they look like for [`captured`].
pub fn write_bytes(bytes: &[u8]) {
    let keep = |kept: &RefCell<String>| {
        kept.borrow_mut().push_str(&String::from_utf8_lossy(bytes));
    };
    if KEPT.try_with(keep).is_ok() {
        return;
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            // Whoever read has seen enough.
            std::process::exit(0);
        }
        eprintln!("write the answer: {error}");
        std::process::exit(1);
    }
}

/// Prints a text on standard error; who doesn't listen there any more misses it.
pub fn complain(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// How an answer is printed when not as a table.
#[derive(Debug, Clone)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// What a template finds.
    Path(Template),
    /// Kept, to be put together with other agents' answers.
    Keep(Kept),
}

/// Answers that are kept.
#[derive(Debug, Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<Value>>>);

impl Kept {
    /// The answer; several in a list.
    pub fn take(&self) -> Value {
        let mut values =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
    }
}

/// What `-o` may say.
#[derive(Debug, Clone)]
pub struct Choice {
    /// What it means; a table, if nothing.
    pub format: Option<Format>,
    /// As it was typed.
    pub text: String,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let format = match text {
            "table" => None,
            text => Some(text.parse().map_err(|why: String| format!("{why}, or table"))?),
        };
        Ok(Self { format, text: text.to_owned() })
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => Template::parse(path.trim_matches('\'')).map(Self::Path),
                None => Err("use json, yaml or jsonpath='{.path}'".into()),
            },
        }
    }
}

impl Format {
    /// Prints a value.
    pub fn print(&self, value: &Value) -> anyhow::Result<()> {
        match self {
            Self::Json => println!("{}", serde_json::to_string_pretty(value)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(value).context("write YAML")?),
            Self::Path(path) => {
                let shown = path.show(value);
                println!("{}", shown.map_err(|why| anyhow!("-o jsonpath: {why}"))?);
            }
            Self::Keep(kept) => {
                kept.0.lock().unwrap_or_else(PoisonError::into_inner).push(value.clone());
            }
        }
        Ok(())
    }
}

/// A value as people read it: text without quotes, nothing for null.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The items of a list; none for anything else.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Choice, Format, Kept, captured};

    #[tokio::test]
    async fn what_is_captured_is_not_shown() {
        let ((), text) = captured(async {
            println!("a {}", 1);
            Format::Yaml.print(&json!({"b": 2})).expect("YAML");
        })
        .await;
        assert_eq!(text, "a 1\nb: 2\n");
    }

    #[test]
    fn formats_have_names() {
        for good in ["json", "yaml", "table", "jsonpath={.a}", "jsonpath='{.a}'"] {
            assert!(good.parse::<Choice>().is_ok(), "{good}");
        }
        for bad in ["", "xml", "jsonpath={.a[}", "wide"] {
            assert!(bad.parse::<Choice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kept_answers_can_be_taken() {
        let kept = Kept::default();
        Format::Keep(kept.clone()).print(&json!([1])).expect("kept");
        assert_eq!(kept.take(), json!([1]));
        assert_eq!(kept.take(), json!([]));
    }
}
