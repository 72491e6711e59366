use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use futures::FutureExt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::{Command, LONGEST, builtin, serve, words};

#[test]
fn lines_are_words() {
    let cases: &[(&str, Result<&[&str], ()>)] = &[
        ("", Ok(&[])),
        ("  kvstore/list  cilium/state ", Ok(&["kvstore/list", "cilium/state"])),
        ("a 'b c' \"d 'e'\" ''", Ok(&["a", "b c", "d 'e'", ""])),
        ("a'b'c", Ok(&["abc"])),
        ("a 'b", Err(())),
    ];
    for (line, want) in cases {
        let got = words(line).map_err(|_| ());
        let want = want.map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(got, want, "{line:?}");
    }
}

#[tokio::test]
async fn answers_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/shell.sock");
    let stop = CancellationToken::new();
    let config = Config::load(crate::config::flags(), ["--debug".to_owned()], []).unwrap();
    let mut commands = builtin(&config, &Metrics::new("cilium_operator"));
    commands.push(Command {
        name: "kvstore/list",
        arguments: "[prefix]",
        about: "show keys",
        run: Arc::new(|words| std::future::ready(Err(format!("no keys below {words:?}"))).boxed()),
    });
    // A socket that a killed operator left is in nobody's way.
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    serve(&path, commands, &stop);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let ask = async |lines: &str| {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(lines.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(ask("version\n").await, format!("{version}\n<<end>>\n"));
    assert_eq!(ask("# nothing\n\n").await, "<<end>>\n<<end>>\n");
    assert_eq!(
        ask("kvstore/list a 'b c'\nversion\n").await,
        format!("ERROR: no keys below [\"a\", \"b c\"]\n<<end>>\n{version}\n<<end>>\n")
    );
    assert_eq!(ask("debug").await, "ERROR: unknown command \"debug\": see help\n<<end>>\n");
    assert_eq!(ask("config debug\n").await, "debug: true\t# the command line\n<<end>>\n");
    let metrics = ask("metrics process_open\n").await;
    assert!(metrics.starts_with("cilium_operator_process_open_fds "), "{metrics}");
    assert!(ask("hive\n").await.contains("endpoint_gc\n"));
    let help = ask("help\n").await;
    assert!(help.contains("kvstore/list [prefix]\n\tshow keys\n"), "{help}");
    assert_eq!(ask("help kvs\n").await, "kvstore/list [prefix]\n\tshow keys\n<<end>>\n");
    let long = ask(&"x".repeat(usize::try_from(LONGEST).unwrap() + 1)).await;
    assert!(long.starts_with("ERROR: a line is at most"), "{long}");
    stop.cancel();
    cilia_runtime::testing::eventually(async || {
        if path.exists() { Err("the socket is still there") } else { Ok(()) }
    })
    .await;
}
