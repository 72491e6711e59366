//! Decides which of this process' mounts is the BPF file system.

use serde_json::{Value, json};

/// The mount at `root`, or nothing if there is no BPF file system.
pub(super) fn of(root: &str) -> Option<Value> {
    find(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, root)
}

/// In the lines of `mountinfo` (proc(5)); what was mounted last hides what was there before.
fn find(lines: &str, root: &str) -> Option<Value> {
    lines.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let [id, parent, device, of, point, options] = std::array::from_fn(|_| before.next());
        let mut after = after.split(' ');
        let [kind, source, super_options] = std::array::from_fn(|_| after.next());
        if kind != Some("bpf") || point != Some(root) {
            return None;
        }
        Some(json!({"mount-id": id?.parse::<u32>().ok(), "parent-id": parent?.parse::<u32>().ok(), "device": device,
            "root": of, "mount-point": point, "mount-options": options,
            "optional-fields": before.collect::<Vec<_>>(), "type": kind, "source": source,
            "super-options": super_options}))
    })
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_last_one_counts() {
        let lines = "\
40 30 0:32 / /sys/fs/bpf rw,nosuid shared:9 master:1 - bpf bpf rw,mode=700
41 30 0:33 / /sys/fs/bpf rw - bpf none rw
42 30 0:34 / /sys/fs rw - sysfs sysfs rw
43 30 0:35 / /other rw - bpf bpf rw
44 30 broken
";
        let mount = find(lines, "/sys/fs/bpf").expect("a mount");
        assert_eq!((&mount["mount-id"], &mount["source"]), (&41.into(), &"none".into()));
        let first = find(lines.lines().next().expect("a line"), "/sys/fs/bpf").expect("a mount");
        assert_eq!(first["optional-fields"].as_array().map(Vec::len), Some(2));
        assert_eq!(find(lines, "/nowhere"), None);
    }
}
