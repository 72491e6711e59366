//! runtime.
