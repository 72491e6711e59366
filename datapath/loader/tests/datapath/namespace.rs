//! Network namespaces without names: they go when the test goes, however it goes.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use nix::sched::{CloneFlags, setns, unshare};

use crate::cluster::LIMIT;

/// A network namespace.
pub(crate) struct Namespace {
    file: File,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self { file: made.join().unwrap() };
        namespace.ip(&["link set lo up"]);
        namespace
    }

    /// Runs a closure on a thread inside.
    pub(crate) fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let running = scope.spawn(|| {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
                inside()
            });
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` inside, once for all of these lines.
    pub(crate) fn ip<S: AsRef<str>>(&self, lines: &[S]) {
        let text = lines.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("\n");
        let output = self.run(|| {
            let mut ip = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            ip.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            ip.wait_with_output().unwrap()
        });
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until a device carries packets: the kernel notices that in its own time.
    pub(crate) fn wait_up(&self, device: &str) {
        let end = Instant::now() + LIMIT;
        while !self.command(&format!("ip -o link show dev {device}")).contains("state UP") {
            assert!(Instant::now() < end, "{device} is not up within {LIMIT:?}");
        }
    }

    /// Runs a command line inside and gives its output.
    pub(crate) fn command(&self, line: &str) -> String {
        let (ok, output) = self.try_command(line);
        assert!(ok, "{line}: {output}");
        output
    }

    /// Runs a command line inside; says whether it succeeded and what it wrote.
    pub(crate) fn try_command(&self, line: &str) -> (bool, String) {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap();
        let output = self.run(|| Command::new(program).args(words).output().unwrap());
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text.into_owned())
    }

    /// A path by which `ip link set netns` finds this namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Sets a sysctl below `/proc/sys/net`.
    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// A device's index and MAC.
    pub(crate) fn device(&self, name: &str) -> (u32, [u8; 6]) {
        let line = self.command(&format!("ip -o link show dev {name}"));
        let index = line.split(':').next().unwrap().trim().parse().unwrap();
        let mac = line.split("link/ether ").nth(1).unwrap().split_whitespace().next().unwrap();
        let mut bytes = [0; 6];
        for (to, hex) in bytes.iter_mut().zip(mac.split(':')) {
            *to = u8::from_str_radix(hex, 16).unwrap();
        }
        (index, bytes)
    }
}
