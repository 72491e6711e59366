//! Tells the container runtime about the plugin, once pods can be connected.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What the configuration is made of (`write-cni-conf-when-ready`, `cni-*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflist {
    /// Where it is written.
    pub path: PathBuf,
    /// The plugin's log file; empty for none.
    pub log_file: String,
    /// The plugin logs everything.
    pub debug: bool,
    /// Other configurations are put out of the way.
    pub exclusive: bool,
    /// `portmap` is chained behind the plugin (`cni-chaining-mode`).
    pub portmap: bool,
}

impl Conflist {
    /// The configuration.
    pub fn content(&self) -> Value {
        let mut plugins = vec![json!({
            "type": "cilium-cni",
            "enable-debug": self.debug,
            "log-file": self.log_file,
        })];
        if self.portmap {
            plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        }
        json!({"cniVersion": "0.3.1", "name": "cilium", "plugins": plugins})
    }

    /// Writes the configuration, whole or not at all; nothing is written that is there already.
    pub fn write(&self) -> io::Result<()> {
        let text = format!("{:#}\n", self.content());
        if fs::read_to_string(&self.path).is_ok_and(|present| present == text) {
            return self.put_others_away();
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        // Runtimes read files of this directory by their endings: a draft must have none of them.
        let draft = directory.join(format!(".{name}.draft"));
        fs::write(&draft, text)?;
        fs::rename(&draft, &self.path)?;
        self.put_others_away()
    }

    fn put_others_away(&self) -> io::Result<()> {
        let Some(directory) = self.path.parent().filter(|_| self.exclusive) else { return Ok(()) };
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let is_config = path
                .extension()
                .is_some_and(|end| end == "conf" || end == "conflist" || end == "json");
            if is_config && path != self.path {
                let mut away = path.clone().into_os_string();
                away.push(".cilium_bak");
                fs::rename(&path, away)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Conflist;

    #[test]
    fn others_are_put_away_and_a_second_write_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("05-cilium.conflist");
        std::fs::write(dir.path().join("10-other.conf"), "{}").unwrap();
        let conflist = Conflist {
            path: path.clone(),
            log_file: "/var/run/cilium/cilium-cni.log".into(),
            debug: false,
            exclusive: true,
            portmap: true,
        };
        conflist.write().unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        conflist.write().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["05-cilium.conflist", "10-other.conf.cilium_bak"]);
        let content = conflist.content();
        assert_eq!(
            (&content["cniVersion"], &content["plugins"][1]["type"]),
            (&"0.3.1".into(), &"portmap".into())
        );
    }
}
