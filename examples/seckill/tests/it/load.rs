//! `load.sh`: what it prints and exits with. A stub takes the place of the load generator, so that
//! responses can be wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::SECKILL;

/// What `load.sh` runs, apart from Redis.
const TOOLS: [&str; 13] = [
    "awk", "bash", "cat", "dirname", "grep", "mktemp", "rm", "sed", "seq", "sleep", "sort", "sh",
    "tr",
];
const REDIS: [&str; 2] = ["redis-server", "redis-cli"];

/// Pretends that a sale went well, or, by `WRONG`, not. Sends nothing.
const OHA: &str = r#"#!/bin/sh
case "$*" in *flood*) name=flood sold=1 again=4 rest=429 ;; *rush*) name=rush sold=100 again=0 rest=410 ;;
  *) name=crowd sold=10 again=0 rest=429 ;; esac
case "$*" in *--debug*) echo "{\"sold\":$sold}"; exit ;; esac
while [ $# -gt 0 ]; do
  case "$1" in --output) file=$2 ;; -n) requests=$2 ;; esac
  shift
done
# Everything is sold in the first part of a run.
case "$file" in *-1000.csv) ;; *) sold=0 again=0 ;; esac
case "${WRONG-}-$name" in quota-flood) again=5 ;; oversold-rush) sold=101 ;; lost-crowd) requests=3999 ;;
  status-crowd) again=1 ;; crash-flood) echo 'no such route' >&2; exit 3 ;; esac
awk -v requests="$requests" -v sold="$sold" -v again="$again" -v rest="$rest" -v wrong="${WRONG-}" 'BEGIN {
  print "request-start,DNS,DNS+dialup,Response-delay,request-duration,bytes,status"
  for (n = 0; n < requests; n++) print n / 1000 ",,,0.001,0.002,2," \
    (n < sold ? 201 : n < sold + again ? (wrong == "status" ? 500 : 409) : rest)
}' > "$file"
"#;

/// Returns a folder with these programs and the stub.
fn path(tools: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for tool in tools {
        let found = std::env::var_os("PATH").and_then(|path| {
            std::env::split_paths(&path).map(|it| it.join(tool)).find(|it| it.exists())
        });
        symlink(found.unwrap_or_else(|| panic!("{tool} is on PATH")), folder.path().join(tool))
            .unwrap();
    }
    let oha = folder.path().join("oha");
    fs::write(&oha, OHA).unwrap();
    fs::set_permissions(&oha, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs `load.sh`, and returns its exit code and what it printed.
fn load(tools: &[&str], wrong: &str, flags: &[&str]) -> (Option<i32>, String) {
    let path = path(tools);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("load.sh");
    let programs = PathBuf::from(SECKILL).parent().unwrap().to_owned();
    let output = Command::new("bash")
        .arg(script)
        .args(flags)
        .env_clear()
        .envs([("PATH", path.path()), ("HOME", path.path()), ("PROGRAMS", &programs)])
        .env("WRONG", wrong)
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), format!("{out}{err}"))
}

#[test]
fn load_without_redis_is_counted() {
    let (code, printed) = load(&TOOLS, "", &["--memory", "--scale", "2"]);
    assert_eq!(code, Some(0), "{printed}");
    for part in [
        "flood: sending 20000 requests, after 20000 of 68000 (29 %) ... 0 s\n",
        "flood       40000 ",
        "ok: no user got past the quota of 5, and no stock was oversold",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn load_names_what_is_wrong() {
    for (wrong, part) in [
        ("quota", "got past the quota of 5"),
        ("oversold", "rush: oversold: 101 orders for a stock of 100"),
        ("lost", "crowd: 1 of 4000 requests got no answer"),
        ("status", "crowd: 1 answers are none of 201, 409, 410 and 429"),
        ("crash", "no such route\nerror: flood: "),
    ] {
        let (code, printed) = load(&TOOLS, wrong, &["--memory"]);
        assert_eq!(code, Some(1), "{wrong}: {printed}");
        assert!(printed.contains(part), "{part}: {printed}");
        assert!(!printed.contains("\nok: "), "{printed}");
    }
}

#[test]
fn load_on_redis_compares_it_with_responses() {
    // The stub says that orders were sold, and Redis has none.
    let (code, printed) = load(&[&TOOLS[..], &REDIS].concat(), "", &["--redis"]);
    assert_eq!(code, Some(1), "{printed}");
    let part = "flood: the windows hold 0 admissions, but 5 requests were let through";
    assert!(printed.contains(part), "{printed}");
}

#[test]
fn load_says_that_redis_is_missing() {
    let (code, printed) = load(&TOOLS, "", &["--redis"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("error: redis-server is not on PATH\nhint: apt "), "{printed}");
    let (code, printed) = load(&TOOLS, "", &[]);
    assert_eq!(code, Some(0), "{printed}");
    let part = "redis-server is not on PATH: one server that keeps everything itself is tested";
    assert!(printed.contains(part), "{printed}");
}

#[test]
fn load_refuses_wrong_flags() {
    for flags in [&["--scale", "0"][..], &["--scale"], &["--scal", "1"], &["flood"]] {
        let (code, printed) = load(&TOOLS, "", flags);
        assert_eq!(code, Some(2), "{flags:?}: {printed}");
    }
}
