//! The machine, the programs and the crates that were measured.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

const LOCK: &str = include_str!("../../Cargo.lock");
const NAMED: [&str; 15] = [
    "axum",
    "redis",
    "governor",
    "tower_governor",
    "axum-governor",
    "axum_gcra",
    "axum-limit",
    "tower-rate-limit-redis",
    "tower-rate-limit-fred",
    "fred",
    "throttle-kit",
    "rate-net",
    "tower-resilience-ratelimiter",
    "trypema",
    "tokio",
];

/// Describes the machine, the programs and the crates.
pub(crate) fn description(load_before: &str, load_after: &str) -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let cores = available_parallelism().map_or(0, usize::from);
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let redis = version("redis-server");
    let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
    let crates: Vec<String> = NAMED.into_iter().flat_map(locked).collect();
    format!(
        "- CPU: {cpu}, {cores} cores; memory: {memory}\n\
         - Linux {}; redis-server {redis}; {}; {}\n\
         - Crates: {}\n\
         - Load average over a minute, when the run began {load_before}, when it ended {load_after} (part of the latter is the run's own)\n",
        kernel.split('-').next().unwrap_or_default().trim(),
        version("rustc").split(" (").next().unwrap_or_default(),
        version("oha"),
        crates.join(", ")
    )
}

/// Returns the load average over the last minute.
pub(crate) fn load() -> String {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    output.map_or_else(
        |_| format!("{program} not found"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Returns a crate's versions in the lock file.
fn locked(name: &str) -> impl Iterator<Item = String> {
    LOCK.split("[[package]]").filter_map(move |package| {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_start_matches(" = ").trim_matches('"'))
        };
        (value("name")? == name).then(|| value("version").map(|it| format!("{name} {it}")))?
    })
}
