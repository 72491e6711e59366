//! The plugin's program; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cilia_cni::main()
}
