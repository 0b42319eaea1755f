//! The example, as a reader runs it.

use test_support::program::{Program, command};
use test_support::{Redis, eventually};

fn start(arguments: &[&str]) -> Program {
    Program::start(&mut command("message_storm", arguments))
}

#[test]
fn says_what_it_waits_for() {
    let mut program = start(&["--threshold", "2/2s"]);
    program.write("lobby\t1\nlobby\t2\nlobby\t3\n");
    assert_eq!(program.line().unwrap(), "storm start group=\"lobby\" count=3");
    program.end_input();
    let (status, logs, printed) = program.stopped();
    assert_eq!(status.code(), Some(0), "{logs}");
    assert!(printed[0].starts_with("storm end group=\"lobby\" peak=3 lasted="), "{printed:?}");
    for line in [
        "reading messages from stdin, a line GROUP<TAB>MESSAGE-ID each",
        "waiting for the end of 1 storms, up to 22s",
    ] {
        assert!(logs.contains(line), "{logs}");
    }
}

#[tokio::test]
async fn says_at_once_what_is_not_counted() {
    let redis = Redis::start().await;
    let mut program = start(&["--threshold", "5000/1h", "--redis", &redis.url()]);
    program.write("lobby\t1\n");
    redis.has_entries("tsw:{=lobby}:default:5000/1h:storm:log", 1).await;
    drop(redis);
    program.write("lobby\t2\n");
    let is_told = async || program.logs().contains("1 messages may not be counted");
    eventually("the loss is told", is_told).await;
    program.kill();
}

/// Redis is gone.
#[tokio::test(flavor = "multi_thread")]
async fn waits_no_longer_than_it_says() {
    let redis = Redis::start().await;
    let mut program = start(&["--threshold", "2/5s", "--redis", &redis.url()]);
    program.write("lobby\t1\nlobby\t2\nlobby\t3\n");
    assert_eq!(program.line().unwrap(), "storm start group=\"lobby\" count=3");
    drop(redis);
    program.end_input();
    let (status, logs, _) = tokio::task::block_in_place(|| program.stopped());
    assert!(logs.contains("waiting for the end of 1 storms, up to 25s"), "{logs}");
    assert!(logs.contains("error: the end of some storms is not known"), "{logs}");
    assert_eq!(status.code(), Some(1));
}
