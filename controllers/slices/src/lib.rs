//! slices.
