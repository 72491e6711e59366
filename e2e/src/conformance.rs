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
    /// The machine lacks what the test needs.
    CannotBeJudged(&'static str),
}

/// The verdicts as a table, failures last, and how many passed.
pub fn summary(verdicts: &[Verdict]) -> String {
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    let mut passed = 0;
    for Verdict { test, end } in verdicts {
        match end {
            End::Passed => {
                passed += 1;
                lines.push(format!("ok      {test}"));
            }
            End::CannotBeJudged(why) => lines.push(format!("-       {test}: {why}")),
            End::Failed(why) => {
                failed.push(format!("FAILED  {test}"));
                failed.extend(why.lines().take(20).map(|line| format!("        {line}")));
            }
        }
    }
    lines.extend(failed);
    lines.push(format!("{passed} of {} passed", verdicts.len()));
    lines.join("\n")
}

/// Whether no test found a fault.
pub fn faultless(verdicts: &[Verdict]) -> bool {
    !verdicts.iter().any(|verdict| matches!(verdict.end, End::Failed(_)))
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
