use super::{Config, Flags, Origin};
use std::fs;

fn load(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
    let env = env.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string()));
    Config::load(Flags::operator(), args.iter().map(ToString::to_string), env)
        .map_err(|e| e.to_string())
}

#[test]
fn the_nearest_source_wins() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.yaml");
    fs::write(&file, "cluster-name: file\ncluster-id: 3\nnodes-gc-interval: 7s\n").unwrap();
    let dir = folder.path().join("dir");
    fs::create_dir(&dir).unwrap();
    for (key, text) in [
        ("cluster-name", "dir"),
        ("cluster-id", "4"),
        ("nodes-gc-interval", "8s"),
        ("ipam", "multi-pool"),
    ] {
        fs::write(dir.join(key), text).unwrap();
    }
    let config_arg = format!("--config={}", file.display());
    let dir_arg = format!("--config-dir={}", dir.display());
    let args = ["--cluster-name=flag", &config_arg, &dir_arg];
    let env = [("CILIUM_CLUSTER_NAME", "env"), ("CILIUM_CLUSTER_ID", "2"), ("CILIUM_IPAM", "")];
    let config = load(&args, &env).unwrap();

    assert_eq!(
        (config.string("cluster-name"), config.origin("cluster-name")),
        ("flag", Origin::Flag)
    );
    let variable = Origin::Environment("CILIUM_CLUSTER_ID".into());
    assert_eq!((config.uint("cluster-id"), config.origin("cluster-id")), (2, variable));
    let wanted = Origin::ConfigFile(file);
    assert_eq!(
        (config.duration("nodes-gc-interval").as_secs(), config.origin("nodes-gc-interval")),
        (7, wanted)
    );
    assert_eq!(
        (config.string("ipam"), config.origin("ipam")),
        ("multi-pool", Origin::ConfigDir(dir.join("ipam")))
    );
    assert_eq!(config.origin("debug"), Origin::Default);
    assert_eq!(config.warnings(), [""; 0]);
}

#[test]
fn lists_and_maps_from_every_source() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ciliumd.yaml");
    fs::write(&file, "subnet-ids-filter: [a, \"b,c\"]\nlog-opt:\n  format: json\ncluster-pool-ipv4-mask-size: 26\n").unwrap();
    let home = folder.path().to_str().unwrap();
    let args = ["--cluster-pool-ipv4-cidr=10.0.0.0/8", "--cluster-pool-ipv4-cidr", "11.0.0.0/8"];
    let config =
        load(&args, &[("HOME", home), ("CILIUM_KVSTORE_OPT", r#"{"etcd.config":"/x"}"#)]).unwrap();
    assert_eq!(config.strings("cluster-pool-ipv4-cidr"), ["10.0.0.0/8", "11.0.0.0/8"]);
    assert_eq!(config.strings("subnet-ids-filter"), ["a", "b,c"]);
    assert_eq!(config.map("log-opt")["format"], "json");
    assert_eq!(config.map("kvstore-opt")["etcd.config"], "/x");
    assert_eq!(config.int("cluster-pool-ipv4-mask-size"), 26);
}

#[test]
fn a_mounted_configmap() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("..data_1");
    fs::create_dir(&data).unwrap();
    let entries = [
        ("debug", "true\n"),
        ("bpf-lb-map-max", "nonsense"),
        ("no-such-key", "1"),
        ("cnp-status-update-interval", "1"),
    ];
    for (key, text) in entries {
        fs::write(data.join(key), text).unwrap();
        std::os::unix::fs::symlink(format!("..data/{key}"), folder.path().join(key)).unwrap();
    }
    std::os::unix::fs::symlink("..data_1", folder.path().join("..data")).unwrap();
    let config = load(&["--config-dir", folder.path().to_str().unwrap()], &[]).unwrap();
    assert!(config.bool("debug"));
    let path = |key: &str| folder.path().join(key).display().to_string();
    assert_eq!(
        config.warnings(),
        [
            format!(
                "cnp-status-update-interval, set by {}, is not part of this release: ignored",
                path("cnp-status-update-interval")
            ),
            format!("no-such-key, set by {}, is unknown: ignored", path("no-such-key")),
        ]
    );
}

#[test]
fn bad_values_name_key_source_value_and_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    fs::write(folder.path().join("nodes-gc-interval"), "5").unwrap();
    let bad_dir = format!(
        "nodes-gc-interval: \"5\", set by {dir}/nodes-gc-interval, is not allowed: a duration such as 500ms, 30s or 1h15m"
    );
    assert_eq!(load(&["--config-dir", dir], &[]).unwrap_err(), bad_dir);
    assert_eq!(
        load(&[], &[("CILIUM_ENABLE_K8S", "maybe")]).unwrap_err(),
        "enable-k8s: \"maybe\", set by environment variable CILIUM_ENABLE_K8S, is not allowed: true or false"
    );
    let missing = load(&["--config=/no/such/file"], &[]).unwrap_err();
    assert!(missing.starts_with("read /no/such/file: "), "{missing}");
    let config = load(&["--ipam=eni"], &[]).unwrap();
    assert_eq!(
        config.one_of("ipam", &["cluster-pool", "multi-pool"]).unwrap_err().to_string(),
        "ipam: \"eni\", set by the command line, is not allowed: one of cluster-pool, multi-pool"
    );
}

#[test]
fn a_file_that_is_no_map_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    fs::write(&file, "- a\n- b\n").unwrap();
    let error = load(&["--config", file.to_str().unwrap()], &[]).unwrap_err();
    assert!(error.starts_with(&format!("parse config file {}: ", file.display())), "{error}");
    fs::write(&file, "log-opt: {a: [1]}\n").unwrap();
    let error = load(&["--config", file.to_str().unwrap()], &[]).unwrap_err();
    assert!(error.ends_with("log-opt: a list or map inside a list or map"), "{error}");
}
