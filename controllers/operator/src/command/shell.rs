//! `shell`: sends lines to the operator's shell and shows what it answers.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::shell::END;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shell's socket
    #[arg(long, value_name = "PATH", default_value = "/var/run/cilium/shell.sock")]
    shell_sock_path: PathBuf,
    /// A command; without one, lines are read from standard input
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = &arguments.shell_sock_path;
    let connected = UnixStream::connect(path).await;
    let stream = connected.with_context(|| format!("no operator answers on {}", path.display()))?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    if !arguments.command.is_empty() {
        return exchange(&mut reader, &mut writer, &quoted(&arguments.command)).await;
    }
    let prompt = std::io::stdin().is_terminal();
    loop {
        if prompt {
            print!("cilium> ");
            std::io::stdout().flush()?;
        }
        let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
        let Some(line) = line.transpose()? else { return Ok(()) };
        match line.trim() {
            "" => {}
            "exit" | "quit" => return Ok(()),
            line => exchange(&mut reader, &mut writer, line).await?,
        }
    }
}

async fn exchange(
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
    line: &str,
) -> anyhow::Result<()> {
    writer.write_all(format!("{line}\n").as_bytes()).await?;
    print_answer(reader).await
}

async fn print_answer(reader: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<()> {
    let mut lines = reader.lines();
    while let Some(line) = lines.next_line().await? {
        if line == END {
            return Ok(());
        }
        println!("{line}");
    }
    bail!("the operator ended in the middle of its answer")
}

/// Words as one line, from which the shell makes the same words.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=*,@".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\"'\"'"))
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::quoted;
    use crate::shell::words;

    #[test]
    fn the_shell_reads_the_words_that_were_given() {
        let given = ["metrics", "", "a b", "it's", "\"x\"", "-o=json"].map(str::to_owned);
        assert_eq!(words(&quoted(&given)), Ok(given.to_vec()));
    }
}
