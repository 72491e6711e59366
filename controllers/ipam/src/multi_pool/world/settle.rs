//! Says whether the cluster comes to rest when nothing goes wrong any more.

use super::{NODES, RANGES, World, Write, put};

impl World {
    /// Without faults, everybody soon has what can be had and nobody writes any more.
    pub(super) fn settle(&mut self, context: &str) {
        while !self.writes.is_empty() {
            self.deliver();
        }
        self.pools.insert("red", RANGES[0]);
        put(&mut self.operator.core, "red", RANGES[0]);
        self.tell_agents();
        self.clock += 1000;
        for round in 0..30 {
            let before = self.api.clone();
            for node in NODES {
                for looks in 0..2 {
                    let object = self.api[node].clone();
                    let agent = self.agents.get_mut(node).expect("nodes stay");
                    agent.seen = object;
                    agent.pools.observe(&agent.seen.version.to_string(), &agent.seen.allocated);
                    let wish = agent.pools.wish(&agent.seen.requested, self.clock, true);
                    let write = Write {
                        node,
                        version: agent.seen.version,
                        requested: (wish.requested != agent.seen.requested)
                            .then_some(wish.requested),
                        allocated: wish.allocated.filter(|wish| *wish != agent.seen.allocated),
                        ..Write::default()
                    };
                    if write.requested.is_some() || write.allocated.is_some() {
                        self.carry_out(&write);
                    }
                    self.operator.seen.insert(node, self.api[node].clone());
                    let answer = self.operator.ask(node);
                    if let Some(write) = answer.and_then(|one| self.operator.write(node, one)) {
                        self.carry_out(&write);
                    }
                    self.check(&format!("{context}, settling {round} {looks}"));
                }
            }
            if before == self.api && round > 2 {
                assert!(before.values().all(|node| !node.fenced), "{context}: a mark is left");
                return;
            }
        }
        panic!("{context}: it does not come to rest: {:?}", self.api);
    }
}
