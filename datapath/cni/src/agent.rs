//! One HTTP request over the agent's unix socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An answer larger than this is none of the agent's.
const MAX_ANSWER: u64 = 4 << 20;

/// The agent of this node.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) socket: PathBuf,
    /// How long an answer may take once the agent has been reached.
    pub(crate) patience: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    /// Nobody listens: the request has not been seen.
    #[error("{0}")]
    Away(std::io::Error),
    /// The agent went away while it worked: the request may have been carried out.
    #[error("no answer: {0}")]
    Lost(String),
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Agent {
    /// The agent behind `socket`.
    pub(crate) fn at(socket: &Path, patience: Duration) -> Self {
        Self { socket: socket.to_owned(), patience }
    }

    /// POSTs `body` and waits for the answer.
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Result<Answer, Silence> {
        let mut stream = UnixStream::connect(&self.socket).map_err(Silence::Away)?;
        let lost = |cause: std::io::Error| Silence::Lost(cause.to_string());
        stream.set_read_timeout(Some(self.patience)).map_err(lost)?;
        stream.set_write_timeout(Some(self.patience)).map_err(lost)?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).map_err(lost)?;
        stream.write_all(body).map_err(lost)?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).map_err(lost)?;
        parse(&answer).map_err(|reason| Silence::Lost(reason.to_owned()))
    }
}

/// Reads an HTTP/1.1 answer that ends with the connection.
fn parse(answer: &[u8]) -> Result<Answer, &'static str> {
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or("the answer has no end of headers")?;
    let head =
        std::str::from_utf8(&answer[..end]).map_err(|_| "the answer's headers are not text")?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or("the answer has no HTTP status")?;
    let (mut length, mut chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(
                value.trim().parse::<usize>().map_err(|_| "the answer's length is not a number")?,
            );
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
        }
    }
    let body = match length {
        _ if chunked => unchunk(body)?,
        Some(length) => body.get(..length).ok_or("the answer is cut off")?.to_vec(),
        None => body.to_vec(),
    };
    Ok(Answer { status, body })
}

/// Joins the chunks of a chunked body.
fn unchunk(mut body: &[u8]) -> Result<Vec<u8>, &'static str> {
    const CUT: &str = "the answer is cut off";
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n").ok_or(CUT)?;
        let size = std::str::from_utf8(&body[..end]).map_err(|_| CUT)?;
        let size = size.split(';').next().unwrap_or("").trim();
        let size =
            usize::from_str_radix(size, 16).map_err(|_| "the answer has a malformed chunk")?;
        body = &body[end + 2..];
        if size == 0 {
            return Ok(whole);
        }
        whole.extend_from_slice(body.get(..size).ok_or(CUT)?);
        body = body.get(size.checked_add(2).ok_or(CUT)?..).ok_or(CUT)?;
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_both_kinds_of_body() {
        let cases: &[(&[u8], u16, &[u8])] = &[
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}extra", 200, b"{}"),
            (b"HTTP/1.0 503 Service Unavailable\r\n\r\nwait", 503, b"wait"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n", 200, b"abcd"),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ];
        for (answer, status, body) in cases {
            let got = parse(answer).unwrap();
            assert_eq!((got.status, got.body.as_slice()), (*status, *body));
        }
    }

    #[test]
    fn every_cut_of_an_answer_is_survived() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nffffffffffffffff\r\nd\r\n0\r\n\r\n";
        for cut in 0..answer.len() {
            assert!(parse(&answer[..cut]).is_err(), "cut at {cut}");
        }
        assert!(parse(answer).is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort").is_err());
    }
}
