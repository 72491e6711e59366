//! What is wrong with a policy, said so that its author can find it.

use std::fmt;

/// A policy that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {fault}")]
pub struct Error {
    /// Where: a path such as `spec.ingress[0].toPorts[1].ports[0].port`.
    pub field: String,
    /// What is wrong there and what would be right.
    pub fault: String,
}

impl Error {
    /// A fault of a field.
    pub fn new(field: impl fmt::Display, fault: impl Into<String>) -> Self {
        Self { field: field.to_string(), fault: fault.into() }
    }
}

/// Something in a valid policy that its author should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where.
    pub field: String,
    /// What.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.text)
    }
}
