//! `ops/`: each part of it runs here without containers. The commands of `compose.yaml` are started, with the
//! addresses and files of the test in place of those of the containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use test_support::Redis;
use test_support::program::Program;
use test_support::server_process::Server;
use tokio::time::{Instant, sleep};

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");
/// The services that are servers of the shop.
const SERVERS: [&str; 2] = ["seckill-1", "seckill-2"];
/// How long Prometheus may take to have everything.
const PATIENCE: Duration = Duration::from_secs(40);

/// Metrics of what does not happen in the sale of this test. `alerts_test.yaml` makes up numbers for them.
const RARE: [&str; 7] = [
    "sliding_window_counted_twice_total",
    "sliding_window_journal_nearly_full",
    "sliding_window_memory_full_total",
    "sliding_window_memory_nearly_full",
    "sliding_window_missing_keys_total",
    "sliding_window_strikes_lost_total",
    "sliding_window_write_back_lost_total",
];

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Reads a YAML or JSON file, with its anchors and merges resolved.
fn document(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[track_caller]
fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

/// Returns what a command printed, if it ended well.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("tests/install.sh redis-server prometheus installs it");
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}

/// Returns the command of a service, with other texts in place of some of its own.
fn command(service: &str, replaced: &[(&str, &str)]) -> Vec<String> {
    let service = &document("compose.yaml")["services"][service];
    let replace = |part: &Value| {
        replaced.iter().fold(text(part).to_owned(), |part, (from, to)| part.replace(from, to))
    };
    list(&service["command"]).iter().map(replace).collect()
}

/// Returns the rules of `alerts.yaml` that have this field: `alert` or `record`.
fn rules(field: &str) -> Vec<Value> {
    let groups = document("prometheus/alerts.yaml");
    let rules = list(&groups["groups"]).iter().flat_map(|group| list(&group["rules"]));
    rules.filter(|rule| rule.get(field).is_some()).cloned().collect()
}

/// Returns each expression of the dashboard. The variables of Grafana have values.
fn shown() -> BTreeSet<String> {
    let dashboard = document("grafana/dashboards/seckill.json");
    let panels = list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row");
    let targets = panels.flat_map(|panel| list(&panel["targets"]));
    let expression = |target: &Value| {
        text(&target["expr"]).replace("$__rate_interval", "1m").replace("$instance", ".*")
    };
    targets.map(expression).inspect(|it| assert!(!it.contains('$'), "{it}")).collect()
}

/// Returns the metrics that an expression names.
fn metrics(expression: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = expression.split(|letter| !is_name(letter));
    words.filter(|word| word.contains("sliding_window_")).map(str::to_owned).collect()
}

#[test]
fn compose_starts_servers_alike_with_known_flags() {
    let [first, second] = SERVERS.map(|name| command(name, &[]));
    let replaced = [("0.0.0.0:3010", "0.0.0.0:3000"), ("127.0.0.1:3011", "127.0.0.1:3001")];
    assert_ne!(first, second);
    assert_eq!(first, command(SERVERS[1], &replaced));
    let help = |program| printed(Command::new(program).arg("--help"));
    let compose = read("compose.yaml");
    assert_eq!(compose.matches("${").count(), compose.matches(":?").count(), "no default password");
    for port in compose.lines().filter(|line| line.contains("ports: [")) {
        assert_eq!(port.matches("\"127.0.0.1:").count(), port.matches('"').count() / 2, "{port}");
    }
    for (command, help) in
        [(first, help(SECKILL)), (command("prometheus", &[]), help("prometheus"))]
    {
        for flag in command.iter().filter(|part| part.starts_with("--")) {
            let flag = flag.split('=').next().unwrap();
            assert!(
                help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}=")),
                "{flag}"
            );
        }
    }
}

#[test]
fn each_alert_fires_rests_and_is_explained() {
    printed(
        Command::new("promtool").args(["test", "rules"]).arg(path("prometheus/alerts_test.yaml")),
    );
    let alerts: BTreeSet<_> =
        rules("alert").iter().map(|it| text(&it["alert"]).to_owned()).collect();
    let tests = document("prometheus/alerts_test.yaml");
    let (mut fires, mut rests) = (BTreeSet::new(), BTreeSet::new());
    for test in list(&tests["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])) {
        let seen = if test.get("exp_alerts").is_some() { &mut fires } else { &mut rests };
        seen.insert(text(&test["alertname"]).to_owned());
    }
    assert_eq!((&fires, &rests), (&alerts, &alerts));
    let readme = read("README.md");
    let lines = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(lines.map(str::to_owned).collect::<BTreeSet<_>>(), alerts);
}

#[test]
fn every_metric_is_documented_and_grafana_finds_the_dashboard() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/lib.rs");
    let documented = fs::read_to_string(root).unwrap();
    let rules = rules("alert").into_iter().chain(rules("record"));
    let rules = rules.map(|rule| text(&rule["expr"]).to_owned());
    let names: BTreeSet<_> = rules.chain(shown()).flat_map(|it| metrics(&it)).collect();
    for name in names.iter().filter(|name| !name.contains(':')) {
        let is_known = ["", "_bucket", "_sum", "_count"].iter().any(|end| {
            let name = name.strip_suffix(end).unwrap_or("");
            documented.contains(&format!("| `{name}` |"))
        });
        assert!(is_known, "{name} is not a metric of the crate");
    }
    let source = &document("grafana/provisioning/datasources/prometheus.yaml")["datasources"][0];
    assert_eq!(source["uid"], "prometheus");
    let dashboard = document("grafana/dashboards/seckill.json");
    for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"]["uid"], "prometheus", "{}", panel["title"]);
    }
    let folder = document("grafana/provisioning/dashboards/seckill.yaml");
    let folder = text(&folder["providers"][0]["options"]["path"]);
    assert!(read("compose.yaml").contains(&format!("./grafana/dashboards:{folder}:ro")));
}

/// Starts a server with the command of a service.
fn server(service: &str, redis: &str, token: &str) -> Server {
    let replaced = [
        ("127.0.0.1:3001", "127.0.0.1:0"),
        ("127.0.0.1:3011", "127.0.0.1:0"),
        ("/run/secrets/admin-token", token),
        ("/run/secrets/scrape-token", token),
        // A full quota is one strike until its window has passed. So a ban takes seconds.
        ("5/60s", "1/2s"),
    ];
    let command = command(service, &replaced);
    assert_eq!(command[0], "--listen");
    let flags: Vec<_> = command[2..].iter().map(String::as_str).collect();
    Server::start_in(SECKILL, &[("SECKILL_REDIS", redis)], &flags)
}

/// Sends orders of a few users to both servers until it is dropped.
async fn load(servers: &[Server; 2]) {
    for number in 0_u64.. {
        for server in servers {
            let sku = if number.is_multiple_of(2) { "iphone" } else { "pixel" };
            let path = format!("/seckill/{sku}/orders?user=user-{}", number % 20);
            server.spawn(server.request("POST", &path));
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// A Prometheus that scrapes two servers.
struct Prometheus {
    url: String,
    _program: Program,
}

impl Prometheus {
    /// Starts it with the command of `compose.yaml` and its configuration.
    async fn start(servers: &[Server; 2], folder: &Path, token: &str) -> Self {
        fs::copy(path("prometheus/alerts.yaml"), folder.join("alerts.yaml")).unwrap();
        let [first, second] = servers.each_ref().map(|server| {
            server.admin_url.as_deref().unwrap().trim_start_matches("http://").to_owned()
        });
        let replaced = [
            ("127.0.0.1:3001", first.as_str()),
            ("127.0.0.1:3011", &second),
            ("/run/secrets/scrape-token", token),
            ("interval: 5s", "interval: 500ms"),
        ];
        let config =
            replaced.iter().fold(read("prometheus/prometheus.yaml"), |config, (from, to)| {
                assert!(config.contains(from), "{from} is not in {config}");
                config.replace(from, to)
            });
        fs::write(folder.join("prometheus.yaml"), config).unwrap();
        let data = format!("={}", folder.join("data").display());
        let folder = folder.to_str().unwrap();
        let replaced =
            [("/etc/prometheus", folder), ("=/prometheus", &data), ("0.0.0.0:9090", "127.0.0.1:0")];
        let program =
            Program::start(Command::new("prometheus").args(command("prometheus", &replaced)));
        let url = |logs: String| {
            let line = logs.lines().find(|line| line.contains("\"Listening on\""))?.to_owned();
            Some(format!("http://{}", line.split("address=").nth(1)?.split(' ').next()?))
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(url) = url(program.logs()) {
                return Self { url, _program: program };
            }
            assert!(Instant::now() < deadline, "it does not listen: {}", program.logs());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until each of these expressions has a number, and not the quantile of nothing.
    async fn has_data(&self, mut expressions: BTreeSet<String>) {
        let is_number = |series: &Value| series["value"][1].as_str().is_some_and(|it| it != "NaN");
        let deadline = Instant::now() + PATIENCE;
        loop {
            expressions.retain(|expression| {
                let mut query = Command::new("promtool");
                query.args(["query", "instant", "--format=json", &self.url, expression]);
                let series: Vec<Value> = serde_json::from_str(&printed(&mut query)).unwrap();
                !series.iter().any(is_number)
            });
            if expressions.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "no data: {expressions:#?}");
            sleep(Duration::from_millis(500)).await;
        }
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "metrics"), ignore = "without `--features metrics` there are no metrics")]
async fn prometheus_has_what_is_shown_and_alerted() {
    // The test talks to Redis without the password.
    let flags = command("redis", &[]).split_off(3);
    let redis = Redis::start_with(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let files = tempfile::tempdir().unwrap();
    let token = files.path().join("token");
    fs::write(&token, "0123456789abcdef-the-token").unwrap();
    let token = token.to_str().unwrap();
    let servers = SERVERS.map(|service| server(service, &redis.url(), token));
    let prometheus = Prometheus::start(&servers, files.path(), token).await;

    // An expression such as `x or vector(0)` has a number also if there is no `x`.
    let alerted = rules("alert").into_iter().chain(rules("record"));
    let alerted = alerted.flat_map(|rule| metrics(text(&rule["expr"])));
    let needed = shown().into_iter().flat_map(|it| metrics(&it).into_iter().chain([it]));
    let is_rare = |it: &String| RARE.iter().any(|rare| it.contains(rare));
    let needed = needed.chain(alerted).filter(|it| !is_rare(it)).collect();
    let look = async {
        sleep(Duration::from_secs(2)).await;
        redis.signal("STOP");
        sleep(Duration::from_secs(4)).await;
        redis.signal("CONT");
        prometheus.has_data(needed).await;
    };
    tokio::select! {
        () = look => {}
        () = load(&servers) => {}
    }
}
