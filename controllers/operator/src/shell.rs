//! Answers commands on a unix socket, a line each: a look into a running operator.
//!
//! The answer to a line ends with a line that is [`END`]. A line that begins with `#` is a comment.

mod commands;

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

pub(crate) use commands::builtin;

/// The line after which an answer is complete.
pub(crate) const END: &str = "<<end>>";
/// The longest line, in bytes.
const LONGEST: u64 = 4096;

/// What a command says to its arguments.
type Run = Arc<dyn Fn(Vec<String>) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// A command of the shell.
#[derive(Clone)]
pub(crate) struct Command {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its arguments, as `help` shows them.
    pub(crate) arguments: &'static str,
    /// What it does, in a line.
    pub(crate) about: &'static str,
    /// Does it.
    pub(crate) run: Run,
}

/// Listens on `path` until `stop`.
///
/// An operator that may not write there runs without a shell.
pub(crate) fn serve(path: &Path, commands: Vec<Command>, stop: &CancellationToken) {
    let listener = match listen(path) {
        Ok(listener) => listener,
        Err(error) => {
            info!(path = %path.display(), %error, "no shell: the socket cannot be made");
            return;
        }
    };
    let (path, stop) = (path.to_owned(), stop.clone());
    let commands: Arc<[Command]> = commands.into();
    tokio::spawn(async move {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            let Ok((stream, _)) = accepted else { continue };
            let (commands, stop) = (commands.clone(), stop.clone());
            tokio::spawn(async move {
                if let Some(Err(error)) =
                    stop.run_until_cancelled(converse(stream, &commands)).await
                {
                    debug!(%error, "a shell's connection ended");
                }
            });
        }
        // Nobody minds if it is gone already.
        drop(std::fs::remove_file(&path));
    });
}

/// Makes the socket, for this user alone; one that nobody listens on is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_err() && path.exists() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn converse(stream: UnixStream, commands: &[Command]) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        if (&mut reader).take(LONGEST).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == LONGEST {
            writer
                .write_all(format!("ERROR: a line is at most {LONGEST} bytes\n{END}\n").as_bytes())
                .await?;
            return Ok(());
        }
        let mut answer = match answer(String::from_utf8_lossy(&line).trim(), commands).await {
            Ok(answer) => answer,
            Err(error) => format!("ERROR: {error}"),
        };
        if !answer.is_empty() && !answer.ends_with('\n') {
            answer.push('\n');
        }
        writer.write_all(format!("{answer}{END}\n").as_bytes()).await?;
    }
}

async fn answer(line: &str, commands: &[Command]) -> Result<String, String> {
    let mut words = words(line)?.into_iter();
    let Some(name) = words.next().filter(|_| !line.starts_with('#')) else {
        return Ok(String::new());
    };
    let arguments: Vec<String> = words.collect();
    if name == "help" {
        return help(commands, arguments.first().map(String::as_str));
    }
    let command = commands.iter().find(|command| command.name == name);
    let command = command.ok_or_else(|| format!("unknown command {name:?}: see help"))?;
    (command.run)(arguments).await
}

fn help(commands: &[Command], about: Option<&str>) -> Result<String, String> {
    let wanted = |command: &&Command| about.is_none_or(|name| command.name.starts_with(name));
    let mut shown = String::new();
    for command in commands.iter().filter(wanted) {
        let usage = format!("{} {}", command.name, command.arguments);
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "{}\n\t{}", usage.trim_end(), command.about);
    }
    match about {
        Some(name) if shown.is_empty() => Err(format!("unknown command {name:?}: see help")),
        Some(_) => Ok(shown),
        None => Ok(shown + "help [command]\n\tshow what commands there are\n"),
    }
}

/// The words of a line; quotes keep blanks together.
pub(crate) fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests;
