//! The message_quota example's lines: what is read, and what is printed.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "../examples/common/mod.rs"]
mod common;
#[path = "../examples/message_quota/line.rs"]
#[allow(dead_code, reason = "what is read here is not passed on")]
mod line;
#[path = "../examples/message_quota/outbox.rs"]
#[allow(dead_code, reason = "how messages wait is tested elsewhere")]
mod outbox;
#[path = "../examples/message_quota/result.rs"]
#[allow(dead_code, reason = "not every outcome is printed here")]
mod result;

use std::io::Cursor;
use std::time::Duration;

use common::lines::lines;
use line::Message;
use outbox::Hold;
use result::{Outcome, Reason, ResultLine};

#[test]
fn lines_are_read_as_they_come_and_what_is_wrong_with_one_is_said() {
    let long = [b"bob\t".as_slice(), &[b'x'; 70_000]].concat();
    let longest = [b"bob\t".as_slice(), &[b'x'; 64 * 1024 - 4]].concat();
    let given: [&[u8]; 9] = [
        b"bob\thello there",
        b"bob\ta\tb\r",
        b"bob\t",
        b"bob",
        b"\thello",
        b"bob\t\xff",
        &long,
        &longest,
        b"eve\tlast",
    ];
    let mut lines = lines(Cursor::new(given.join(&b'\n')), Message::parse);
    let mut said = Vec::new();
    while let Some((number, line)) = lines.blocking_recv() {
        assert_eq!(number as usize, said.len() + 1);
        said.push(match line {
            Ok(message) if message.text.len() > 100 => message.text.len().to_string(),
            Ok(message) => format!("{}: {:?}", message.receiver, message.text),
            Err(error) => error.to_string(),
        });
    }
    let starts = [
        "bob: \"hello there\"",
        "bob: \"a\\tb\"",
        "bob: \"\"",
        "there is no tab",
        "there is no receiver",
        "it is not UTF-8",
        "it is longer than 65536 bytes",
        "65532",
        "eve: \"last\"",
    ];
    assert_eq!(said.len(), starts.len(), "{said:?}");
    for (said, start) in said.iter().zip(starts) {
        assert!(said.starts_with(start), "{said} should be {start}");
    }
}

fn shown(receiver: &str, outcome: Outcome) -> String {
    let message = Message { line: 1, receiver: receiver.to_owned(), text: "a \"b\"".to_owned() };
    ResultLine { message: &message, outcome: &outcome, show_text: false }.to_string()
}

#[test]
fn a_wait_is_in_whole_seconds_rounded_up_and_at_least_one() {
    for (wait_us, seconds) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2), (599_999_999, 600)] {
        let hold = Hold { wait: Duration::from_micros(wait_us), error: None };
        let line = format!("held receiver=bob retry_after={seconds}s");
        assert_eq!(shown("bob", Outcome::Held(hold)), line);
    }
}

#[test]
fn no_receiver_can_forge_a_line_or_a_field() {
    for (receiver, value) in [
        ("+44-20.7946_0000@x", "+44-20.7946_0000@x"),
        ("Łukasz", "Łukasz"),
        ("a b", "\"a b\""),
        ("a\"b", r#""a\"b""#),
        ("a=b", "\"a=b\""),
        ("a\\b", r#""a\\b""#),
        ("a\u{1b}[2J", r#""a\u{1b}[2J""#),
        ("a\rsent", r#""a\rsent""#),
        ("a\u{2028}sent", r#""a\u{2028}sent""#),
    ] {
        assert_eq!(shown(receiver, Outcome::Sent), format!("sent receiver={value}"));
    }
    let stopped = Outcome::Dropped(Reason::Stopped);
    assert_eq!(shown("bob", stopped), "dropped receiver=bob reason=stopped");
}
