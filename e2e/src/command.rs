//! Decides how other programs are run, and what is told when they fail.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::Error;

/// How much of a failed program's output is worth repeating.
const OUTPUT_SHOWN: usize = 2000;

/// A command that ends with its caller.
pub(crate) fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Runs `command` to its end and returns what it printed.
pub(crate) async fn output(command: &mut Command) -> Result<String, Error> {
    let line = shown(command);
    let output = command.output().await.map_err(|error| not_started(&line, &error))?;
    checked(line, &output)
}

/// Runs `command` with `input` on its standard input and returns what it printed.
pub(crate) async fn output_with_input(command: &mut Command, input: &str) -> Result<String, Error> {
    let line = shown(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| not_started(&line, &error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input says why in its exit.
        drop(stdin.write_all(input.as_bytes()).await);
    }
    let output = child.wait_with_output().await.map_err(|error| not_started(&line, &error))?;
    checked(line, &output)
}

fn checked(line: String, output: &std::process::Output) -> Result<String, Error> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let all = format!("{}{text}", String::from_utf8_lossy(&output.stderr));
    Err(Error::Command { command: line, status: output.status.to_string(), output: tail(&all) })
}

fn not_started(line: &str, error: &std::io::Error) -> Error {
    Error::Command {
        command: line.to_owned(),
        status: "not started".to_owned(),
        output: error.to_string(),
    }
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The last part of `text`, cut at a line.
pub(crate) fn tail(text: &str) -> String {
    let text = text.trim_end();
    let start = text.len().saturating_sub(OUTPUT_SHOWN);
    let start = (start..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(start);
    let cut = &text[start..];
    if start == 0 {
        cut.to_owned()
    } else {
        cut.split_once('\n').map_or(cut, |(_, c)| c).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{command, output, output_with_input, tail};

    #[tokio::test]
    async fn says_what_failed() {
        let error = output(&mut command("sh", ["-c", "echo why >&2; exit 3"])).await;
        let text = error.expect_err("it fails").to_string();
        assert!(text.contains("exit 3") && text.contains("exit status: 3"), "{text}");
        assert!(text.contains("why"), "{text}");
    }

    #[tokio::test]
    async fn passes_input() {
        let got = output_with_input(&mut command("cat", [""; 0]), "text").await;
        assert_eq!(got.expect("cat works"), "text");
    }

    #[test]
    fn tail_keeps_the_end() {
        let long = format!("{}\nend", "x".repeat(5000));
        assert_eq!(tail(&long), "end");
        assert_eq!(tail("short\n"), "short");
    }
}
