//! What can be wrong with what the user configured.

/// A setting that cannot be used, with what is allowed instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An entry of `labels` is not a rule.
    #[error(
        "parse label rule {rule:?}: {cause}; a rule is [source:][!]regular-expression, \
         such as k8s:app or k8s:!pod-template-hash"
    )]
    Rule {
        /// The entry as it was given.
        rule: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The label-prefix-file is not what it must be.
    #[error(
        "parse label-prefix-file: {cause}; it must be \
         {{\"version\":1,\"valid-prefixes\":[{{\"prefix\":\"...\",\"source\":\"...\",\"invert\":false}}]}}"
    )]
    PrefixFile {
        /// What is wrong with it.
        cause: String,
    },
    /// `max-connected-clusters` is not one of the sizes the number space can be split into.
    #[error("max-connected-clusters {0} is not allowed: it must be 255 or 511")]
    MaxConnectedClusters(u32),
    /// `cluster-id` does not fit.
    #[error("cluster-id {id} is not allowed: it must be 0 to {max} (max-connected-clusters)")]
    ClusterId {
        /// What was configured.
        id: u32,
        /// The largest id allowed.
        max: u32,
    },
}
