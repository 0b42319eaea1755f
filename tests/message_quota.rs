//! What the message_quota example promises, replayed under paused time: when a message is sent, in
//! which order, and that none is lost silently.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "../examples/common/mod.rs"]
mod common;
#[path = "../examples/message_quota/line.rs"]
#[allow(dead_code, reason = "how lines are read is tested elsewhere")]
mod line;
#[path = "../examples/message_quota/outbox.rs"]
mod outbox;
#[path = "../examples/message_quota/result.rs"]
mod result;
#[path = "../examples/message_quota/session.rs"]
mod session;

#[path = "support/replay.rs"]
mod replay;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tower_sliding_window::store::{
    Check, LogId, LogSnapshot, Outcome, Restored, Store, StoreFuture,
};
use tower_sliding_window::{Limiter, MemoryStore, Quota, StoreError};

use common::lines::Unread;
use line::{LineError, Message};
use outbox::{Offer, Outbox};
use replay::{Printed, Replay};
use session::Session;

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

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
    let expected = [
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
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn a_message_goes_behind_those_that_wait_although_there_is_room_again() {
    let limiter = Limiter::new(Quota::new(1, MINUTE), MemoryStore::new());
    let mut outbox = Outbox::new(limiter, 9);
    assert!(matches!(outbox.offer("bob", 1).await, Offer::Admitted(1)));
    assert!(matches!(outbox.offer("bob", 2).await, Offer::Held(_)));
    // Nobody has tried the second yet, though its time has come.
    tokio::time::advance(2 * MINUTE).await;
    assert!(matches!(outbox.offer("bob", 3).await, Offer::Held(_)));
    outbox.due().await;
    assert_eq!(outbox.try_due().await, Some(2));
    assert_eq!(outbox.try_due().await, None);
    outbox.due().await;
    assert_eq!(outbox.try_due().await, Some(3));
    assert_eq!(outbox.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_above_the_bound_is_dropped_and_said_so() {
    let given = [
        (Duration::ZERO, "bob\t1"),
        (Duration::ZERO, "ann\t2"),
        (SECOND, "bob\t3"),
        (SECOND, "ann\t4"),
        // Two wait, so there is no room for a third, whoever it is for; who is not held is sent.
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
        // Before the message comes, and again at the instant its place is free.
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
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        self.or_error(|store| store.admit(check))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        self.or_error(|store| store.peek(check))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        self.or_error(|store| store.cancel(check))
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        self.or_error(|store| store.restore(log, known))
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.or_error(|store| store.reset(logs))
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
    let broken = LineError::Unread(Unread::Input(io::Error::other("gone")));
    sender.send((3, Err(broken))).await.unwrap();
    drop(sender);
    let limiter = Limiter::new(Quota::new(1, 10 * MINUTE), MemoryStore::new());
    let printed = Printed::new();
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
