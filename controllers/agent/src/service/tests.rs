//! Services on a real API server, and what the kernel's maps hold then.

use std::sync::Arc;

use cilia_loader::testing::BpfFs;
use cilia_loader::{Datapath, NodeConfig, ServiceKey};
use cilia_runtime::testing::{ApiServer, eventually};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{GATE, Services};
use crate::device::testing::in_private_node;
use crate::readiness::Readiness;

/// The backends behind a frontend, sorted; nothing if there is no frontend.
fn behind(datapath: &Datapath, address: &str, port: u16, proto: u8) -> Option<Vec<String>> {
    let key = |slot| ServiceKey { address: address.parse().unwrap(), port, proto, slot, scope: 0 };
    let backend = |slot| {
        let entry = datapath.services().get(&key(slot)).unwrap()?;
        let backend = datapath.backends().get(&entry.backend).unwrap()?;
        Some(format!("{}:{}", backend.address, backend.port))
    };
    // What changes while it is looked at is looked at again.
    for _ in 0..100 {
        let frontend = datapath.services().get(&key(0)).unwrap()?;
        let backends: Option<Vec<String>> = (1..=frontend.count).map(backend).collect();
        if let (Some(mut backends), Some(_)) =
            (backends, datapath.rev_nat().get(&frontend.rev_nat).unwrap())
        {
            backends.sort();
            return Some(backends);
        }
    }
    panic!("{address}:{port} lacks a slot, a backend or a way back");
}

async fn start(server: &ApiServer, datapath: &Arc<Datapath>) -> CancellationToken {
    let (stop, readiness) = (CancellationToken::new(), Readiness::new(&[GATE]));
    let services = Services::default();
    let running = services.run(
        server.client(),
        "n1".into(),
        Arc::clone(datapath),
        readiness.clone(),
        stop.clone(),
    );
    tokio::spawn(running);
    eventually(|| {
        std::future::ready(if readiness.closed().is_empty() {
            Ok(())
        } else {
            Err(readiness.closed())
        })
    })
    .await;
    stop
}

#[test]
fn maps_follow_services_and_outlive_the_agent() {
    in_private_node(|| async {
        let (bpf, server) = (BpfFs::mount(), ApiServer::start().await);
        let datapath = Arc::new(bpf.load(NodeConfig::default()));
        let services: Api<Service> = Api::namespaced(server.client(), "default");
        let slices: Api<EndpointSlice> = Api::namespaced(server.client(), "default");
        let web = json!({"metadata": {"name": "web"}, "spec": {"ports": [
            {"name": "http", "port": 80, "targetPort": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}});
        let web = serde_json::from_value(web).unwrap();
        let web: Service = services.create(&PostParams::default(), &web).await.unwrap();
        let frontend = web.spec.unwrap().cluster_ip.unwrap();
        let slice = |name: &str, addresses: &[&str]| {
            let endpoint =
                |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}});
            let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()});
            serde_json::from_value::<EndpointSlice>(slice).unwrap()
        };
        slices
            .create(&PostParams::default(), &slice("a", &["10.0.1.1", "10.0.1.2"]))
            .await
            .unwrap();
        let stop = start(&server, &datapath).await;
        let is = async |port, proto, want: Option<&[&str]>| {
            let want = want.map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
            eventually(|| {
                let got = behind(&datapath, &frontend, port, proto);
                std::future::ready(if got == want { Ok(()) } else { Err(got) })
            })
            .await;
        };
        is(80, 6, Some(&["10.0.1.1:8080", "10.0.1.2:8080"])).await;
        is(53, 17, Some(&[])).await;

        // A restart finds its identifiers again, and what changed meanwhile.
        stop.cancel();
        let before = datapath.backends().entries().unwrap();
        slices.create(&PostParams::default(), &slice("b", &["10.0.1.3"])).await.unwrap();
        let stop = start(&server, &datapath).await;
        is(80, 6, Some(&["10.0.1.1:8080", "10.0.1.2:8080", "10.0.1.3:8080"])).await;
        let after = datapath.backends().entries().unwrap();
        assert!(before.iter().all(|entry| after.contains(entry)), "{before:?} {after:?}");

        slices.delete("a", &DeleteParams::default()).await.unwrap();
        is(80, 6, Some(&["10.0.1.3:8080"])).await;
        services.delete("web", &DeleteParams::default()).await.unwrap();
        is(80, 6, None).await;
        eventually(|| {
            let left = datapath.backends().entries().unwrap().len()
                + datapath
                    .rev_nat()
                    .entries()
                    .unwrap()
                    .iter()
                    .filter(|(_, f)| f.address.to_string() == frontend)
                    .count();
            std::future::ready(if left <= 1 { Ok(()) } else { Err(left) })
        })
        .await;
        stop.cancel();
    });
}
