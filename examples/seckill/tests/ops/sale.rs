//! A sale as `compose.yaml` has it: Redis, two servers under load, and Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use test_support::Redis;
use test_support::program::Program;
use test_support::server_process::Server;

use crate::prometheus::Prometheus;
use crate::rules::rules;
use crate::{SECKILL, compose, dashboard, text, tool};

/// Metrics of what does not happen in this sale. `alerts_test.yaml` makes up numbers for them.
const RARE: [&str; 7] = [
    "sliding_window_counted_twice_total",
    "sliding_window_journal_nearly_full",
    "sliding_window_memory_full_total",
    "sliding_window_memory_nearly_full",
    "sliding_window_missing_keys_total",
    "sliding_window_strikes_lost_total",
    "sliding_window_write_back_lost_total",
];

/// Alerts that this sale has reasons for while Redis does not reply.
const REASONS: [&str; 4] = ["BreakerOpen", "ManyRefusals", "RedisDoesNotDecide", "StoreErrors"];

/// Starts a server with the command of a service.
fn server(service: &str, redis: &str, admin_token: &str, scrape_token: &str) -> Server {
    let replaced = [
        ("127.0.0.1:3001", "127.0.0.1:0"),
        ("127.0.0.1:3011", "127.0.0.1:0"),
        ("/run/secrets/admin-token", admin_token),
        ("/run/secrets/scrape-token", scrape_token),
        // A full quota is one strike until its window has passed. So a ban takes seconds.
        ("5/60s", "1/2s"),
    ];
    let command = compose::command(service, &replaced);
    assert_eq!(command[0], "--listen");
    let flags: Vec<_> = command[2..].iter().map(String::as_str).collect();
    Server::start_in(SECKILL, &[("SECKILL_REDIS", redis)], &flags)
}

/// Starts the load generator.
fn load(servers: &[Server; 2]) -> Program {
    let [first, second] =
        servers.each_ref().map(|server| server.url.trim_start_matches("http://").to_owned());
    let (host, port) = first.split_once(':').unwrap();
    // In the URL of random users a point stands for any letter.
    let url = format!("http://{}:{port}/", host.replace('.', "[.]"));
    let replaced = [
        ("http://shop:3000/", url.as_str()),
        ("shop:3000", &first),
        ("shop:3010", &second),
        // Fewer users, so that most requests are refused after a few seconds.
        ("[a-z]{2}", "[a-z]"),
    ];
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
#[cfg_attr(not(feature = "metrics"), ignore = "without `--features metrics` there are no metrics")]
async fn prometheus_has_what_is_shown_and_alerted() {
    let command = compose::command("redis", &[]);
    assert_eq!(command[..2], ["redis-server", "--requirepass"]);
    // The test talks to it without the password.
    let flags: Vec<_> = command[3..].iter().map(String::as_str).collect();
    let redis = Redis::start_with(&flags).await;
    let files = tempfile::tempdir().unwrap();
    let [admin, scrape] = ["admin", "scrape"].map(|name| {
        let file = files.path().join(name);
        fs::write(&file, format!("0123456789abcdef-the-token-of-{name}")).unwrap();
        file.to_str().unwrap().to_owned()
    });
    let servers = compose::SERVERS.map(|service| server(service, &redis.url(), &admin, &scrape));
    let prometheus = Prometheus::start(&servers, &scrape).await;
    let mut load = load(&servers);

    let all: BTreeSet<_> = dashboard::expressions().into_iter().map(|(_, it)| it).collect();
    // The checks of these servers go to Redis alone. What is written back to it goes in batches.
    let written_back = ["written_back", "batch_size"];
    let of_an_outage =
        [&written_back[..], &["fallback", "store_errors", "memory", "journal"]].concat();
    let is_usual =
        |it: &&String| !is_rare(it) && !of_an_outage.iter().any(|part| it.contains(part));
    prometheus.has_data(all.iter().filter(is_usual).cloned().collect()).await;

    // Redis does not reply, so that each server decides for itself.
    redis.signal("STOP");
    // An expression such as `x or vector(0)` has a number also if there is no `x`.
    let mut needed: BTreeSet<_> =
        all.iter().flat_map(|it| metrics(it)).chain(all.clone()).collect();
    for rule in rules("alert").iter().chain(&rules("record")) {
        let expression = text(&rule["expr"]).to_owned();
        // Also the others can be evaluated.
        prometheus.query(&expression);
        needed.extend(metrics(&expression));
        if rule["alert"].as_str().is_some_and(|name| REASONS.contains(&name)) {
            needed.insert(expression);
        }
    }
    needed.retain(|it| !is_rare(it));
    let (after, during): (BTreeSet<_>, _) =
        needed.into_iter().partition(|it| written_back.iter().any(|part| it.contains(part)));
    prometheus.has_data(during).await;
    redis.signal("CONT");
    prometheus.has_data(after).await;

    let [first, _second] = servers;
    first.signal("KILL");
    let is_down = |rule: &Value| rule["alert"] == "ServerDown";
    let down = rules("alert").into_iter().find(is_down).unwrap();
    prometheus.has_data([text(&down["expr"]).to_owned()].into()).await;
    load.kill();
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
