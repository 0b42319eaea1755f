//! The examples in single files, as a reader runs them.

use std::io::Write;

use test_support::Redis;
use test_support::program::{Program, command};

const QUOTA: &str = "message_quota";

/// Runs a program that must succeed, and returns its lines and its logs.
fn run(program: &str, arguments: &[&str], input: impl AsRef<[u8]>) -> (Vec<String>, String) {
    let (code, lines, logs) = Program::fed(program, arguments, input);
    assert_eq!(code, Some(0), "{program} {arguments:?}: {logs}");
    (lines, logs)
}

#[test]
fn every_example_has_help() {
    let directories = ["/examples", "/crates/message-storm/examples"]
        .map(|it| std::fs::read_dir(env!("CARGO_MANIFEST_DIR").to_owned() + it).unwrap());
    let mut count = 0;
    for entry in directories.into_iter().flatten() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".rs") else {
            continue;
        };
        count += 1;
        let (lines, _) = run(name, &["--help"], "");
        assert!(lines.concat().len() > 100, "{name} does not help");
    }
    assert!((5..=20).contains(&count), "{count} examples");
}

#[tokio::test]
async fn message_quota_holds_the_third_message_and_loses_none() {
    let redis = Redis::start().await;
    let url = redis.url();
    for store in [&[][..], &["--redis", &url]] {
        let input = "bob\t1\nbob\t2\nbob\t3\nann\t4\nbob\t5";
        let (lines, _) = run(QUOTA, store, input);
        let expected = ["sent bob", "sent bob", "held bob", "sent ann", "held bob"];
        let begin = |line: &String| {
            let (verb, rest) = line.split_once(" receiver=\"").unwrap();
            format!("{verb} {}", rest.split('"').next().unwrap())
        };
        assert_eq!(lines.iter().map(begin).collect::<Vec<_>>(), expected);
        assert!(lines[2].contains("retry_after=600s") || lines[2].contains("retry_after=59"));

        // With --wait all are sent, in order for each receiver.
        let flags = [&["--wait", "--quota", "2/2s"], store].concat();
        let input = b"no tab\nbob\t1\nbob\t2\nbob\t3\nbob\t4\n\xff\t\xff\nann\t1\n";
        let (lines, logs) = run(QUOTA, &flags, input);
        let sent: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("sent ")).collect();
        let strange = ("\u{fffd}", "\u{fffd}");
        let expected =
            [("bob", "1"), ("bob", "2"), strange, ("ann", "1"), ("bob", "3"), ("bob", "4")];
        let expected = expected.map(|(to, text)| format!("receiver=\"{to}\" text=\"{text}\""));
        assert_eq!(sent, expected, "{logs}");
        for line in [
            "reading messages from stdin, a line RECEIVER<TAB>TEXT each",
            "a line is skipped: write RECEIVER<TAB>TEXT",
            "sending the 2 messages that are held; the last in about 2s",
        ] {
            assert!(logs.contains(line), "{logs}");
        }
    }
}

#[test]
fn message_quota_says_what_it_did_not_send() {
    let mut program = Program::start(&mut command(QUOTA, &["--wait"]));
    program.write("bob\t1\nbob\t2\nbob\t3\n");
    for verb in ["sent", "sent", "held"] {
        assert!(program.line().unwrap().starts_with(verb));
    }
    program.signal("TERM");
    let (status, logs, _) = program.stopped();
    assert_eq!(status.code(), Some(1), "{logs}");
    assert!(logs.contains("messages that are not sent: 1"), "{logs}");
    let (code, _, logs) = Program::fed(QUOTA, &["--quota", "2/10"], "");
    assert!(code == Some(2) && logs.contains("the window \"10\""), "{logs}");
}

#[test]
fn speech_monitor_mutes_the_third_of_a_kind() {
    let input = b"bob\tlunch?\nmal\tcheap gold\nmal\tCHEAP GOLD!\nno tab\n\xff\t\xff\nmal\tc h e a p gold\nmal\thello\n";
    let (lines, logs) = run("speech_monitor", &[], input);
    assert!(logs.contains("a line is skipped: write SENDER<TAB>TEXT"), "{logs}");
    let seen_by_all = lines.iter().filter(|line| line.starts_with("all see")).count();
    assert_eq!((lines.len(), seen_by_all), (6, 4), "{lines:?}");
    assert!(logs.contains("audit: similar 3/60s 90% mute 6h: 3 messages within 60s"), "{logs}");
}

#[test]
fn message_storm_says_when_a_storm_starts_and_ends() {
    let input = b"lobby\t1\nlobby\t1\nlobby\t2\nno tab\nlobby\t3\ncalm\t1\n";
    let (lines, logs) = run("message_storm", &["--threshold", "2/2s"], input);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "storm start group=\"lobby\" count=3");
    assert!(lines[1].starts_with("storm end group=\"lobby\" peak=3 lasted="), "{lines:?}");
    for line in ["a line is skipped", "waiting for the end of 1 storms"] {
        assert!(logs.contains(line), "{logs}");
    }
}

/// As with `| head -1`.
#[test]
fn programs_end_when_nobody_reads_what_they_print() {
    let storm: &[_] = &["--threshold", "1/3s"];
    for (program, arguments) in
        [(QUOTA, &[][..]), ("speech_monitor", &[]), ("message_storm", storm)]
    {
        let (reader, stdout) = std::io::pipe().unwrap();
        drop(reader);
        let (input, mut stdin) = std::io::pipe().unwrap();
        stdin.write_all(b"bob\t1\nbob\t2\nbob\t3\n").unwrap();
        let ended = command(program, arguments).stdin(input).stdout(stdout).output().unwrap();
        let logs = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{program}: {logs}");
    }
}

#[test]
fn live_policy_says_what_is_wrong_with_its_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "ip = \"9/1s\"\nuser = \"5/60\"\n").unwrap();
    let (code, _, logs) = Program::fed("live_policy", &[file.path().to_str().unwrap()], "");
    assert_eq!(code, Some(1), "{logs}");
    assert!(logs.contains("at line 2") && logs.contains("window \"60\""), "{logs}");
}

#[test]
fn token_budget_settles_each_prompt() {
    let (lines, _) = run("token_budget", &[], "");
    let left = |line: &String| Some(line.split_once(", used ")?.1.to_owned());
    let expected = ["350, 19650 left", "0, 19650 left", "7000, 12650 left", "16000, 0 left"];
    assert_eq!(lines.iter().filter_map(left).collect::<Vec<_>>(), expected, "{lines:?}");
    assert!(lines.last().unwrap().starts_with("denied: a poem, again in "), "{lines:?}");
}

#[test]
fn in_flight_gives_each_place_back() {
    let (lines, _) = run("in_flight", &[], "");
    let lines: Vec<_> = lines.iter().map(|it| it.split(" after ").next().unwrap()).collect();
    let begin = lines.iter().position(|it| it.starts_with("export of")).expect("an export");
    let expected = [
        "export of acme: 200 OK",
        "export of acme: 200 OK",
        "export of acme: 429 Too Many Requests",
        "  ratelimit-policy: \"exports\";q=2;qu=\"concurrent-requests\"",
        "export of zenith: 200 OK",
        "a client of acme hangs up",
        "the report of acme begins",
        "the report of acme has ended",
        "an export of acme has ended",
        "export of acme: 200 OK",
        "an export of acme has ended",
    ];
    assert_eq!(lines[begin..], expected);
}
