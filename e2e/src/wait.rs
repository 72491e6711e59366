//! Decides how long to wait for a condition, and what to say when it does not come.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::Error;

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// What a look at a condition found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<T> {
    /// It holds.
    Done(T),
    /// Not yet; the text says how far things are.
    Not(String),
}

/// Looks until the condition holds, at most for `limit`.
///
/// The error names what was waited for and the last state seen.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Look<T>>,
{
    let start = Instant::now();
    loop {
        let state = match look().await {
            Look::Done(value) => return Ok(value),
            Look::Not(state) => state,
        };
        if start.elapsed() >= limit {
            return Err(Error::Timeout { what: what.to_owned(), limit_s: limit.as_secs(), state });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until `look` succeeds; its last error is the state reported.
pub async fn until_ok<T, E, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: std::fmt::Display,
{
    until(what, limit, || {
        let result = look();
        async move {
            match result.await {
                Ok(value) => Look::Done(value),
                Err(error) => Look::Not(error.to_string()),
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Look, until, until_ok};

    #[tokio::test(start_paused = true)]
    async fn returns_what_was_found() {
        let mut left = 3;
        let got = until("countdown", Duration::from_secs(1), || {
            left -= 1;
            let now = left;
            async move { if now == 0 { Look::Done("go") } else { Look::Not(now.to_string()) } }
        });
        assert_eq!(got.await.expect("it ends"), "go");
    }

    #[tokio::test]
    async fn tells_the_last_state() {
        let never = until_ok("dawn", Duration::ZERO, || async { Err::<(), _>("still dark") });
        let text = never.await.expect_err("never").to_string();
        assert_eq!(text, "dawn did not happen within 0 s: still dark");
    }
}
