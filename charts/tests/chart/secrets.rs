//! What comes out of Secrets, or into one: certificates of servers, access to other clusters.

use cilia_chart::helm;

use super::{config, find, pods, render};

#[test]
fn the_operators_metrics_are_served_over_tls_if_asked_to() {
    let tls = "operator.prometheus.tls.enabled=true";
    let secret = "operator.prometheus.tls.server.existingSecret=metrics-tls";
    let mutual = "operator.prometheus.tls.server.mtls.enabled=true";
    let folder = "/var/lib/cilium/tls/prometheus";
    let key = |set: &str, key: &str| config(&["--set", set]).get(key).cloned();
    let authorities = "operator-prometheus-tls-client-ca-files";
    assert_eq!(key("debug.enabled=true", "operator-prometheus-enable-tls"), None);
    let set = format!("{tls},{secret}");
    assert_eq!(key(&set, "operator-prometheus-enable-tls"), Some("true".into()));
    let certificate = format!("{folder}/server.crt");
    assert_eq!(key(&set, "operator-prometheus-tls-cert-file"), Some(certificate.into()));
    assert_eq!(key(&set, authorities), None);
    let both = format!("{set},{mutual}");
    assert_eq!(key(&both, authorities), Some(format!("{folder}/client-ca.crt").into()));

    let documents = render(&["--set", &both]);
    let operator = find(&documents, "Deployment", "cilium-operator").expect("operator");
    let pod = &operator.value["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"]["prometheus.io/scheme"], "https");
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "prometheus-tls").expect("volume");
    let secret = &volume["projected"]["sources"][0]["secret"];
    assert_eq!(secret["name"], "metrics-tls");
    let files: Vec<_> = secret["items"].as_array().expect("items").iter().collect();
    let files: Vec<_> = files.iter().map(|file| file["path"].as_str()).collect();
    assert_eq!(files, [Some("server.crt"), Some("server.key"), Some("client-ca.crt")]);

    let error = helm::template(&["--set", tls]).expect_err("a Secret is needed").to_string();
    assert!(error.contains("operator.prometheus.tls.server.existingSecret"), "{error}");
}

#[test]
fn other_clusters_are_told_to_agents_and_operators() {
    let cluster =
        |number: usize, rest: &str| format!("clustermesh.config.clusters[{number}].{rest}");
    let sets = [
        "clustermesh.config.enabled=true".to_owned(),
        cluster(0, "name=east"),
        cluster(0, "ips={10.1.0.1,fd00::1}"),
        cluster(0, "port=32379"),
        cluster(1, "name=west"),
        cluster(1, "address=west.example.org"),
        cluster(1, "tls.cert=Yw=="),
        cluster(1, "tls.key=aw=="),
        cluster(1, "tls.caCert=YQ=="),
    ]
    .join(",");
    let documents = render(&["--set", &sets]);
    let secret = find(&documents, "Secret", "cilium-clustermesh").expect("a Secret");
    let data = secret.value["data"].as_object().expect("data");
    let files: Vec<&str> = data.keys().map(String::as_str).collect();
    assert_eq!(
        files,
        ["east", "west", "west.etcd-client-ca.crt", "west.etcd-client.crt", "west.etcd-client.key"]
    );
    assert_eq!(data["west.etcd-client.key"], "aw==");
    let east = "endpoints:\n- https://east.mesh.cilium.io:32379\ntrusted-ca-file: /var/lib/cilium/clustermesh/common-etcd-client-ca.crt\n";
    let west = "endpoints:\n- https://west.example.org:2379\ntrusted-ca-file: /var/lib/cilium/clustermesh/west.etcd-client-ca.crt\n";
    for (name, want) in [("east", east), ("west", west)] {
        let text = decode(data[name].as_str().expect("a string"));
        assert!(text.starts_with(want), "{name}: {text}");
    }
    for who in ["cilium", "cilium-operator"] {
        let (_, pod) = pods(&documents).into_iter().find(|(name, _)| *name == who).expect(who);
        let aliases = pod["hostAliases"].as_array().expect("aliases");
        assert_eq!(aliases.len(), 2, "{who}");
        assert_eq!(aliases[0]["hostnames"][0], "east.mesh.cilium.io");
        let named = |list: &serde_json::Value| {
            let list = list.as_array().expect("a list").iter();
            list.filter(|one| one["name"] == "clustermesh-secrets").count()
        };
        let mounts = &pod["containers"][0]["volumeMounts"];
        assert_eq!((named(&pod["volumes"]), named(mounts)), (1, 1), "{who}");
    }
    let alone = render(&[]);
    assert!(find(&alone, "Secret", "cilium-clustermesh").is_none());
    let mut operators = pods(&alone).into_iter().filter(|(name, _)| *name == "cilium-operator");
    assert!(operators.all(|(_, pod)| !pod.to_string().contains("clustermesh")));
}

/// Base64, of which the standard library knows nothing.
fn decode(text: &str) -> String {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.trim_end_matches('=').chars().map(|c| digits.find(c).expect("base64"));
    let (mut bytes, mut held, mut count) = (Vec::new(), 0, 0);
    for six in bits {
        (held, count) = (held << 6 | six, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(held >> count & 0xff).expect("a byte"));
        }
    }
    String::from_utf8(bytes).expect("text")
}
