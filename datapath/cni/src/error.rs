//! What can go wrong, and the code by which the CNI specification and Cilium know it.

use crate::version::SUPPORTED;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The configuration is of a version that is not spoken.
    #[error("cniVersion {got:?} is not supported; supported are {}", SUPPORTED.join(", "))]
    Version { got: String },
    /// The request needs a newer configuration.
    #[error("{verb} needs cniVersion {needs} or newer, the network configuration has {got}")]
    TooOld { verb: &'static str, needs: &'static str, got: &'static str },
    /// A field asks for something that does not exist here.
    #[error("network configuration: field {field:?}: {reason}")]
    Unsupported { field: &'static str, reason: String },
    /// An environment variable is missing or wrong.
    #[error("environment variable {variable}: {reason}")]
    Environment { variable: &'static str, reason: String },
    /// The system refused.
    #[error("{operation} {object}: {cause}")]
    Io { operation: &'static str, object: String, cause: String },
    /// The input is no JSON.
    #[error("network configuration: not a JSON object: {0}")]
    Decode(String),
    /// A field of the configuration is wrong.
    #[error("network configuration: field {field:?}: {reason}")]
    Field { field: String, reason: String },
    /// The agent is not there.
    #[error(
        "cilium agent of this node not reachable at {socket}{waited}: {cause}; is its pod running?"
    )]
    AgentAway { verb: &'static str, socket: String, waited: String, cause: String },
    /// The agent broke off or answered what is no answer.
    #[error("cilium agent: {0}")]
    AgentAnswer(String),
    /// The agent refused, in its own words.
    #[error("{msg}")]
    Refused { code: u32, msg: String, details: String },
}

impl Error {
    /// A failed system call.
    pub(crate) fn io(
        operation: &'static str,
        object: impl Into<String>,
        cause: &std::io::Error,
    ) -> Self {
        Self::Io { operation, object: object.into(), cause: cause.to_string() }
    }

    /// The code of the CNI specification, or Cilium's.
    pub(crate) fn code(&self) -> u32 {
        match self {
            Self::Version { .. } | Self::TooOld { .. } => 1,
            Self::Unsupported { .. } => 2,
            Self::Environment { .. } => 4,
            Self::Io { .. } => 5,
            Self::Decode(_) => 6,
            Self::Field { .. } => 7,
            Self::AgentAway { verb: "STATUS", .. } => 50,
            Self::AgentAway { .. } | Self::AgentAnswer(_) => 11,
            Self::Refused { code, .. } => *code,
        }
    }

    /// The error as the runtime reads it.
    pub(crate) fn into_answer(self, version: &str) -> String {
        let mut answer = serde_json::json!({
            "cniVersion": version,
            "code": self.code(),
            "msg": self.to_string(),
        });
        if let Self::Refused { details, .. } = self
            && !details.is_empty()
        {
            answer["details"] = details.into();
        }
        answer.to_string()
    }
}
