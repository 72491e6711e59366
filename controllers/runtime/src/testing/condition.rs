//! Waiting in tests: for a condition, with a limit, never for a time.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// Between two looks at the condition.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `check` gives `Ok`, at most thirty seconds; then panics with the last error.
///
/// # Panics
/// When the condition does not come true in time.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
    check: impl FnMut() -> F,
) -> T {
    eventually_for(Duration::from_secs(30), check).await
}

/// Waits until `check` gives `Ok`, at most `limit`; then panics with the last error.
///
/// # Panics
/// When the condition does not come true in time.
pub async fn eventually_for<T, E: Debug, F: Future<Output = Result<T, E>>>(
    limit: Duration,
    mut check: impl FnMut() -> F,
) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(error) if start.elapsed() > limit => panic!("not so after {limit:?}: {error:?}"),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
