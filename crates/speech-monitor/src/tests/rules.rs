//! What triggers a rule, and which messages are similar.

use super::*;

on_both!(
    last_message_of_each_case_triggers_a_rule,
    nine_peers_in_5m_mute_for_48h,
    entry_exactly_one_window_old_is_out,
    noise_does_not_hide_similar_messages,
    different_messages_do_not_mute,
    number_of_kept_texts_is_bounded,
    one_text_of_many_senders_is_a_campaign,
);

/// Rules, the messages of a sender, and what the last message triggers. The messages are their seconds
/// and texts, or `@` and the peer that gets a picture.
const CASES: &[(&str, &str, &str)] = &[
    (
        "similar 5/5m 90% mute 12h",
        "0 Cheap gold; 70 Cheap gold; 140 Cheap gold; 210 Cheap gold; 299 cheap gold!",
        "similar 5/300s 90% mute 12h: 5 messages within 300s at 100% similarity",
    ),
    (
        // Only two of the first are within any minute, and the third is two minutes old later.
        RECOMMENDED,
        "0 加微信领红包; 20 加微信领红包！; 81 加 微信领红包; 141 今天天气很好; 142 加微信领红包; 143 hello; \
         440 加微信领红包; 450 加微信领红包; 499 加微信领红包",
        "similar 3/60s 90% mute 6h: 3 messages within 60s at 100% similarity",
    ),
    (
        // The fifth peer is too late.
        RECOMMENDED,
        "0 @a; 45 @b; 90 @c; 135 @d; 180 @e; 200 @f",
        "peers 5/180s mute 24h: 5 private-chat peers within 180s",
    ),
    (
        // A repeated peer moves and counts once.
        "peers 3/1m mute 24h",
        "0 @a; 1 @a; 2 @a; 19 @a; 70 @b; 75 @a; 80 @b; 134 @c",
        "peers 3/60s mute 24h: 3 private-chat peers within 60s",
    ),
    (
        // At second 10 the first two have left.
        "events 4/10s mute 1h",
        "0 one; 0 @bob; 5 two; 10 three; 11 @bob; 14 @carol",
        "events 4/10s mute 1h: 4 messages within 10s",
    ),
    (
        // Three messages in the last minute and five in the last five, but only three are similar.
        "similar 3/1m 90% mute 6h; similar 5/5m 90% mute 12h",
        "0 buy cheap gold; 0 buy cheap gold; 100 hello; 100 good morning; 100 buy cheap gold",
        "",
    ),
    (
        // The first two have too little in common, and each has enough in common with the third.
        "similar 3/1m 90% mute 6h",
        "0 old silver and platinum; 0 cheap gold silver and pl; 0 cheap gold silver and platinum",
        "similar 3/60s 90% mute 6h: 3 messages within 60s at 90% similarity",
    ),
    (
        // The newest is similar to only one of the others.
        "similar 3/1m 90% mute 6h",
        "0 old silver and platinum; 0 cheap gold silver and platinum; 0 cheap gold silver and pl",
        "",
    ),
    (
        "similar 2/1m 90% mute 6h",
        "0 buy cheap gold at example.com; 0 example.com: gold, buy cheap at 🔥",
        "similar 2/60s 90% mute 6h: 2 messages within 60s at 100% similarity",
    ),
    // Short texts are not compared, and other numbers are other words.
    (RECOMMENDED, "0 ok; 1 ok; 2 ok; 3 👍; 4 👍; 5 👍; 6 thank you; 7 thank you; 8 thank you", ""),
    (RECOMMENDED, "0 Order 1001 is ready; 1 Order 1002 is ready; 2 Order 1003 is ready", ""),
    (
        // Blank texts are similar to each other. Pictures are not compared.
        "similar 3/1m 90% min 0 mute 6h",
        "0 @bob; 0 @bob; 0 @bob; 0 @bob; 0 ; 0 \n\u{200b}; 0   ",
        "similar 3/60s 90% min 0 mute 6h: 3 messages within 60s at 100% similarity",
    ),
];
const RECOMMENDED: &str = "similar 5/5m 90% mute 12h; similar 3/1m 90% mute 6h; \
    peers 5/3m mute 24h; peers 9/5m mute 48h";

async fn last_message_of_each_case_triggers_a_rule(chat: Chat) {
    let parsed = |texts: &str| rules(&texts.split("; ").collect::<Vec<_>>());
    assert_eq!(parsed(RECOMMENDED), Rule::recommended());
    let mut chat = chat;
    for (index, (texts, messages, expected)) in CASES.iter().enumerate() {
        chat.use_rules(parsed(texts));
        let (start, sender) = (Duration::from_secs(1000 * index as u64), index.to_string());
        let mut mute = None;
        for message in messages.split("; ") {
            assert_eq!(mute, None, "earlier messages are delivered: {messages}");
            let (second, text) = message.split_once(' ').unwrap();
            let message = match text.strip_prefix('@') {
                Some(peer) => Message::from(&sender).to(peer),
                None => Message::from(&sender).text(text),
            };
            let at = start + Duration::from_secs(second.parse().unwrap());
            mute = chat.at_exactly(at).await.send(message).await;
        }
        let mut events = chat.events.lock().unwrap();
        let Some(mute) = mute else {
            assert_eq!((*expected, events.len()), ("", 0), "{messages}");
            continue;
        };
        assert_eq!(mute.reason(), *expected);
        assert_eq!(hours_left(&mute), mute.rule().unwrap().mute().as_secs() / 3600);
        let event = events.pop().unwrap();
        assert_eq!((event.sender.as_bytes(), event.lengthened), (sender.as_bytes(), false));
        assert!(events.is_empty(), "one event for each mute");
    }
}

async fn nine_peers_in_5m_mute_for_48h(chat: Chat) {
    let mut chat = chat.with_rules(&RECOMMENDED.split("; ").collect::<Vec<_>>());
    for peer in 0..9_u32 {
        let mute = chat.at(f64::from(peer) * 37.0).await.writes_to(&peer.to_string()).await;
        let hours = mute.map(|mute| hours_left(&mute));
        assert_eq!(hours, [None, Some(24), Some(48)][(peer >= 4) as usize + (peer >= 8) as usize]);
    }
    let mute = chat.mute().await.unwrap();
    assert_eq!(mute.reason(), "peers 9/300s mute 48h: 9 private-chat peers within 300s");
    assert_eq!(chat.audit(), [(24, false), (48, true)]);
}

async fn entry_exactly_one_window_old_is_out(chat: Chat) {
    let texts = ["similar 2/1m 90% mute 12h", "peers 2/1m mute 12h", "events 2/1m mute 12h"];
    let mut chat = chat;
    let minute = Duration::from_secs(60);
    for (index, text) in texts.iter().enumerate() {
        chat.use_rules(rules(&[text]));
        let say = |to| Message::from(*text).to(to).text("buy cheap gold");
        let start = Duration::from_secs(1000 * index as u64);
        assert_eq!(chat.at_exactly(start).await.send(say("a")).await, None);
        assert_eq!(chat.at_exactly(start + minute).await.send(say("b")).await, None, "{text}");
        let last = start + 2 * minute - MICROSECOND;
        assert!(chat.at_exactly(last).await.send(say("c")).await.is_some(), "{text}");
    }
}

async fn noise_does_not_hide_similar_messages(chat: Chat) {
    let mut chat = chat.with_rules(&["similar 3/1m 90% mute 6h"]);
    for number in 0..2 {
        assert_eq!(chat.says("buy cheap gold").await, None);
        for other in 0..20 {
            let mute = chat.says(&noise(number * 20 + other)).await;
            assert_eq!(mute, None);
        }
    }
    let mute = chat.at(30.0).await.says("buy cheap gold").await.unwrap();
    assert!(mute.reason().ends_with(": 3 messages within 60s at 100% similarity"));
}

async fn different_messages_do_not_mute(chat: Chat) {
    let chat = chat.with_rules(&RECOMMENDED.split("; ").collect::<Vec<_>>());
    for number in 0..200 {
        assert_eq!(chat.says(&noise(number)).await, None);
    }
    assert_eq!(chat.audit(), []);
}

async fn number_of_kept_texts_is_bounded(chat: Chat) {
    let mut chat = chat.with_rules(&["similar 2/1h 90% mute 6h"]);
    for between in [62, 63] {
        assert_eq!(chat.says("buy cheap gold").await, None);
        for number in 0..between {
            let at = chat.at + MICROSECOND;
            assert_eq!(chat.at_exactly(at).await.says(&noise(between * 100 + number)).await, None);
        }
        let at = chat.at + MICROSECOND;
        let is_muted = chat.at_exactly(at).await.says("buy cheap gold").await.is_some();
        assert_eq!(is_muted, between == 62, "64 texts are kept, including the newest");
        chat.monitor.unmute("alice").await.unwrap();
    }
}

async fn one_text_of_many_senders_is_a_campaign(chat: Chat) {
    let mut chat = chat.with_rules(&["campaign 5/1m mute 1h", "similar 2/1m 90% mute 30m"]);
    let text = "Buy cheap gold at example.com today, only today";
    let says = |sender: u32, text: &str| Message::from(sender.to_string()).text(text);
    let mut muted = Vec::new();
    for sender in 0..8 {
        let text =
            text.split(' ').collect::<Vec<_>>().join(["  ", " 🔥", "... "][sender as usize % 3]);
        if chat.at(f64::from(sender)).await.send(says(sender, &text)).await.is_some() {
            muted.push(sender);
        }
        assert_eq!(chat.send(says(sender + 100, &noise(sender as usize).repeat(3))).await, None);
        assert_eq!(chat.send(says(sender + 200, "good morning, all of you")).await, None, "short");
    }
    assert_eq!(muted, [4, 5, 6, 7]);
    let mute = chat.monitor.mute_of("4").await.unwrap().unwrap();
    assert!(mute.reason().ends_with(": 5 senders of one text within 60s"), "{mute:?}");
    // The first is muted for a repetition, and for longer because of the campaign.
    assert_eq!(hours_left(&chat.send(says(0, text)).await.unwrap()), 1);
    // A minute later the text is no campaign any more.
    assert_eq!(chat.at(68.0).await.send(says(300, text)).await, None);
}

#[tokio::test(start_paused = true)]
async fn different_texts_of_numbers_are_no_campaign() {
    let chat = Chat::in_process().with_rules(&["campaign 5/1m mute 1h"]);
    for sender in 0..5_u64 {
        let [a, b, c] = [7, 11, 13].map(|prime| 1_000_000_000_000 + sender * prime * 987_654_321);
        let text = format!("{a} {b} {c}");
        let mute = chat.send(Message::from(sender.to_string()).text(&text)).await;
        assert_eq!(mute, None, "nobody else has written {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_with_other_numbers_are_no_campaign() {
    let chat = Chat::in_process().with_rules(&["campaign 5/1m mute 1h"]);
    let text = |number: u32| format!("Your order {number} is ready for pickup at the counter.");
    assert!(crate::similarity(&text(1001), &text(1002)) < 90, "they are different messages");
    for sender in 0..5 {
        let mute = chat.send(Message::from(sender.to_string()).text(text(1001 + sender))).await;
        assert_eq!(mute, None, "each sender has written another message");
    }
}

/// Any bytes can name a sender.
#[tokio::test(start_paused = true)]
async fn peers_of_a_binary_sender_are_no_senders_of_a_text() {
    let chat = Chat::in_process().with_rules(&["campaign 5/1m mute 1h", "peers 9/1m mute 1h"]);
    for peer in ["a", "b", "c", "d"] {
        assert_eq!(chat.send(Message::from(*b"\xff\xfe").to(peer)).await, None);
    }
    let message = Message::from("alice").text("0123456789 0123456789 0123456789");
    assert_eq!(chat.send(message).await, None, "she alone has written this text");
}
