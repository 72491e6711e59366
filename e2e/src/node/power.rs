//! Decides what a node loses with its power, and what it finds when that is back.
//!
//! All that runs on it is gone at once, and nothing on the node can do anything about it; with it go its network
//! devices, its eBPF programs and maps, and everything below `/run`. What is on its disk stays: `/etc`, `/opt`,
//! `/var/lib` and `/var/log`.

use super::{Node, remove};
use crate::cgroup::Cgroups;
use crate::command::output;
use crate::control_plane::ControlPlane;
use crate::pins;
use crate::teardown::unmount;
use crate::tools::Tools;
use crate::{Error, Options};

impl Node {
    /// Whether it has power.
    pub fn runs(&self, cgroups: &Cgroups) -> bool {
        !self.place.pids(cgroups, "init").is_empty()
    }

    /// Takes the power away; a node without is no error.
    pub async fn power_off(&self, cgroups: &Cgroups) -> Result<(), Error> {
        // The cable first: nobody shall be told what ends when.
        let bridge = ControlPlane::new(&self.layout).place;
        if self.cable_is_there(&bridge).await {
            output(&mut bridge.command(&["ip", "link", "del", &self.name()])).await?;
        }
        let cgroup = self.layout.node_cgroup(self.index);
        cgroups.kill(&cgroup).await?;
        let pins =
            ["net", "mnt", "uts", "pid"].map(|kind| self.layout.node_namespace(self.index, kind));
        pins::end_holders(&pins).await?;
        for pin in &pins {
            unmount(pin).await?;
            remove(pin)?;
        }
        cgroups.remove(&cgroup).await
    }

    /// Gives the power back. Returns once the container runtime answers; pods come as kubelet gets to them.
    pub async fn power_on(
        &self,
        cgroups: &Cgroups,
        tools: &Tools,
        options: &Options,
    ) -> Result<(), Error> {
        if self.runs(cgroups) {
            return Err(Error::Invalid(format!("node {} runs already", self.name())));
        }
        self.boot(cgroups, options).await?;
        self.start_runtime(cgroups).await?;
        self.start_kubelet(cgroups, tools, options)
    }

    async fn cable_is_there(&self, bridge: &crate::Place) -> bool {
        output(&mut bridge.command(&["ip", "link", "show", &self.name()])).await.is_ok()
    }
}
