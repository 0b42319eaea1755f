//! The examples in single files, as a reader runs them.

use std::io::{Read, Write};
use std::time::Duration;

use test_support::program::{Program, command};
use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually};

const QUOTA: &str = "message_quota";
const STORM: &str = "message_storm";
const MONITOR: &str = "speech_monitor";

fn start(program: &str, arguments: &[&str]) -> Program {
    Program::start(&mut command(program, arguments))
}

#[test]
fn every_example_is_short_and_has_help() {
    let directories = ["/examples", "/crates/message-storm/examples"]
        .map(|it| std::fs::read_dir(env!("CARGO_MANIFEST_DIR").to_owned() + it).unwrap());
    let mut count = 0;
    for entry in directories.into_iter().flatten() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".rs") else {
            continue;
        };
        count += 1;
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 126, "{name} has {lines} lines");
        let (code, lines, logs) = Program::fed(name, &["--help"], "");
        assert_eq!(code, Some(0), "{name}: {logs}");
        assert!(lines.concat().len() > 100, "{name} does not help");
    }
    assert!((5..=20).contains(&count), "{count} examples");
}

#[tokio::test]
async fn message_quota_holds_the_third_message() {
    let redis = Redis::start().await;
    let url = redis.url();
    for store in [&[][..], &["--redis", &url]] {
        let input = "bob\t1\nbob\t2\nbob\t3\nann\t4\nno tab\nbob\t5";
        let (code, lines, logs) = Program::fed(QUOTA, store, input);
        assert_eq!(code, Some(0), "{logs}");
        let expected =
            [("sent", "bob"), ("sent", "bob"), ("held", "bob"), ("sent", "ann"), ("held", "bob")];
        let begins = |(line, (verb, to)): (&String, (&str, &str))| {
            line.starts_with(&format!("{verb} receiver=\"{to}\" "))
        };
        assert!(lines.len() == 5 && lines.iter().zip(expected).all(begins), "{lines:?}");
        assert!(lines[2].contains("retry_after=600s") || lines[2].contains("retry_after=59"));
        assert!(logs.contains("line 5 is skipped"), "{logs}");

        // With --wait all are sent, in order for each receiver.
        let input: String = (1..=5).map(|text| format!("eve\t{text}\nzoe\t{text}\n")).collect();
        let flags = [&["--wait", "--quota", "2/1s"], store].concat();
        let (code, lines, logs) = Program::fed(QUOTA, &flags, &input);
        assert_eq!(code, Some(0), "{logs}");
        for receiver in ["eve", "zoe"] {
            let start = format!("sent receiver={receiver:?} text=");
            let sent: Vec<_> = lines.iter().filter_map(|it| it.strip_prefix(&start)).collect();
            assert_eq!(sent, ["\"1\"", "\"2\"", "\"3\"", "\"4\"", "\"5\""], "{lines:?}");
        }
    }
}

#[test]
fn message_quota_says_what_it_did_not_send() {
    let mut program = start(QUOTA, &["--wait"]);
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
fn message_quota_loses_nothing_to_a_strange_line() {
    let mut program = start(QUOTA, &["--wait", "--quota", "2/2s"]);
    let lines =
        [&b"bob\t1\nbob\t2\nbob\t3\nbob\t4\n\xff\t\xff\n"[..], &[b'x'; 300_000], b"\nann\t1\n"];
    program.write(lines.concat());
    program.end_input();
    let (status, logs, lines) = program.stopped();
    assert_eq!(status.code(), Some(0), "{logs}");
    let sent: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("sent ")).collect();
    let strange = ("\u{fffd}", "\u{fffd}");
    let expected = [("bob", "1"), ("bob", "2"), strange, ("ann", "1"), ("bob", "3"), ("bob", "4")];
    let expected = expected.map(|(to, text)| format!("receiver=\"{to}\" text=\"{text}\""));
    assert_eq!(sent, expected, "{logs}");
    for line in [
        "reading messages from stdin, a line RECEIVER<TAB>TEXT each",
        "line 6 is skipped: it is longer than 65536 bytes",
        "sending the 2 messages that are held; the last in about 2s",
    ] {
        assert!(logs.contains(line), "{logs}");
    }
}

#[test]
fn message_storm_bounds_a_line_and_says_what_it_waits_for() {
    let mut program = start(STORM, &["--threshold", "2/2s"]);
    for _ in 0..60 {
        program.write(vec![b'x'; 1_000_000]);
    }
    program.write("\nlobby\t1\nlobby\t2\nlobby\t3\n");
    assert_eq!(program.line().unwrap(), "storm start group=\"lobby\" count=3");
    let memory = program.resident_kb();
    assert!(memory < 50_000, "{memory} kB");
    program.end_input();
    let (status, logs, _) = program.stopped();
    assert_eq!(status.code(), Some(0), "{logs}");
    for line in [
        "reading messages from stdin, a line GROUP<TAB>MESSAGE-ID each",
        "line 1 is skipped: it is longer than 65536 bytes",
        "waiting for the end of 1 storms, up to 2s",
    ] {
        assert!(logs.contains(line), "{logs}");
    }
}

#[tokio::test]
async fn message_storm_says_at_once_what_is_not_counted() {
    let redis = Redis::start().await;
    let mut program = start(STORM, &["--threshold", "5000/1h", "--redis", &redis.url()]);
    program.write("lobby\t1\n");
    redis.has_entries(&storm_log("lobby"), 1).await;
    drop(redis);
    program.write("lobby\t2\n");
    let is_told = async || program.logs().contains("1 messages may not be counted");
    eventually("the loss is told", is_told).await;
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn message_storm_records_groups_at_once() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let mut program = start(STORM, &["--threshold", "5000/1h", "--redis", &proxy.url()]);
    program.write("first\t1\n");
    redis.has_entries(&storm_log("first"), 1).await;
    // No reply comes, so that each of the program's 64 lanes sends one message and waits.
    proxy.set(Fault::Delay(Duration::from_secs(3600)));
    program.write((0..200).map(|id| format!("room-{id}\t{id}\n")).collect::<String>());
    eventually("many groups are recorded", async || redis.run::<usize>(&["DBSIZE"]).await >= 32)
        .await;
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn message_storm_keeps_the_order_of_a_group() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    proxy.set(Fault::Delay(Duration::from_millis(5)));
    let input: String = (0..400).map(|id| format!("lobby\t{id}\n")).collect();
    let flags = ["--threshold", "5000/1h", "--redis", &proxy.url()];
    let (code, _, logs) = tokio::task::block_in_place(|| Program::fed(STORM, &flags, &input));
    // On a busy machine a reply may come too late, which is an error.
    assert!(code == Some(0) || logs.contains("may not be counted"), "{logs}");
    let order: Vec<u32> = redis.run(&["ZRANGE", &storm_log("lobby"), "0", "-1"]).await;
    assert!(order.is_sorted() && order.len() > 300, "{order:?}");
}

fn storm_log(group: &str) -> String {
    format!("tsw:{{={group}}}:default:5000/1h:storm:log")
}

#[tokio::test]
async fn message_storm_sends_its_alerts() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = format!("http://{}/hook", listener.local_addr().unwrap());
    let flags = ["--threshold", "2/3s", "--alert-webhook", &hook];
    let mut program = start(STORM, &flags);
    program.write("lobby\t1\nlobby\t2\nlobby\t3\n");
    program.end_input();
    assert_eq!(program.line().unwrap(), "storm start group=\"lobby\" count=3");
    let alert = || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let length = connection.read(&mut request).unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    };
    assert!(alert().ends_with(r#"{"text":"storm start group=\"lobby\" count=3"}"#));
    assert!(program.line().unwrap().starts_with("storm end group=\"lobby\" peak=3 lasted="));
    assert!(alert().contains("storm end"));
    let (status, logs, _) = program.stopped();
    assert_eq!(status.code(), Some(0), "{logs}");
}

#[test]
fn speech_monitor_mutes_the_third_of_a_kind() {
    let input = "bob\tlunch?\nmal\tcheap gold\nmal\tCHEAP GOLD!\nmal\tc h e a p gold\nmal\thello\n";
    let (code, lines, logs) = Program::fed(MONITOR, &[], input);
    assert_eq!(code, Some(0), "{logs}");
    let seen_by_all = lines.iter().filter(|line| line.starts_with("all see")).count();
    assert_eq!((lines.len(), seen_by_all), (5, 3), "{lines:?}");
    assert!(logs.contains("audit: similar 3/60s 90% mute 6h: 3 messages within 60s"), "{logs}");
}

#[test]
fn token_budget_settles_each_prompt() {
    let (code, lines, logs) = Program::fed("token_budget", &[], "");
    assert_eq!(code, Some(0), "{logs}");
    let left = |line: &String| Some(line.split_once(", used ")?.1.to_owned());
    let expected = ["350, 19650 left", "0, 19650 left", "7000, 12650 left", "16000, 0 left"];
    assert_eq!(lines.iter().filter_map(left).collect::<Vec<_>>(), expected, "{lines:?}");
    assert!(lines.last().unwrap().starts_with("denied: a poem, again in 9"), "{lines:?}");
}

#[test]
fn in_flight_gives_each_place_back() {
    let (code, lines, logs) = Program::fed("in_flight", &[], "");
    assert_eq!(code, Some(0), "{logs}");
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

#[test]
fn accounts_per_address_stops_the_script_only() {
    let (code, lines, logs) = Program::fed("accounts_per_address", &[], "");
    assert_eq!(code, Some(0), "{logs}");
    let expected = [
        "family: 4 users, 12 orders sent, 12 admitted",
        "script: 100 users, 500 orders sent, 25 admitted",
        "  5 users got through; the last denial: again in 600 s",
        "family: 5 users, 5 orders sent, 5 admitted",
    ];
    assert_eq!(lines[lines.len() - 4..], expected);
}
