//! `ops/`: each part of it runs here without containers. The commands of `compose.yaml` are started, with the
//! addresses and files of the test in place of those of the containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use test_support::server_process::{Server, TOKEN};
use test_support::{Redis, eventually};

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");
/// The services that are servers of the shop.
const SERVERS: [&str; 2] = ["seckill-1", "seckill-2"];

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

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
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

/// Returns a field of each rule of `alerts.yaml` that has it.
fn rules(field: &str) -> BTreeSet<String> {
    let groups = document("prometheus/alerts.yaml");
    let rules = list(&groups["groups"]).iter().flat_map(|group| list(&group["rules"]));
    rules.filter_map(|rule| Some(rule.get(field)?.as_str()?.to_owned())).collect()
}

/// Returns each expression of the dashboard. The variables of Grafana have values. A figure of a server that is gone is no
/// figure, and an operator has to see that it is gone.
fn shown() -> BTreeSet<String> {
    let dashboard = document("grafana/dashboards/seckill.json");
    let mut shown = BTreeSet::new();
    for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
        for target in list(&panel["targets"]) {
            assert!(panel["type"] != "stat" || target["instant"] == true, "{target}");
            let expr = text(&target["expr"]).replace("$__rate_interval", "1m");
            shown.insert(expr.replace("$instance", ".*"));
        }
    }
    assert!(shown.iter().all(|it| !it.contains('$')), "{shown:?}");
    assert!(shown.iter().any(|it| it.contains("up{job=\"seckill\"")), "{shown:?}");
    shown
}

/// Returns the metrics that an expression names.
fn metrics(expression: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = expression.split(|letter| !is_name(letter));
    let is_ours = |word: &&str| word.contains("sliding_window_") || word.starts_with("seckill_");
    words.filter(is_ours).map(str::to_owned).collect()
}

#[tokio::test]
async fn compose_starts_servers_alike_with_known_flags() {
    let [first, second] = SERVERS.map(|name| command(name, &[]));
    let replaced = [("0.0.0.0:3010", "0.0.0.0:3000"), ("127.0.0.1:3011", "127.0.0.1:3001")];
    assert_ne!(first, second);
    assert_eq!(first, command(SERVERS[1], &replaced));
    let compose = read("compose.yaml");
    assert_eq!(compose.matches("${").count(), compose.matches(":?").count(), "no default password");
    // Redis is in a network with the servers alone.
    let services = document("compose.yaml")["services"].as_object().unwrap().clone();
    let mut near = services.iter().filter(|(_, it)| it["networks"].to_string().contains("redis"));
    assert!(near.by_ref().map(|(name, _)| name).eq(["machine", "redis"]));
    assert_eq!(document("compose.yaml")["networks"]["redis"]["internal"], true);
    for port in compose.lines().filter(|line| line.contains("ports: [")) {
        assert_eq!(port.matches("\"127.0.0.1:").count(), port.matches('"').count() / 2, "{port}");
    }
    // The test talks to Redis without the password.
    let flags = command("redis", &[]).split_off(3);
    let redis = Redis::start_with(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let url = redis.url();
    let environment = [("SECKILL_REDIS", url.as_str()), ("SECKILL_ADMIN_TOKEN", TOKEN)];
    let free_port = [("127.0.0.1:3001", "127.0.0.1:0"), ("127.0.0.1:3011", "127.0.0.1:0")];
    for flags in SERVERS.map(|name| command(name, &free_port)) {
        assert_eq!(flags[0], "--listen");
        let flags: Vec<_> = flags[2..].iter().map(String::as_str).collect();
        let server = Server::start_in(SECKILL, &environment, &flags);
        eventually("ready", async || server.get("/readyz").await.status == 200).await;
    }
    let help = printed(Command::new("prometheus").arg("--help"));
    for flag in command("prometheus", &[]) {
        let flag = flag.split('=').next().unwrap();
        assert!(help.contains(&format!("{flag}=")), "{flag}");
    }
}

#[test]
fn each_alert_fires_rests_and_is_explained() {
    let tests = path("prometheus/alerts_test.yaml");
    printed(Command::new("promtool").args(["test", "rules"]).arg(tests));
    let alerts = rules("alert");
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

/// `it/admin.rs` sees those of the sale, and `tests/project/metrics.rs` holds the guide to what is reported.
#[test]
fn what_is_shown_and_alerted_is_a_metric() {
    let guide = include_str!("../../../src/docs/watching.md");
    let mut known = metrics(&[guide, include_str!("it/admin.rs")].concat());
    known.extend(rules("record"));
    let needed: BTreeSet<_> =
        rules("expr").iter().chain(&shown()).flat_map(|it| metrics(it)).collect();
    assert_eq!(needed.difference(&known).collect::<Vec<_>>(), [""; 0]);
}

/// Whoever brings a new version starts all in the same way.
#[test]
fn tokens_stay_when_all_is_started_again() {
    let (folder, readme) = (tempfile::tempdir().unwrap(), read("README.md"));
    let commands = readme.lines().skip_while(|line| !line.starts_with("(umask"));
    let commands: Vec<_> = commands.take_while(|line| !line.starts_with("docker")).collect();
    let file = folder.path().join(".env");
    // One that was not made, for want of `openssl`.
    fs::write(&file, "SECKILL_ADMIN_TOKEN=\n").unwrap();
    let env = || {
        printed(Command::new("sh").args(["-c", &commands.join("\n")]).current_dir(folder.path()));
        fs::read_to_string(&file).unwrap()
    };
    let tokens = env();
    let is_made = |line: &&str| line.split_once('=').is_some_and(|(_, token)| token.len() == 64);
    assert_eq!((tokens.lines().filter(is_made).count(), env()), (3, tokens));
}

/// Prometheus can read its configuration, and each expression of the dashboard. `promtool test` has read the alerts.
#[test]
fn prometheus_understands_it_all() {
    let files = tempfile::tempdir().unwrap();
    let at = |name: &str| files.path().join(name);
    let config = read("prometheus/prometheus.yaml");
    let token = at("token").display().to_string();
    fs::write(at("prometheus.yaml"), config.replace("/run/secrets/admin-token", &token)).unwrap();
    fs::write(&token, TOKEN).unwrap();
    fs::copy(path("prometheus/alerts.yaml"), at("alerts.yaml")).unwrap();
    printed(Command::new("promtool").args(["check", "config"]).arg(at("prometheus.yaml")));
    let shown = shown().into_iter().enumerate();
    let rule = |(number, expr)| json!({ "record": format!("shown:{number}"), "expr": expr });
    let rules: Vec<_> = shown.map(rule).collect();
    let shown = json!({ "groups": [{ "name": "shown", "rules": rules }] });
    fs::write(at("shown.yaml"), shown.to_string()).unwrap();
    printed(Command::new("promtool").args(["check", "rules"]).arg(at("shown.yaml")));
}
