//! Reads single values off a metrics endpoint.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The operator's metrics.
pub(super) struct Metrics {
    address: String,
}

impl Metrics {
    pub(super) fn at(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    /// The value of `cilium_operator_<series>`, if there is one yet.
    pub(super) async fn value(&self, series: &str) -> Option<f64> {
        let text = self.read().await.ok()?;
        let line = text.lines().find(|line| {
            let name = line.strip_prefix("cilium_operator_");
            name.is_some_and(|name| name.replace("_total{", "{").starts_with(series))
        });
        line?.rsplit_once(' ')?.1.parse().ok()
    }

    async fn read(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }
}
