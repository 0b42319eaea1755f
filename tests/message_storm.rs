//! The message_storm example as a process: lines in, alerts out, alone and with others on one Redis.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::io::Write;
use std::process::Stdio;

use test_support::Redis;
use test_support::Redis;
use test_support::line_program::{LineProgram, on_both};

const EXAMPLE: LineProgram = LineProgram("message_storm");

/// Messages of a group.
fn messages(group: &str, ids: std::ops::Range<u32>) -> String {
    ids.map(|id| format!("{group}\tmessage-{id}\n")).collect()
}

/// Returns the lines without how long the storm has lasted.
fn timeless(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split(" lasted=").next().unwrap()).collect()
}

const START: &str = "storm start group=stormy count=101 threshold=100/5s";
const END: &str = "storm end group=stormy peak=150 threshold=100/5s";

#[tokio::test]
async fn the_simulation_shows_one_storm_from_its_start_to_its_end() {
    on_both(&["--simulate", "--threshold", "100/5s"], |arguments| {
        let (status, logs, lines) = EXAMPLE.start(arguments).stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert_eq!(timeless(&lines), [START, END], "{lines:?}");
        for part in ["calm gets 50 messages, one every 100 ms", "stormy gets 150", "recorded: 200"]
        {
            assert!(logs.contains(part), "{part}: {logs}");
        }
    })
    .await;
}

#[tokio::test]
async fn two_simulations_on_one_redis_see_one_storm_together() {
    let redis = Redis::start().await;
    let url = redis.url();
    let arguments = ["--simulate", "--threshold", "100/5s", "--redis", &url];
    let programs = [EXAMPLE.start(&arguments), EXAMPLE.start(&arguments)];
    let mut lines = Vec::new();
    for program in programs {
        let (status, logs, own) = program.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        lines.extend(own);
    }
    lines.sort();
    let whole = END.replace("150", "300");
    assert_eq!(timeless(&lines), [whole.as_str(), START], "{lines:?}");
}

#[tokio::test]
async fn two_processes_with_one_redis_have_one_start_and_one_end() {
    let redis = Redis::start().await;
    let url = redis.url();
    let arguments = ["--threshold", "100/3s", "--wait-end", "--redis", &url];
    let mut programs = [EXAMPLE.start(&arguments), EXAMPLE.start(&arguments)];
    // Neither has a storm of its own, and twenty messages come to both.
    programs[0].write(messages("lobby", 0..80));
    programs[1].write(messages("lobby", 60..140));
    let mut lines = Vec::new();
    for mut program in programs {
        program.end_input();
        let (status, logs, own) = program.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        lines.extend(own);
    }
    lines.sort();
    let end = "storm end group=lobby peak=140 threshold=100/3s";
    let start = "storm start group=lobby count=101 threshold=100/3s";
    assert_eq!(timeless(&lines), [end, start], "{lines:?}");
}

#[tokio::test]
async fn a_message_that_comes_twice_counts_once_and_groups_are_apart() {
    on_both(&["--threshold", "5/1h"], |arguments| {
        let mut input = messages("lobby", 0..5).repeat(3);
        input += &messages("a \"b", 0..6);
        input += &messages("\u{1b}[31m", 0..5);
        let (code, lines, logs) = EXAMPLE.fed(arguments, &input);
        assert_eq!((code, logs.as_str()), (Some(0), ""), "it does not wait for the end");
        assert_eq!(lines, ["storm start group=\"a \\\"b\" count=6 threshold=5/1h"]);
    })
    .await;
}

#[tokio::test]
async fn an_alert_comes_before_the_next_line_is_given() {
    on_both(&["--threshold", "2/1h", "--profile", "30m"], |arguments| {
        let mut program = EXAMPLE.start(arguments);
        program.write(messages("lobby", 0..3));
        assert_eq!(program.line().unwrap(), "storm start group=lobby count=3 threshold=2/1h");
        assert_eq!(program.line().unwrap(), "profile group=lobby step=1800s counts=0,3");
        program.write(messages("other", 0..3));
        assert_eq!(program.line().unwrap(), "storm start group=other count=3 threshold=2/1h");
        program.signal("TERM");
        let (status, logs, _) = program.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
    })
    .await;
}

#[tokio::test]
async fn a_count_that_has_reached_the_cap_says_so() {
    let limits = ["--threshold", "5/1s", "--cap", "8", "--wait-end"];
    on_both(&limits, |arguments| {
        let (code, lines, _) = EXAMPLE.fed(arguments, messages("lobby", 0..50));
        assert_eq!(code, Some(0));
        let end = "storm end group=lobby peak=8 cap=8 threshold=5/1s";
        assert_eq!(timeless(&lines)[1..], [end], "{lines:?}");
    })
    .await;
}

#[tokio::test]
async fn while_it_waits_for_an_end_a_signal_stops_it() {
    for (signal, arguments) in
        [("INT", ["--simulate", "--wait-end"]), ("TERM", ["--threshold=2/1h", "--wait-end"])]
    {
        let mut program = EXAMPLE.start(&arguments);
        program.write(messages("stormy", 0..3));
        program.end_input();
        assert!(program.line().unwrap().starts_with("storm start group=stormy"));
        program.signal(signal);
        let (status, logs, rest) = program.stopped();
        assert_eq!((status.code(), rest), (Some(0), vec![]), "{logs}");
    }
}

#[test]
fn a_line_that_is_no_message_is_skipped_and_its_number_told() {
    let mut input = b"Lysistrata hello\nlobby\t1\r\n\n\tLysistrata\nlobby\t\nlobby\t2\n".to_vec();
    input.extend([b'x'; 70_000]);
    input.extend(b"\n\xff\xfe\t\x00\n\xff\xfe\t\x01\nlobby\t3");
    let (code, lines, logs) = EXAMPLE.fed(&["--threshold", "1/1h"], input);
    assert_eq!(code, Some(0), "{logs}");
    let group = r#""\xff\xfe""#;
    let starts =
        ["lobby", group].map(|it| format!("storm start group={it} count=2 threshold=1/1h"));
    assert_eq!(lines, starts);
    for part in [
        "line 1 is skipped: there is no tab",
        "line 3 is skipped: there is no tab",
        "line 4 is skipped: there is no group",
        "line 5 is skipped: there is no message id",
        "line 7 is skipped: it is longer than 65536 bytes",
    ] {
        assert!(logs.contains(part), "{part}: {logs}");
    }
    assert!(!logs.contains("Lysistrata"), "nobody is named: {logs}");
}

#[test]
fn a_group_too_long_to_be_kept_is_told_by_its_hash() {
    let (_, lines, _) = EXAMPLE.fed(&["--threshold", "1/1h"], messages(&"k".repeat(1000), 0..2));
    let group = lines[0].split("group=").nth(1).unwrap().split(' ').next().unwrap();
    let hash = group.strip_prefix("sha256:").expect(group);
    assert!(hash.len() == 64 && hash.bytes().all(|it| it.is_ascii_hexdigit()), "{group}");
}

#[test]
fn a_wrong_flag_exits_with_2_and_names_the_part() {
    let cases: &[(&[&str], &str)] = &[
        (&["--threshold", "100"], "LIMIT/WINDOW"),
        (&["--threshold", "0/60s"], "the limit is zero"),
        (&["--threshold", "1000000/60s"], "the cap of 1000000 must be above the threshold"),
        (&["--ends-below", "0"], "can't end below 0"),
        (&["--ends-below", "101"], "from 1 to the threshold of 100"),
        (&["--cap", "100"], "must be above the threshold of 100"),
        (&["--cool-down", "long"], "--cool-down"),
        (&["--prefix", "a{b}"], "a prefix is"),
        (&["--sentinel-master", "main"], "--redis"),
        (&["--storm"], "--storm"),
    ];
    for (flags, part) in cases {
        let output = EXAMPLE.run(flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {stderr}");
        assert!(stderr.contains(part), "{flags:?} should name {part:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}

#[test]
fn help_names_every_flag_and_every_line_that_is_printed() {
    let output = EXAMPLE.run(&["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in [
        "--threshold",
        "--ends-below",
        "--cool-down",
        "--cap",
        "--redis",
        "--sentinel-master",
        "--response-timeout",
        "--prefix",
        "--simulate",
        "--wait-end",
        "--profile",
        "GROUP<TAB>MESSAGE-ID",
        "storm start group=",
        "storm end group=",
        "profile group=",
        "printf",
    ] {
        assert!(help.contains(part), "{part} is missing: {help}");
    }
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_password() {
    // Nothing listens on port 1, which takes root to open.
    let cases: &[(&[&str], &str)] = &[
        (&["--redis", "redis://:hunter2@127.0.0.1:1/0"], "127.0.0.1:1"),
        (&["--redis", "http://:hunter2@127.0.0.1"], "not a Redis URL"),
        (&["--profile", "1ms"], "60000 steps is too long"),
        (&["--profile", "0s"], "at least 1us"),
    ];
    for (flags, part) in cases {
        let output = EXAMPLE.run(flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_output_nobody_reads_ends_it_with_an_error() {
    let mut pipes = EXAMPLE.command(&["--threshold", "1/1h", "--wait-end"]);
    let pipes = pipes.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(messages("lobby", 0..3).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("can't print to stdout"), "{stderr}");
}

#[tokio::test]
async fn without_its_redis_messages_fail_the_program_goes_on_and_the_exit_code_tells() {
    let mut redis = Redis::start().await;
    let url = redis.url();
    let mut program = EXAMPLE.start(&["--threshold", "2/1h", "--redis", &url]);
    program.write(messages("lobby", 0..3));
    assert_eq!(program.line().unwrap(), "storm start group=lobby count=3 threshold=2/1h");
    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(
        keys,
        ["log", "state"].map(|it| format!("message_storm:{{=lobby}}:group:storm:{it}"))
    );
    redis.kill();
    program.write(messages("lobby", 3..9));
    program.end_input();
    let (status, logs, lines) = program.stopped();
    assert_eq!((status.code(), lines), (Some(1), vec![]), "{logs}");
    assert!(logs.contains("6 of the messages may not be counted, the first in line 4"), "{logs}");
    assert!(logs.contains("hint: ") && !logs.contains("lobby"), "{logs}");
}
