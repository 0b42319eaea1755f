//! [`Prometheus`]: a process that scrapes two servers.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use test_support::program::Program;
use test_support::server_process::Server;
use tokio::time::{Instant, sleep};

use crate::{compose, path, printed, read, tool};

/// How long Prometheus may take to have everything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running Prometheus, on a port of its own.
pub(crate) struct Prometheus {
    url: String,
    _program: Program,
    _files: TempDir,
}

impl Prometheus {
    /// Starts it with the command of `compose.yaml` and its configuration, which scrape these servers.
    pub(crate) async fn start(servers: &[Server; 2], token_file: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (folder, data) = (files.path().join("etc"), files.path().join("data"));
        fs::create_dir(&folder).unwrap();
        fs::copy(path("prometheus/alerts.yaml"), folder.join("alerts.yaml")).unwrap();
        let [first, second] = servers.each_ref().map(|server| {
            server.admin_url.as_deref().unwrap().trim_start_matches("http://").to_owned()
        });
        let config = [
            ("127.0.0.1:3001", first.as_str()),
            ("127.0.0.1:3011", &second),
            ("/run/secrets/scrape-token", token_file),
            ("interval: 5s", "interval: 500ms"),
        ]
        .iter()
        .fold(read("prometheus/prometheus.yaml"), |config, (from, to)| {
            assert!(config.contains(from), "{from} is not in {config}");
            config.replace(from, to)
        });
        fs::write(folder.join("prometheus.yaml"), config).unwrap();

        let replaced = [
            ("/etc/prometheus", folder.to_str().unwrap()),
            ("=/prometheus", &format!("={}", data.display())),
            ("0.0.0.0:9090", "127.0.0.1:0"),
        ];
        let arguments = compose::command("prometheus", &replaced);
        let program = Program::start(tool("prometheus").args(&arguments));
        let url = |logs: String| {
            let line = logs.lines().find(|line| line.contains("\"Listening on\""))?.to_owned();
            Some(format!("http://{}", line.split("address=").nth(1)?.split(' ').next()?))
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(url) = url(program.logs()) {
                return Self { url, _program: program, _files: files };
            }
            assert!(Instant::now() < deadline, "it does not listen: {}", program.logs());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Evaluates an expression now. The result is a list of series.
    pub(crate) fn query(&self, expression: &str) -> Vec<Value> {
        let mut query = tool("promtool");
        query.args(["query", "instant", "--format=json", &self.url, expression]);
        serde_json::from_str(&printed(&mut query)).unwrap()
    }

    /// Waits until each of these expressions has a number.
    pub(crate) async fn has_data(&self, mut expressions: BTreeSet<String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            expressions.retain(|it| !self.query(it).iter().any(is_number));
            if expressions.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "no data: {expressions:#?}");
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Tells whether a series has a number, and not the quantile of nothing.
fn is_number(series: &Value) -> bool {
    series["value"][1].as_str().is_some_and(|value| value != "NaN")
}
