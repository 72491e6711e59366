//! `cilia relay`: passes bytes between its own input and output and the agent's socket.
//!
//! It is what the command line runs in agents' pods when it is used from elsewhere.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use anyhow::Context as _;

use crate::agent::{socket, unreachable};

/// Returns once one side has ended.
pub(crate) fn run(host: &str) -> anyhow::Result<()> {
    let socket = socket(host)?;
    let mut out = std::io::stdout().lock();
    let mut answers = match UnixStream::connect(&socket) {
        Ok(stream) => stream,
        Err(error) => {
            // Whoever asks speaks HTTP, and listens once they have asked.
            wait_for_question();
            let text = unreachable(&socket, &error);
            let head = format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                text.len()
            );
            out.write_all((head + &text).as_bytes()).context("answer")?;
            return out.flush().context("answer");
        }
    };
    let mut questions = answers.try_clone().context("share the agent's socket")?;
    std::thread::spawn(move || {
        // Nobody asks any more once the input has ended: the other side ends with it.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut questions);
        let _ = questions.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = match answers.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("pass the agent's answer on"),
        };
        // Events must not wait for more of them.
        out.write_all(&buffer[..read]).and_then(|()| out.flush()).context("pass the answer on")?;
    }
}

/// Returns once a request's head has come, or the input ends.
fn wait_for_question() {
    let (mut input, mut head) = (std::io::stdin().lock(), Vec::new());
    let mut buffer = [0; 1 << 12];
    while head.len() < 1 << 16 && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match input.read(&mut buffer) {
            Ok(read) if read > 0 => head.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
}
