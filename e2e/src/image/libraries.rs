//! Decides which shared libraries a program needs, so that an image can hold them.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::command::{command, output};

/// The libraries and the loader of `program`, by the paths under which it looks for them.
pub(super) async fn of(program: &Path) -> Result<Vec<PathBuf>, Error> {
    match output(&mut command("ldd", [program])).await {
        Ok(text) => Ok(parse(&text)),
        Err(Error::Command { output, .. }) if output.contains("not a dynamic executable") => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

fn parse(text: &str) -> Vec<PathBuf> {
    let words = text.lines().filter_map(|line| {
        let right = line.split_once("=>").map_or(line, |(_, right)| right);
        right.split_whitespace().next()
    });
    words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_ldd() {
        let text = "\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)";
        let found: Vec<_> = parse(text).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(parse("\tstatically linked").is_empty());
    }
}
