//! ipam.
