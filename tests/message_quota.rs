//! What the message_quota example promises, replayed under paused time: when a message is sent, in
//! which order, and that none is lost silently.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "../examples/message_quota/line.rs"]
mod line;
#[path = "../examples/message_quota/outbox.rs"]
mod outbox;
#[path = "../examples/message_quota/result.rs"]
mod result;
#[path = "../examples/message_quota/session.rs"]
mod session;

use std::io::{self, Cursor, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tower_sliding_window::store::{Check, Partition, Store, StoreFuture, Verdict};
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, StoreError};

use line::{Line, LineError, Message};
use outbox::Hold;
use result::{Outcome, Reason, ResultLine};
use session::{Session, Summary};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// What is printed and flushed, line by line, and when.
#[derive(Clone)]
struct Printed {
    start: Instant,
    unflushed: String,
    lines: Arc<Mutex<Vec<(Duration, String)>>>,
}

impl Printed {
    fn new() -> Self {
        Self { start: Instant::now(), unflushed: String::new(), lines: Arc::default() }
    }

    fn take(&self) -> Vec<(Duration, String)> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unflushed.push_str(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let line = self.unflushed.strip_suffix('\n').expect("it is flushed after a line");
        assert!(!line.contains('\n'), "each line is flushed");
        self.lines.lock().unwrap().push((self.start.elapsed(), line.to_owned()));
        self.unflushed.clear();
        Ok(())
    }
}

/// A session that is fed lines at certain times.
struct Replay {
    limiter: Limiter,
    waiting_at_most: Option<usize>,
    stop_after: Duration,
}

impl Replay {
    fn new(quota: &str) -> Self {
        let policy: Policy = quota.parse().unwrap();
        Self::on(Limiter::new(policy, MemoryStore::new()))
    }

    fn on(limiter: Limiter) -> Self {
        // Paused time goes by at once, so this is never.
        Self { limiter, waiting_at_most: None, stop_after: Duration::from_secs(u32::MAX.into()) }
    }

    fn waiting_at_most(self, most: usize) -> Self {
        Self { waiting_at_most: Some(most), ..self }
    }

    fn stopped_after(self, stop_after: Duration) -> Self {
        Self { stop_after, ..self }
    }

    /// Gives each line when it is due, and returns what is printed and when, and the summary.
    async fn run(self, given: &[(Duration, &str)]) -> (Vec<(Duration, String)>, Summary) {
        let printed = Printed::new();
        let (sender, lines) = mpsc::channel::<Line>(1);
        let session = Session::new(self.limiter, self.waiting_at_most, true, printed.clone());
        let stop = sleep_until(printed.start + self.stop_after);
        let feed = async {
            let sender = sender;
            for (number, (at, text)) in (1..).zip(given) {
                sleep_until(printed.start + *at).await;
                let line = Message::parse(number, text.as_bytes());
                if sender.send((number, line)).await.is_err() {
                    return;
                }
            }
        };
        let (summary, ()) = tokio::join!(session.run(lines, stop), feed);
        (printed.take(), summary.unwrap())
    }
}

/// Names the minute of what is printed.
fn by_minute(printed: Vec<(Duration, String)>) -> Vec<(f64, String)> {
    printed.into_iter().map(|(at, line)| (at.as_secs_f64() / 60.0, line)).collect()
}

fn at_minutes<const N: usize>(minutes: [u32; N]) -> [(Duration, &'static str); N] {
    minutes.map(|minute| (minute * MINUTE, "bob\thi"))
}

fn expected(lines: &[(f64, &str)]) -> Vec<(f64, String)> {
    lines.iter().map(|(at, line)| (*at, format!("{line} text=hi"))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_send_at_17_12_is_held_for_it_would_be_the_third_in_five_minutes() {
    let sends = at_minutes([0, 7, 11, 12]);
    let first = [(0.0, "sent receiver=bob"), (7.0, "sent receiver=bob")];
    let held = [(11.0, "sent receiver=bob"), (12.0, "held receiver=bob retry_after=300s")];
    let (printed, _) = Replay::new("2/10m").run(&sends).await;
    assert_eq!(by_minute(printed), expected(&[first, held].concat()));

    let (printed, summary) = Replay::new("2/10m").waiting_at_most(1).run(&sends).await;
    let later = [(17.0, "sent receiver=bob")];
    assert_eq!(by_minute(printed), expected(&[&first[..], &held, &later].concat()));
    assert_eq!((summary.dropped, summary.failed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_send_at_17_11_passes_for_only_one_lies_in_the_past_ten_minutes() {
    let sends = at_minutes([0, 7, 11]);
    for replay in [Replay::new("2/10m"), Replay::new("2/10m").waiting_at_most(1)] {
        let (printed, _) = replay.run(&sends).await;
        let sent = [0.0, 7.0, 11.0].map(|minute| (minute, "sent receiver=bob"));
        assert_eq!(by_minute(printed), expected(&sent));
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_sent_in_order_and_holds_nobody_else_up() {
    let given = [
        (Duration::ZERO, "bob\t1"),
        (Duration::ZERO, "bob\t2"),
        (Duration::ZERO, "bob\t3"),
        (SECOND, "ann\t4"),
        // It comes when there is room for one, which is for the second.
        (10 * MINUTE, "bob\t5"),
        (10 * MINUTE + SECOND, "ann\t6"),
    ];
    let (printed, _) = Replay::new("1/10m").waiting_at_most(9).run(&given).await;
    let lines: Vec<_> = printed.iter().map(|(at, line)| (at.as_secs(), line.as_str())).collect();
    let due_before_the_fifth_came = [
        (0, "sent receiver=bob text=1"),
        (0, "held receiver=bob retry_after=600s text=2"),
        (0, "held receiver=bob retry_after=600s text=3"),
        (1, "sent receiver=ann text=4"),
        (600, "sent receiver=bob text=2"),
        (600, "held receiver=bob retry_after=600s text=5"),
        (601, "sent receiver=ann text=6"),
        (1200, "sent receiver=bob text=3"),
        (1800, "sent receiver=bob text=5"),
    ];
    assert_eq!(lines, due_before_the_fifth_came);
}

#[tokio::test(start_paused = true)]
async fn what_is_above_the_bound_is_dropped_and_said_so() {
    let given = [
        (Duration::ZERO, "bob\t1"),
        (Duration::ZERO, "ann\t2"),
        (SECOND, "bob\t3"),
        (SECOND, "ann\t4"),
        // Two wait, so there is no room for another of either or of nobody's before.
        (SECOND, "bob\t5"),
        (SECOND, "eve\t6"),
        (SECOND, "eve\t7"),
        // Both have been sent, so there is room again.
        (601 * SECOND, "bob\t8"),
    ];
    let (printed, summary) = Replay::new("1/10m").waiting_at_most(2).run(&given).await;
    let lines: Vec<_> = printed.iter().map(|(_, line)| line.as_str()).collect();
    let expected = [
        "sent receiver=bob text=1",
        "sent receiver=ann text=2",
        "held receiver=bob retry_after=599s text=3",
        "held receiver=ann retry_after=599s text=4",
        "dropped receiver=bob reason=too_many_waiting text=5",
        "sent receiver=eve text=6",
        "dropped receiver=eve reason=too_many_waiting text=7",
    ];
    assert_eq!(lines[..7], expected);
    let mut both = lines[7..9].to_vec();
    both.sort_unstable();
    assert_eq!(both, ["sent receiver=ann text=4", "sent receiver=bob text=3"]);
    let last = ["held receiver=bob retry_after=599s text=8", "sent receiver=bob text=8"];
    assert_eq!(lines[9..], last);
    assert_eq!(summary.dropped, 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_place_another_sender_took_waits_on_and_is_not_lost() {
    let limiter = Limiter::new(Quota::new(1, 10 * MINUTE), MemoryStore::new());
    let other = limiter.clone();
    let start = Instant::now();
    let takes = async {
        // Just before the session's own wait is over, and later than that by the store's clock.
        assert!(other.check("bob").await.unwrap().is_admitted());
        sleep_until(start + 10 * MINUTE).await;
        assert!(other.check("bob").await.unwrap().is_admitted());
    };
    // Polled first, so that it is first whenever both are awake.
    let given = [(SECOND, "bob\thi")];
    let ((), (printed, _)) =
        tokio::join!(biased; takes, Replay::on(limiter).waiting_at_most(1).run(&given));
    let lines = [(1.0 / 60.0, "held receiver=bob retry_after=599s"), (20.0, "sent receiver=bob")];
    assert_eq!(by_minute(printed), expected(&lines), "held is said once");
}

#[tokio::test(start_paused = true)]
async fn asked_to_stop_it_says_which_messages_were_not_sent() {
    let given = [
        (Duration::ZERO, "bob\t1"),
        (Duration::ZERO, "ann\t2"),
        (Duration::ZERO, "bob\t3"),
        (Duration::ZERO, "ann\t4"),
        (Duration::ZERO, "bob\t5"),
        (5 * MINUTE, "bob\t6"),
    ];
    let replay = Replay::new("1/10m").waiting_at_most(9).stopped_after(MINUTE);
    let (printed, summary) = replay.run(&given).await;
    let lines: Vec<_> = printed.iter().skip(5).map(|(_, line)| line.as_str()).collect();
    let expected = [
        "dropped receiver=bob reason=stopped text=3",
        "dropped receiver=ann reason=stopped text=4",
        "dropped receiver=bob reason=stopped text=5",
    ];
    assert_eq!(lines, expected);
    let stopped = summary.stopped.unwrap();
    assert_eq!((stopped.after_line, stopped.not_sent), (5, 3));
}

/// A store in this process that can be out of order.
#[derive(Clone)]
struct Faulty(MemoryStore, Arc<AtomicBool>);

impl Faulty {
    fn or_error<T>(&self, answer: impl FnOnce(&MemoryStore) -> StoreFuture<T>) -> StoreFuture<T> {
        match self.1.load(Ordering::Relaxed) {
            true => StoreFuture::ready(Err(StoreError::Timeout)),
            false => answer(&self.0),
        }
    }
}

impl Store for Faulty {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        self.or_error(|store| store.admit(check))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        self.or_error(|store| store.peek(check))
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        self.or_error(|store| store.cancel(check))
    }

    fn restore(&self, check: &Check, age: Duration) -> StoreFuture<()> {
        self.or_error(|store| store.restore(check, age))
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        self.or_error(|store| store.reset(partitions))
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_could_decide_on_fails_or_waits_for_the_store() {
    let out_of_order = Arc::new(AtomicBool::new(true));
    let store = Faulty(MemoryStore::new(), out_of_order.clone());
    let limiter = Limiter::new(Quota::new(1, 10 * MINUTE), store);
    let given = [(Duration::ZERO, "bob\t1"), (Duration::ZERO, "bob\t2")];

    let (printed, summary) = Replay::on(limiter.clone()).run(&given).await;
    let lines: Vec<_> = printed.into_iter().map(|(_, line)| line).collect();
    let failed =
        |text: u8| format!("failed receiver=bob retry_after=1s reason=timeout text={text}");
    assert_eq!(lines, [failed(1), failed(2)]);
    assert_eq!(summary.failed, 2);

    let repair = async {
        tokio::time::sleep(MINUTE).await;
        out_of_order.store(false, Ordering::Relaxed);
    };
    let replay = Replay::on(limiter).waiting_at_most(2);
    let ((), (printed, summary)) = tokio::join!(biased; repair, replay.run(&given));
    let lines: Vec<_> = printed.iter().map(|(at, line)| (at.as_secs(), line.as_str())).collect();
    let expected = [
        (0, "held receiver=bob retry_after=1s reason=timeout text=1"),
        (0, "held receiver=bob retry_after=1s reason=timeout text=2"),
        (60, "sent receiver=bob text=1"),
        (660, "sent receiver=bob text=2"),
    ];
    assert_eq!(lines, expected);
    assert_eq!(summary.failed, 0);
}

#[tokio::test(start_paused = true)]
async fn an_input_that_breaks_off_is_told_and_what_waits_is_sent() {
    let (sender, lines) = mpsc::channel(9);
    for number in 1..=2 {
        sender.send((number, Message::parse(number, b"bob\thi"))).await.unwrap();
    }
    let broken = LineError::Unreadable(io::Error::other("gone"));
    sender.send((3, Err(broken))).await.unwrap();
    drop(sender);
    let (limiter, printed) = (Replay::new("1/10m").limiter, Printed::new());
    let session = Session::new(limiter, Some(1), false, printed.clone());
    let summary = session.run(lines, std::future::pending()).await.unwrap();
    assert!(summary.unreadable.unwrap().to_string().contains("gone"));
    let lines: Vec<_> = printed.take().into_iter().map(|(_, line)| line).collect();
    let expected = ["sent receiver=bob", "held receiver=bob retry_after=600s", "sent receiver=bob"];
    assert_eq!(lines, expected);
}

/// When each message is sent at the earliest: in order, and no more than the limit in a window.
fn earliest(limit: usize, window: Duration, arrivals: &[(Duration, u8)]) -> Vec<Duration> {
    let mut sent: Vec<Vec<Duration>> = vec![Vec::new(); 256];
    let of = |(at, receiver): &(Duration, u8)| {
        let before = &mut sent[usize::from(*receiver)];
        let in_order = before.last().copied().unwrap_or_default();
        let limit_ago = before.len().checked_sub(limit).map(|index| before[index] + window);
        let when = (*at).max(in_order).max(limit_ago.unwrap_or_default());
        before.push(when);
        when
    };
    arrivals.iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_sent_as_soon_as_the_quota_and_those_before_it_allow(
        limit in 1..4_usize,
        gaps in prop::collection::vec((0..300_u64, 0..3_u8), 1..40),
    ) {
        let mut at = Duration::ZERO;
        let arrivals: Vec<_> = gaps.into_iter().map(|(gap, receiver)| {
            at += Duration::from_secs(gap);
            (at, receiver)
        }).collect();
        let texts: Vec<_> = arrivals.iter().enumerate()
            .map(|(number, (_, receiver))| format!("{receiver}\t{number}"))
            .collect();
        let given: Vec<_> =
            arrivals.iter().zip(&texts).map(|((at, _), text)| (*at, text.as_str())).collect();

        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let printed = runtime.block_on(async {
            let replay = Replay::new(&format!("{limit}/10m")).waiting_at_most(usize::MAX);
            replay.run(&given).await.0
        });

        let sent: Vec<_> = printed.iter().filter(|(_, line)| line.starts_with("sent ")).collect();
        let due = earliest(limit, 10 * MINUTE, &arrivals);
        prop_assert_eq!(sent.len(), due.len(), "each is sent, and once");
        for (number, due) in due.iter().enumerate() {
            let text = format!(" text={number}");
            let (at, _) = sent.iter().find(|(_, line)| line.ends_with(&text)).unwrap();
            prop_assert_eq!(at, due, "message {}", number);
        }
    }
}

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
    let mut lines = line::lines(Cursor::new(given.join(&b'\n')));
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
