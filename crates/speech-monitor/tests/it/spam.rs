//! Honest senders are not muted, and disguised spam is.

use std::iter::repeat_with;

use speech_monitor::{Message, Rule, SpeechMonitor};

/// Has one sender say texts within a moment, and returns whether all are delivered.
async fn are_delivered(texts: impl IntoIterator<Item = String>) -> bool {
    let monitor = SpeechMonitor::in_process(Rule::recommended());
    for text in texts {
        if !monitor.check(&Message::from("alice").text(text)).await.unwrap().is_delivered() {
            return false;
        }
    }
    true
}

const HONEST: [[&str; 5]; 12] = [
    ["ok"; 5],
    ["👍"; 5],
    ["+1", "+1", "1", "+1", "+1!"],
    ["thank you", "thank you!", "Thank you", "thank you", "thanks"],
    ["谢谢", "谢谢!", "收到", "收到", "谢谢老板"],
    [
        "Order 1001 is ready",
        "Order 1002 is ready",
        "Order 1003 is ready",
        "Order 1004 is ready",
        "Order 1007 is ready",
    ],
    [
        "Your order 1001 is ready for pickup at the counter.",
        "Your order 1002 is ready for pickup at the counter.",
        "Your order 1003 is ready for pickup at the counter.",
        "Your order 1011 is ready for pickup at the counter.",
        "Your order 1101 is ready for pickup at the counter.",
    ],
    ["订单1001已完成", "订单1002已完成", "订单1003已完成", "订单1004已完成", "订单1005已完成"],
    [
        "Ticket #4711 is closed. Please write to us if it happens again.",
        "Ticket #4712 is closed. Please write to us if it happens again.",
        "Ticket #4719 is closed. Please write to us if it happens again.",
        "Ticket #4733 is closed. Please write to us if it happens again.",
        "Ticket #4740 is closed. Please write to us if it happens again.",
    ],
    ["10:00", "10:30", "11:00", "11:30", "12:00"],
    [
        "We have sent you a new password by mail, Anna.",
        "Your refund is on its way and takes two days, Ben.",
        "Please tell us the number on the back of the card.",
        "The driver comes between ten and twelve tomorrow.",
        "I am sorry to hear that, let me look into it for you.",
    ],
    [
        "is anybody up for noodles?",
        "is anybody up for a film?",
        "what about the thai place",
        "the thai place is closed today",
        "ok then the film",
    ],
];

#[tokio::test(start_paused = true)]
async fn honest_senders_are_not_muted() {
    for texts in HONEST {
        assert!(are_delivered(texts.map(str::to_owned)).await, "{texts:?}");
    }
}

const SPAM: [&str; 4] = [
    "Cheap gold at example.com, fast delivery and great prices",
    "Earn money from home today! Write to 01701234567 for details",
    "FREE followers for everybody, just visit example.net now",
    "buy cheap gold at example.com",
];

/// A disguise of a text, another one each time.
type Disguise = fn(&str, &mut fastrand::Rng) -> String;

fn inserted(text: &str, with: &[&str], rng: &mut fastrand::Rng) -> String {
    let insert = |letter: char| match rng.u8(..3) {
        0 => format!("{letter}{}", with[rng.usize(..with.len())]),
        _ => letter.to_string(),
    };
    text.chars().map(insert).collect()
}

fn random(length: usize, rng: &mut fastrand::Rng) -> String {
    repeat_with(|| rng.alphanumeric()).take(length).collect()
}

const DISGUISES: [(&str, Disguise); 8] = [
    ("the same", |text, _| text.to_owned()),
    ("punctuation", |text, rng| inserted(text, &[".", "!", "-", "*", "'", "~"], rng)),
    ("spaces", |text, rng| inserted(text, &[" "], rng)),
    ("emoji", |text, rng| inserted(text, &["🔥", "💰", "👍🏽", "❤️"], rng)),
    ("shuffled words", |text, rng| {
        let mut words: Vec<&str> = text.split(' ').collect();
        rng.shuffle(&mut words);
        words.join(" ")
    }),
    ("a random end", |text, rng| {
        let length = text.len() * 12 / 88;
        format!("{text} {}", random(length, rng))
    }),
    ("500 random characters in front", |text, rng| format!("{} {text}", random(500, rng))),
    ("100 random words in front", |text, rng| {
        let words = repeat_with(|| {
            let length = rng.usize(2..9);
            random(length, rng)
        });
        format!("{} {text}", words.take(100).collect::<Vec<_>>().join(" "))
    }),
];

#[tokio::test(start_paused = true)]
async fn disguised_spam_is_muted() {
    let mut rng = fastrand::Rng::with_seed(7);
    for (name, disguise) in DISGUISES {
        let mut muted = 0;
        for sender in 0..100 {
            let texts: Vec<_> = (0..3).map(|_| disguise(SPAM[sender % 4], &mut rng)).collect();
            muted += i32::from(!are_delivered(texts).await);
        }
        println!("{name}: {muted} of 100 are muted");
        assert!(muted >= 97, "{name}: {muted} of 100");
    }
}
