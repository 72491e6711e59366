//! The compatibility scenarios CES-01 to CES-34 that concern the core, and the order of writes.

mod order;
mod placement;
mod writes;

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::EndpointStatus;
use cilia_slices::{Action, Event, Outcome, Slices, Write};

/// A core whose writes all succeed at once.
struct Operator {
    slices: Slices,
    now: u64,
    version: u64,
    writes: Vec<Write>,
}

impl Operator {
    fn new(max: usize) -> Self {
        let mut slices = Slices::new(max, 1);
        slices.start();
        slices.confirm();
        Self { slices, now: 0, version: 0, writes: Vec::new() }
    }

    fn add(&mut self, namespace: &str, name: &str) {
        let status = EndpointStatus {
            identity: Some(cilia_crds::ciliumendpoint::EndpointIdentity::default()),
            networking: Some(cilia_crds::ciliumendpoint::networking::EndpointNetworking::default()),
            ..Default::default()
        };
        let event = Event::Endpoint { namespace, name, status: Some(&status) };
        self.slices.apply(event, self.now);
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        self.slices.apply(Event::EndpointGone { namespace, name }, self.now);
    }

    /// Writes the most urgent slice.
    fn write(&mut self) -> Option<Write> {
        let slice = self.slices.next(self.now)?;
        let write = self.slices.plan(&slice)?;
        self.version += 1;
        let outcome = match write.action {
            Action::Delete { .. } => Outcome::Deleted,
            _ => Outcome::Stored {
                uid: write.slice.to_string(),
                resource_version: self.version.to_string(),
            },
        };
        self.slices.settle(&slice, outcome);
        self.writes.push(write.clone());
        Some(write)
    }

    fn settle(&mut self) {
        while self.write().is_some() {}
    }

    /// How many slices there are.
    fn count(&self) -> usize {
        self.slices.names().count()
    }
}

fn entries(write: &Write) -> Vec<&str> {
    let endpoints: &[CoreCiliumEndpoint] = match &write.action {
        Action::Create { endpoints, .. } | Action::Update { endpoints, .. } => endpoints,
        Action::Delete { .. } | Action::Read => &[],
    };
    let mut names: Vec<&str> = endpoints.iter().filter_map(|e| e.name.as_deref()).collect();
    names.sort_unstable();
    names
}
