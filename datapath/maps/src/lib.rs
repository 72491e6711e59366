#![no_std]
//! Key and value types of every eBPF map, shared by the kernel and the user side.
