//! Decides how the test suites of others are run on a cluster, and what their verdicts are.

use crate::image::catalog;
use crate::{Cluster, Error, Progress, Suite};

pub mod kubernetes;
pub mod policy_api;

/// What a suite says of one of its tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The test's name.
    pub test: String,
    /// How it ended.
    pub end: End,
}

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// What it expects was seen.
    Passed,
    /// What was seen instead, in the suite's words.
    Failed(String),
}

/// The verdicts as a table, failures last, and how many passed.
pub fn summary(verdicts: &[Verdict]) -> String {
    let mut lines = Vec::new();
    let (passed, failed): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|verdict| verdict.end == End::Passed);
    lines.extend(passed.iter().map(|verdict| format!("ok      {}", verdict.test)));
    for verdict in &failed {
        lines.push(format!("FAILED  {}", verdict.test));
        if let End::Failed(why) = &verdict.end {
            lines.extend(why.lines().take(20).map(|line| format!("        {line}")));
        }
    }
    lines.push(format!("{} of {} passed", passed.len(), verdicts.len()));
    lines.join("\n")
}

/// Gives the cluster's nodes the images that the suite's pods are made from.
async fn load_images(
    cluster: &Cluster,
    suite: Suite,
    program: &std::path::Path,
    progress: &Progress,
) -> Result<(), Error> {
    let tags = suite.images(program).await?;
    if tags.is_empty() {
        return Err(Error::Invalid("the suite names no image of agnhost".to_owned()));
    }
    let image = catalog::agnhost_for(&cluster.tools, tags).await?;
    cluster.load(&image.archive()?).await?;
    progress.say("the suite's image loaded");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_failed_and_why() {
        let verdict = |test: &str, end| Verdict { test: test.to_owned(), end };
        let verdicts = [
            verdict("denies", End::Failed("expected 0\ngot 1".to_owned())),
            verdict("allows", End::Passed),
        ];
        let text = summary(&verdicts);
        let expected =
            "ok      allows\nFAILED  denies\n        expected 0\n        got 1\n1 of 2 passed";
        assert_eq!(text, expected);
    }
}
