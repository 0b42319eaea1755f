//! Numbers that no honest operator writes, as text and on the seckill server's command line.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use test_support::Redis;
use test_support::server_process::{Server, run};
use tower_sliding_window::{Policy, Quota};

/// Texts that are no quota, and what the error names.
const NO_QUOTAS: &[(&str, &str)] = &[
    ("-1/60s", "the limit \"-1\""),
    ("-0/60s", "the limit \"-0\""),
    ("0/60s", "the limit is zero"),
    ("00/60s", "the limit is zero"),
    ("4294967296/60s", "the limit \"4294967296\""),
    ("99999999999999999999999999/60s", "the limit \"99999999999999999999999999\""),
    ("5.5/60s", "the limit \"5.5\""),
    ("1e9/60s", "the limit \"1e9\""),
    ("0x10/60s", "the limit \"0x10\""),
    ("NaN/60s", "the limit \"NaN\""),
    ("inf/60s", "the limit \"inf\""),
    ("\u{665}/60s", "the limit"),
    ("5 000/60s", "the limit \"5 000\""),
    ("/60s", "the limit \"\""),
    ("5/-60s", "the window \"-60s\""),
    ("5/+60s", "the window \"+60s\""),
    ("5/0s", "the window is zero"),
    ("5/0us", "the window is zero"),
    ("5/1.5s", "the window \"1.5s\""),
    ("5/60", "the window \"60\""),
    ("5/60S", "the window \"60S\""),
    ("5/60 s", "the window \"60 s\""),
    ("5/1w", "the window \"1w\""),
    ("5/60s/60s", "the window \"60s/60s\""),
    ("5/\u{ff16}0s", "the window"),
    ("5/876001h", "longer than a hundred years"),
    ("5/18446744073709551615us", "longer than a hundred years"),
    ("5/18446744073709551615d", "the window \"18446744073709551615d\""),
    ("5/99999999999999999999999999s", "the window \"99999999999999999999999999s\""),
    ("5", "LIMIT/WINDOW"),
    ("", "LIMIT/WINDOW"),
];

#[test]
fn what_is_no_quota_is_refused_and_the_wrong_part_is_named() {
    for (text, part) in NO_QUOTAS {
        let error = text.parse::<Quota>().unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
        for (position, list) in [text.to_string(), format!("2/1s,{text}")].iter().enumerate() {
            let error = list.parse::<Policy>().unwrap_err().to_string();
            let place = format!("quota number {}: ", position + 1);
            assert!(error.starts_with(&place) && error.contains(part), "{list:?}: {error}");

            for flag in ["--quota", "--ip-quota"] {
                let output = run("seckill", &[&format!("{flag}={list}")]);
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{flag}={list}: {stderr}");
                // Where nothing is given, clap says that something should be.
                let named = stderr.contains(part) || list.is_empty() && stderr.contains(flag);
                assert!(named, "{flag}={list}: {stderr}");
                assert!(output.stdout.is_empty(), "{flag}={list}");
            }
        }
    }
}

#[test]
fn other_flags_refuse_numbers_that_are_too_small_or_too_large() {
    let long = format!("{}=1", "x".repeat(65));
    let rungs = format!("3/10m:{}", ["1m"; 101].join(","));
    let cases = [
        ("--stock", "iphone=-1", "the count \"-1\""),
        ("--stock", "iphone=4294967296", "the count \"4294967296\""),
        ("--stock", "iphone=", "the count \"\""),
        ("--stock", "iphone=1=2", "the count \"1=2\""),
        ("--stock", "=1", "the SKU \"\""),
        ("--stock", "{iphone}=1", "the SKU \"{iphone}\""),
        ("--stock", &long, "the SKU"),
        ("--opens-in", "-1s", "--opens-in"),
        ("--opens-in", "99999999999999999999s", "length of time"),
        ("--opens-in", "9223372036854775807s", "longer than a year"),
        ("--opens-at", "-999999-01-01T00:00:00Z", "RFC 3339"),
        ("--opens-at", "99999-01-01T00:00:00Z", "RFC 3339"),
        ("--idle-timeout", "0s", "it is zero"),
        ("--idle-timeout", "-1s", "--idle-timeout"),
        ("--idle-timeout", "9000h", "longer than a year"),
        ("--listen", "127.0.0.1:65536", "--listen"),
        ("--listen", "127.0.0.1:-1", "--listen"),
        ("--prefix", "", "--prefix"),
        ("--prefix", "a\nb", "a prefix is"),
        ("--user-from", "header:", "the name \"\""),
        ("--user-from", "query:\u{7f}", "the name \"\\u{7f}\""),
        ("--ban", "", "--ban"),
        ("--ban", "3/10m", "write STRIKES/TIME:RUNG"),
        ("--ban", "3:1m", "the strikes, before the colon: \"3\" is not a quota"),
        ("--ban", "0/10m:1m", "the strikes, before the colon: the limit is zero"),
        ("--ban", "-3/10m:1m", "the strikes, before the colon: the limit \"-3\""),
        ("--ban", "101/10m:1m", "101 strikes are too many"),
        ("--ban", "4294967296/10m:1m", "the limit \"4294967296\""),
        ("--ban", "3/0m:1m", "the strikes, before the colon: the window is zero"),
        ("--ban", "3/10m:", "rung number 1: "),
        ("--ban", "3/10m:1m,,1h", "rung number 2: "),
        ("--ban", "3/10m:1m,-1h", "rung number 2: the window \"-1h\""),
        ("--ban", "3/10m:1m,1/1h", "rung number 2: the window \"1/1h\""),
        ("--ban", "3/10m:1h,1m", "rung number 2 must be a second to a year long"),
        ("--ban", "3/10m:999ms", "rung number 1 must be a second to a year long"),
        ("--ban", "3/10m:366d", "rung number 1 must be a second to a year long"),
        ("--ban", "3/10m:99999999999999999999s", "rung number 1: "),
        ("--ban", &rungs, "1 to 100 rungs, not 101"),
        ("--admin", "", "--admin"),
        ("--admin", "3001", "write IP:PORT"),
        ("--admin", "localhost:3001", "write IP:PORT"),
        ("--admin", "127.0.0.1:65536", "write IP:PORT"),
        ("--admin", "0.0.0.0:0", "other machines could reach it"),
        ("--admin", "[::]:0", "other machines could reach it"),
        ("--admin", "192.0.2.1:3001", "other machines could reach it"),
        ("--admin", "127.0.0.1:0", "--ban"),
        ("--admin-token-file", "/dev/null", "--admin"),
    ];
    for (flag, value, part) in cases {
        let output = run("seckill", &[&format!("{flag}={value}")]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flag}={value}: {stderr}");
        assert!(stderr.contains(part), "{flag}={value} should name {part}: {stderr}");
    }
}

#[tokio::test]
async fn the_largest_and_the_smallest_numbers_there_are_work() {
    let redis = Redis::start().await;
    let quotas = ["4294967295/876000h", "1/876000h", "4294967295/1us", "1/1us,4294967295/876000h"];
    for (number, quota) in quotas.into_iter().enumerate() {
        for kept in [vec![], vec!["--redis".to_owned(), redis.url()]] {
            let (quota, prefix) = (format!("--quota={quota}"), format!("--prefix=shop-{number}"));
            let mut flags =
                vec![&quota[..], &prefix, "--stock=iphone=4294967295", "--ip-quota=off"];
            flags.extend(kept.iter().map(String::as_str));
            let server = Server::start("seckill", &flags);
            assert_eq!(server.order("iphone", "alice").await.status, 201, "{quota}");
            let again = server.order("iphone", "alice").await;
            if number == 1 {
                again.problem(429);
                assert!((3_153_599_990..=3_153_600_000).contains(&again.retry_after()));
                assert_eq!(again.header("ratelimit-policy"), r#""user";q=1;w=3153600000"#);
            } else {
                again.problem(409);
            }
            let level = server.get("/seckill/iphone").await.json();
            assert_eq!(level["remaining"], 4_294_967_294_u32);
        }
    }
    let windows: Vec<String> = redis.run(&["KEYS", "*{=alice}*"]).await;
    for window in windows {
        let ttl: i64 = redis.run(&["PTTL", &window]).await;
        assert!((-2..=3_153_600_001_000).contains(&ttl) && ttl != -1, "{window}: {ttl}");
    }
}
