//! Messages of one sender at the same time, what happens between two steps of a check, and lost replies.

use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, eventually, patient_store};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_sliding_window::RedisStore;

use super::{Audit, HOUR, is_delivered, rules};
use crate::{Message, SpeechMonitor};

const DELAY: Duration = Duration::from_millis(400);

/// Two processes, the first of them behind a proxy, and what the hooks of both got.
struct Two {
    redis: Redis,
    proxy: Proxy,
    far: SpeechMonitor,
    near: SpeechMonitor,
    audit: Audit,
}

impl Two {
    async fn start(texts: &[&str]) -> Self {
        let redis = Redis::start().await;
        let (proxy, audit) = (Proxy::to(redis.port()).await, Audit::default());
        let monitor = |store| audit.of(SpeechMonitor::on_redis(rules(texts), &store));
        let far = monitor(patient_store(proxy.url()).await);
        let near = monitor(redis.store().await);
        for monitor in [&far, &near] {
            // Has the scripts loaded, so that a call is one request.
            let hello = Message::from("bob").text("hello there, you");
            for _ in 0..9 {
                let _ = monitor.check(&hello).await.unwrap();
            }
            monitor.unmute("bob").await.unwrap();
        }
        sleep(Duration::from_millis(50)).await;
        audit.take();
        Self { redis, proxy, far, near, audit }
    }

    fn events(&self) -> Vec<(u64, bool)> {
        self.audit.seconds()
    }

    async fn mutes_alice(&self) {
        let is_muted = async || self.near.mute_of("alice").await.unwrap().is_some();
        eventually("she is muted", is_muted).await;
    }

    /// Begins to check a message in the process behind the proxy.
    fn far_checks(&self, message: Message) -> JoinHandle<Option<bool>> {
        let far = self.far.clone();
        tokio::spawn(async move { far.check(&message).await.ok().map(|it| it.is_delivered()) })
    }
}

async fn says(monitor: &SpeechMonitor, text: &str) -> bool {
    is_delivered(monitor, &Message::from("alice").text(text)).await
}

#[tokio::test]
async fn sender_that_goes_on_during_an_unmute_is_unmuted() {
    let two = Two::start(&["events 3/1h mute 2h"]).await;
    for text in ["one", "two", "three"] {
        let _ = says(&two.near, text).await;
    }
    let third = SpeechMonitor::on_redis(rules(&["events 3/1h mute 2h"]), &two.redis.store().await);
    two.proxy.set(Fault::Delay(DELAY));
    let far = two.far.clone();
    let unmute = tokio::spawn(async move { far.unmute("alice").await });
    let lifted = async || two.redis.run::<usize>(&["EXISTS", "tsw:{=alice}:speech:ban"]).await == 0;
    eventually("the mute is lifted", lifted).await;
    let _ = says(&third, "four").await;
    unmute.await.unwrap().unwrap();
    let mute = two.near.mute_of("alice").await.unwrap();
    assert_eq!(mute, None, "she is unmuted, says the reply");
}

/// Each process knows only its own message when it mutes.
#[tokio::test]
async fn concurrent_lengthening_is_reported_as_such() {
    let two = Two::start(&["events 3/1h mute 2h", "peers 2/1h mute 4h"]).await;
    let writes_to = |peer: &str| Message::from("alice").to(peer);
    assert!(is_delivered(&two.near, &writes_to("ann")).await);
    assert!(says(&two.near, "two").await);
    two.proxy.set(Fault::Delay(DELAY));
    let longer = two.far_checks(writes_to("ben"));
    sleep(DELAY / 2).await;
    assert!(!says(&two.near, "three").await);
    assert_eq!(longer.await.unwrap(), Some(false));
    two.far.settled().await;
    assert_eq!(two.events(), [(7200, false), (14400, true)]);
}

#[tokio::test]
async fn lost_reply_does_not_report_the_mute_of_another_process() {
    let two = Two::start(&["events 3/1h mute 2h"]).await;
    assert!(says(&two.near, "one").await && says(&two.near, "two").await);
    two.proxy.drop_replies_to("messages within", 1);
    two.proxy.set(Fault::Delay(DELAY));
    let late = two.far_checks(Message::from("alice").text("four"));
    sleep(DELAY / 2).await;
    assert!(!says(&two.near, "three").await);
    assert_eq!(late.await.unwrap(), None, "its reply is lost, and it has imposed nothing");
    two.far.settled().await;
    assert_eq!(two.events(), [(7200, false)]);
}

#[tokio::test]
async fn message_of_a_lost_reply_counts_once() {
    let two = Two::start(&["events 4/1h mute 2h", "similar 4/1h 90% mute 1h"]).await;
    for number in 1..=3 {
        two.proxy.drop_replies(1);
        assert!(says(&two.far, "buy cheap gold").await);
        assert_eq!(two.proxy.dropped(), number, "the answer was lost");
    }
    for log in ["messages", "prints"] {
        let log = format!("tsw:{{=alice}}:speech:log:{log}");
        assert_eq!(two.redis.entries(&log).await, 3, "{log}");
    }
}

/// Of a rule, or by hand.
#[tokio::test]
async fn mute_is_reported_after_a_hang_up() {
    for (by_hand, seconds) in [(false, 7200), (true, 3600)] {
        let two = Two::start(&["events 3/1h mute 2h"]).await;
        assert!(says(&two.far, "one").await && says(&two.far, "two").await);
        two.far.mute("bob", Duration::from_secs(60)).await.unwrap();
        two.proxy.set(Fault::Delay(DELAY));
        let third = Message::from("alice").text("three");
        let left = match by_hand {
            true => timeout(DELAY / 2, two.far.mute("alice", HOUR)).await.map(drop),
            // The look for a mute and the record take one delay each.
            false => timeout(DELAY * 5 / 2, two.far.check(&third)).await.map(drop),
        };
        assert!(left.is_err(), "the reply to the mute is still under way");
        two.mutes_alice().await;
        two.far.settled().await;
        assert_eq!(two.events(), [(60, false), (seconds, false)]);
    }
}

#[tokio::test]
async fn a_lost_reply_does_not_undo_an_unmute() {
    let two = Two::start(&["events 3/1h mute 2h"]).await;
    assert!(says(&two.far, "one").await && says(&two.far, "two").await);
    two.proxy.drop_replies_to("3 messages within", 1);
    assert!(two.far.check(&Message::from("alice").text("three")).await.is_err());
    two.near.unmute("alice").await.unwrap();
    two.far.settled().await;
    assert_eq!(two.near.mute_of("alice").await.unwrap(), None);
    assert_eq!(two.events(), []);
}

#[tokio::test]
async fn manual_mute_whose_reply_is_lost_is_reported() {
    let two = Two::start(&["events 3/1h mute 2h"]).await;
    for (hours, lengthens) in [(1, false), (2, true)] {
        two.proxy.drop_replies_to("a manual mute", 1);
        two.far.mute("alice", hours * HOUR).await.unwrap_err();
        two.far.settled().await;
        assert_eq!(two.events(), [(u64::from(hours) * 3600, lengthens)]);
        two.audit.take();
    }
}

#[tokio::test]
async fn mute_that_arrives_late_is_reported() {
    tokio::join!(late_mute_is_reported(2), late_mute_is_reported(3));
}

/// The packets that impose a mute, or lengthen one, arrive two seconds late.
async fn late_mute_is_reported(before: usize) {
    let texts = ["events 3/1h mute 2h", "peers 2/1h mute 4h"];
    let two = Two::start(&texts).await;
    let store = RedisStore::connect(two.proxy.url()).await.unwrap();
    let far = two.audit.of(SpeechMonitor::on_redis(rules(&texts), &store));
    let lengthened = || two.events().into_iter().map(|it| it.1).collect::<Vec<_>>();
    for _ in 0..before {
        let _ = far.check(&Message::from("alice").to("ann")).await.unwrap();
    }
    let is_muted = before == 3;
    let mut expected = if is_muted { vec![false] } else { vec![] };
    assert_eq!(lengthened(), expected, "the mute of two hours");
    two.proxy.set(Fault::Delay(DELAY));
    let late = far.clone();
    let last = tokio::spawn(async move { late.check(&Message::from("alice").to("ben")).await });
    // The message is recorded, and the reply under way.
    two.redis.has_entries("tsw:{=alice}:speech:log:peers", 2).await;
    // And now the reply to the look before the mute.
    sleep(DELAY + DELAY / 2).await;
    two.proxy.set(Fault::Forget);
    let decision = last.await.unwrap().ok();
    assert_eq!(decision.map(|it| it.is_delivered()), is_muted.then_some(false));
    sleep(Duration::from_secs(2)).await;
    two.proxy.set(Fault::None);
    expected.push(is_muted);
    eventually("the audit log hears of it", async || lengthened() == expected).await;
    let mute = two.near.mute_of("alice").await.unwrap().unwrap();
    assert!(mute.remaining > 3 * HOUR, "{mute:?}");
    far.settled().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lengthened(), expected, "once");
}

/// Its rule lengthens a mute once, and not by what has passed when Redis has lost it.
#[tokio::test]
async fn mute_is_reported_once_although_redis_loses_its_data() {
    let mut two = Two::start(&["events 3/1h mute 2h"]).await;
    for _ in 0..2 {
        for _ in 0..4 {
            let message = Message::from("alice").text("one");
            eventually("it is checked", async || two.near.check(&message).await.is_ok()).await;
        }
        two.redis.restart().await;
        let answers = async || two.near.mute_of("bob").await.is_ok();
        eventually("it answers", answers).await;
        sleep(Duration::from_millis(1_500)).await;
    }
    assert_eq!(two.events(), [(7_200, false)]);
}
