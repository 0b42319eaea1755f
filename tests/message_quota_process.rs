//! The message_quota example as a process: lines in and out, flags, signals, and a Redis that may
//! fail.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::io::Write;
use std::process::Stdio;

use test_support::Redis;
use test_support::Redis;
use test_support::line_program::{LineProgram, on_both};
use test_support::program::Program;

const EXAMPLE: LineProgram = LineProgram("message_quota");

/// Checks that a line is of a message held for at most so many seconds, and returns them.
fn held(line: &str, receiver: &str, most: u64) -> u64 {
    let wait = line.strip_prefix(&format!("held receiver={receiver} retry_after="));
    let seconds = wait.and_then(|wait| wait.strip_suffix('s')).and_then(|it| it.parse().ok());
    let seconds = seconds.unwrap_or_else(|| panic!("{line:?} does not hold a message"));
    assert!((1..=most).contains(&seconds), "{line}");
    seconds
}

#[tokio::test]
async fn the_third_message_in_ten_minutes_is_held_and_no_other_receiver() {
    on_both(&["--quota", "2/10m"], |arguments| {
        let input = "bob\tone\nbob\ttwo\nbob\tthree\nann\tfour\nbob\tfive\n";
        let (code, lines, logs) = EXAMPLE.fed(arguments, input);
        assert_eq!(code, Some(0), "{logs}");
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(lines[..2], ["sent receiver=bob", "sent receiver=bob"]);
        let wait = held(&lines[2], "bob", 600);
        assert_eq!(lines[3], "sent receiver=ann");
        assert!(held(&lines[4], "bob", 600) <= wait, "a denial leaves no trace");
        assert_eq!(logs, "");
    })
    .await;
}

#[tokio::test]
async fn each_line_is_answered_before_the_next_is_given() {
    on_both(&[], |arguments| {
        let mut program = EXAMPLE.start(arguments);
        for _ in 0..2 {
            program.write("bob\thi\n");
            assert_eq!(program.line().unwrap(), "sent receiver=bob");
        }
        program.write("bob\thi\n");
        held(&program.line().unwrap(), "bob", 600);
        program.end_input();
        assert_eq!(program.stopped().0.code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn with_wait_all_are_sent_in_order_for_each_receiver() {
    on_both(&["--quota", "2/1s", "--wait", "--show-text"], |arguments| {
        let input: String =
            (1..=7).map(|number| format!("bob\t{number}\nann\t{number}\n")).collect();
        let (code, lines, logs) = EXAMPLE.fed(arguments, &input);
        assert_eq!(code, Some(0), "{logs}");
        for receiver in ["bob", "ann"] {
            let of = |verb: &str| -> Vec<String> {
                let start = format!("{verb} receiver={receiver} ");
                let own = lines.iter().filter(|line| line.starts_with(&start));
                own.map(|line| line.rsplit('=').next().unwrap().to_owned()).collect()
            };
            assert_eq!(of("sent"), ["1", "2", "3", "4", "5", "6", "7"], "{lines:?}");
            for text in of("held") {
                let at = |verb: &str| {
                    let is = |line: &&String| {
                        line.starts_with(&format!("{verb} receiver={receiver} "))
                            && line.ends_with(&format!(" text={text}"))
                    };
                    lines.iter().position(|line| is(&line)).unwrap()
                };
                assert!(at("held") < at("sent"), "{lines:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_may_not_even_wait_is_dropped_and_the_exit_code_tells() {
    on_both(&["--quota", "1/10m", "--wait", "--waiting-at-most", "1"], |arguments| {
        let mut program = EXAMPLE.start(arguments);
        program.write("bob\t1\nbob\t2\nbob\t3\nann\t4\n");
        assert_eq!(program.line().unwrap(), "sent receiver=bob");
        held(&program.line().unwrap(), "bob", 600);
        let dropped = "dropped receiver=bob reason=too_many_waiting";
        assert_eq!(program.line().unwrap(), dropped);
        assert_eq!(program.line().unwrap(), "sent receiver=ann");
        program.signal("TERM");
        let (status, logs, rest) = program.stopped();
        assert_eq!(status.code(), Some(1), "{logs}");
        assert_eq!(rest, ["dropped receiver=bob reason=stopped"]);
        assert!(logs.contains("hint: raise --waiting-at-most"), "{logs}");
    })
    .await;
}

#[tokio::test]
async fn a_signal_stops_it_at_once_and_what_was_not_sent_is_said() {
    for (signal, ended) in [("TERM", false), ("INT", false), ("INT", true)] {
        on_both(&["--quota", "1/10m", "--wait"], |arguments| {
            let mut program = EXAMPLE.start(arguments);
            program.write("bob\t1\nbob\t2\nann\t3\nbob\t4\n");
            for _ in 0..4 {
                program.line().unwrap();
            }
            if ended {
                program.end_input();
            }
            program.signal(signal);
            let (status, logs, rest) = program.stopped();
            assert_eq!(status.code(), Some(1), "{logs}");
            assert_eq!(rest, ["dropped receiver=bob reason=stopped"; 2]);
            assert!(logs.contains("after line 4") && logs.contains("2 were not sent"), "{logs}");
        })
        .await;
    }
}

#[tokio::test]
async fn stopped_with_nothing_left_to_send_it_has_succeeded() {
    for arguments in [&["--wait"][..], &[]] {
        let mut program = EXAMPLE.start(arguments);
        program.write("bob\t1\n");
        program.line().unwrap();
        program.signal("TERM");
        let (status, logs, rest) = program.stopped();
        assert_eq!(status.code(), Some(0), "{logs}");
        assert!(rest.is_empty() && logs.contains("stopped after line 1"), "{rest:?} {logs}");
    }
}

#[test]
fn a_line_that_is_no_message_is_skipped_and_its_number_told() {
    let (code, lines, logs) =
        EXAMPLE.fed(&[], "Lysistrata hello\nbob\thi\r\n\n\tLysistrata\nann\t\n");
    assert_eq!(code, Some(0));
    assert_eq!(lines, ["sent receiver=bob", "sent receiver=ann"]);
    for part in
        ["line 1 is skipped: there is no tab", "line 3 is", "line 4 is skipped: there is no"]
    {
        assert!(logs.contains(part), "{part}: {logs}");
    }
    assert!(!logs.contains("Lysistrata"), "nobody is named: {logs}");
}

#[test]
fn a_wrong_flag_exits_with_2_and_names_the_part() {
    let cases: &[(&[&str], &str)] = &[
        (&["--quota", "2"], "LIMIT/WINDOW"),
        (&["--quota", "0/10m"], "the limit is zero"),
        (&["--quota", "2/10m,20/day"], "quota number 2: the window \"day\""),
        (&["--prefix", "a{b}"], "a prefix is"),
        (&["--on-failure", "locally"], "\"locally\" is not a failure policy"),
        (&["--on-failure", "local:0"], "\"0\" is not a number of instances"),
        (&["--waiting-at-most", "3"], "--wait"),
        (&["--wait", "--waiting-at-most", "0"], "--waiting-at-most"),
        (&["--queue"], "--queue"),
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
        "--quota",
        "--redis",
        "--prefix",
        "--on-failure",
        "--wait",
        "--waiting-at-most",
        "--show-text",
        "RECEIVER<TAB>TEXT",
        "sent receiver=",
        "held receiver=",
        "dropped receiver=",
        "failed receiver=",
        "too_many_waiting",
        "printf",
    ] {
        assert!(help.contains(part), "{part} is missing: {help}");
    }
}

#[test]
fn what_prevents_the_start_is_told_with_a_way_out_and_without_the_password() {
    // Nothing listens on port 1, which takes root to open.
    for (url, part) in [
        ("redis://:hunter2@127.0.0.1:1/0", "127.0.0.1:1"),
        ("http://:hunter2@127.0.0.1", "not a Redis URL"),
    ] {
        let output = EXAMPLE.run(&["--redis", url]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_output_nobody_reads_ends_it_with_an_error() {
    let mut pipes = EXAMPLE.command(&["--wait"]);
    let pipes = pipes.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"bob\t1\nbob\t2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("can't print to stdout"), "{stderr}");
}

#[tokio::test]
async fn senders_of_one_prefix_share_the_windows_and_those_of_another_do_not() {
    let redis = Redis::start().await;
    let url = redis.url();
    let (_, lines, _) = EXAMPLE.fed(&["--redis", &url], "bob\t1\nbob\t2\n");
    assert_eq!(lines, ["sent receiver=bob"; 2]);
    let (_, lines, _) = EXAMPLE.fed(&["--redis", &url], "bob\t3\n");
    held(&lines[0], "bob", 600);
    let (_, lines, _) = EXAMPLE.fed(&["--redis", &url, "--prefix", "other"], "bob\t1\n");
    assert_eq!(lines, ["sent receiver=bob"]);

    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["message_quota:{=bob}:receiver", "other:{=bob}:receiver"]);
    for key in keys {
        assert!((1..=601).contains(&redis.run::<i64>(&["TTL", &key]).await), "{key} has a TTL");
    }
}

/// Starts the program on a Redis that is killed once one message has been sent.
async fn bereft(arguments: &[&str]) -> (Program, Redis) {
    let mut redis = Redis::start().await;
    let url = redis.url();
    let mut program = EXAMPLE.start(&[arguments, &["--quota", "1/10m", "--redis", &url]].concat());
    program.write("bob\t1\n");
    assert_eq!(program.line().unwrap(), "sent receiver=bob");
    redis.kill();
    (program, redis)
}

#[tokio::test]
async fn without_its_redis_a_message_becomes_what_the_failure_policy_says() {
    let after_the_failure = async |policy: &str| {
        let (mut program, _redis) = bereft(&["--on-failure", policy]).await;
        program.write("bob\t2\nann\t3\n");
        let lines = [program.line().unwrap(), program.line().unwrap()];
        program.end_input();
        let (status, logs, _) = program.stopped();
        assert!(!logs.contains("bob") && !logs.contains("ann"), "{logs}");
        (status.code(), lines, logs)
    };
    let (code, lines, logs) = after_the_failure("local").await;
    assert_eq!(code, Some(0), "{logs}");
    held(&lines[0], "bob", 600);
    assert_eq!(lines[1], "sent receiver=ann", "the window here knows of bob's message");

    let (code, lines, logs) = after_the_failure("open").await;
    assert_eq!(
        (code, lines),
        (Some(0), ["bob", "ann"].map(|it| format!("sent receiver={it}"))),
        "{logs}"
    );

    let (code, lines, logs) = after_the_failure("closed").await;
    assert_eq!(code, Some(1), "{logs}");
    for (line, receiver) in lines.iter().zip(["bob", "ann"]) {
        let start = format!("failed receiver={receiver} retry_after=1s reason=");
        assert!(line.starts_with(&start), "never held, for nobody knows: {line}");
    }
    assert!(logs.contains("hint: with --wait"), "{logs}");
}

#[tokio::test]
async fn with_wait_what_nobody_can_decide_on_is_sent_when_redis_is_back() {
    let (mut program, mut redis) = bereft(&["--on-failure", "closed", "--wait"]).await;
    program.write("ann\t2\n");
    let line = program.line().unwrap();
    assert!(line.starts_with("held receiver=ann retry_after=1s reason="), "{line}");
    redis.start_again();
    program.end_input();
    assert_eq!(program.line().unwrap(), "sent receiver=ann");
    assert_eq!(program.stopped().0.code(), Some(0));
    assert_eq!(redis.run::<usize>(&["ZCARD", "message_quota:{=ann}:receiver"]).await, 1);
}
