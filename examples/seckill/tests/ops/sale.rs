//! A sale as `compose.yaml` has it: Redis, two servers under load, and Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use test_support::program::Program;
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::prometheus::Prometheus;
use crate::rules::rules;
use crate::{SECKILL, compose, dashboard, text, tool};

/// Metrics of what does not happen in this sale. `alerts_test.yaml` makes up numbers for them.
const RARE: [&str; 6] = [
    "sliding_window_counted_twice_total",
    "sliding_window_memory_full_total",
    "sliding_window_memory_nearly_full",
    "sliding_window_missing_keys_total",
    "sliding_window_strikes_lost_total",
    "sliding_window_write_back_lost_total",
];

/// Alerts that this sale has reasons for once Redis is gone, and a server with it.
const REASONS: [&str; 5] =
    ["BreakerOpen", "ManyRefusals", "RedisDoesNotDecide", "ServerDown", "StoreErrors"];

/// Starts a server with the command of a service.
fn server(service: &str, redis: &Redis, token_file: &str) -> Server {
    let replaced = [
        ("127.0.0.1:3001", "127.0.0.1:0"),
        ("127.0.0.1:3011", "127.0.0.1:0"),
        ("redis://redis:6379", &redis.url()),
        ("/run/secrets/admin-token", token_file),
    ];
    let command = compose::command(service, &replaced);
    assert_eq!(command[0], "--listen");
    let flags: Vec<_> = command[2..].iter().map(String::as_str).collect();
    Server::start(SECKILL, &flags)
}

/// Starts the load generator.
fn load(servers: &[Server; 2]) -> Program {
    let [first, second] =
        servers.each_ref().map(|server| server.url.trim_start_matches("http://").to_owned());
    let (host, port) = first.split_once(':').unwrap();
    // In the URL of random users a point stands for any letter.
    let url = format!("http://{}:{port}/", host.replace('.', "[.]"));
    let replaced =
        [("http://shop:3000/", url.as_str()), ("shop:3000", &first), ("shop:3010", &second)];
    Program::start_unheard(tool("oha").args(compose::command("load", &replaced)))
}

/// Returns the metrics that an expression names.
fn metrics(expression: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = expression.split(|letter| !is_name(letter));
    words.filter(|word| word.contains("sliding_window_")).map(str::to_owned).collect()
}

/// Tells whether an expression is about what does not happen here.
fn is_rare(expression: &str) -> bool {
    metrics(expression).iter().any(|metric| RARE.contains(&metric.as_str()))
}

#[tokio::test]
async fn prometheus_has_what_is_shown_and_alerted() {
    let command = compose::command("redis", &[]);
    assert_eq!(command[0], "redis-server");
    let flags: Vec<_> = command[1..].iter().map(String::as_str).collect();
    let redis = Redis::start_with(&flags).await;
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "0123456789abcdef-the-token").unwrap();
    let token = token.path().to_str().unwrap();
    let servers = compose::SERVERS.map(|service| server(service, &redis, token));
    let prometheus = Prometheus::start(&servers, token).await;
    let mut load = load(&servers);

    let all: BTreeSet<String> = dashboard::expressions().into_iter().map(|(_, it)| it).collect();
    let is_fallback = |it: &String| it.contains("fallback") || it.contains("store_errors");
    let usual = all.iter().filter(|it| !is_rare(it) && !is_fallback(it)).cloned();
    prometheus.has_data(usual.collect()).await;

    // Redis does not reply, so that each server decides for itself, and one server ends.
    redis.signal("STOP");
    let is_usual = |metric: &String| !RARE.contains(&metric.as_str());
    // An expression such as `x or vector(0)` has a number also if there is no `x`.
    let mut needed: BTreeSet<_> = all.iter().flat_map(|it| metrics(it)).filter(is_usual).collect();
    needed.extend(all.into_iter().filter(|it| !is_rare(it)));
    for rule in rules("alert").iter().chain(&rules("record")) {
        let expression = text(&rule["expr"]);
        needed.extend(metrics(expression).into_iter().filter(is_usual));
        if let Some(name) = rule["alert"].as_str().filter(|name| REASONS.contains(name)) {
            if name != "ServerDown" {
                needed.insert(expression.to_owned());
            }
        }
        // Also the others can be evaluated.
        prometheus.query(expression);
    }
    prometheus.has_data(needed).await;

    let [first, _second] = servers;
    first.signal("KILL");
    let down = rules("alert").into_iter().find(|it| it["alert"] == "ServerDown").unwrap();
    let down = text(&down["expr"]).to_owned();
    eventually("a server is down", async || prometheus.query(&down).len() == 1).await;
    load.kill();
    redis.signal("CONT");
}

#[test]
fn every_metric_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/lib.rs");
    let documented = fs::read_to_string(root).unwrap();
    let alerts = rules("alert").into_iter().chain(rules("record"));
    let expressions = alerts.map(|rule| text(&rule["expr"]).to_owned());
    let mut names = BTreeSet::new();
    for expression in expressions.chain(dashboard::expressions().into_iter().map(|(_, it)| it)) {
        names.extend(metrics(&expression));
    }
    for name in names.iter().filter(|name| !name.contains(':')) {
        let is_known = ["", "_bucket", "_sum", "_count"].iter().any(|end| {
            let name = name.strip_suffix(end).unwrap_or("");
            documented.contains(&format!("| `{name}` |"))
        });
        assert!(is_known, "{name} is not a metric of the crate");
    }
    for name in RARE {
        assert!(names.contains(name), "{name} is in no expression");
    }
}
