//! Honest senders are not muted, and disguised spam is.

use std::iter::repeat_with;

use super::is_delivered;
use crate::{Message, Rule, SpeechMonitor, similarity};

/// Has one sender say texts within a moment, and returns whether all are delivered.
async fn are_delivered(texts: impl IntoIterator<Item = String>) -> bool {
    let monitor = SpeechMonitor::in_process(Rule::recommended());
    for text in texts {
        if !is_delivered(&monitor, &Message::from("alice").text(text)).await {
            return false;
        }
    }
    true
}

const HONEST: [[&str; 5]; 16] = [
    ["ok"; 5],
    ["👍"; 5],
    ["+1", "+1", "1", "+1", "+1!"],
    ["thank you", "thank you!", "Thank you", "thank you", "thanks"],
    ["谢谢", "谢谢!", "收到", "收到", "谢谢老板"],
    ["ありがとう"; 5],
    ["ขอบคุณ"; 5],
    ["ขอบคุณครับ"; 5],
    ["អរគុណ"; 5],
    ["ကျေးဇူးတင်ပါတယ်"; 5],
    ["?!?!?!?!?!"; 5],
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
    // Long texts that name the same court.
    [
        "My brother wrote his thesis about the European Court of Human Rights and now he sells bicycles in \
         Utrecht, which makes him far happier than any office ever did, or so he says each time we phone.",
        "On Tuesday there was a long queue in front of the European Court of Human Rights because somebody \
         had left a suitcase behind. Nobody was hurt, and the police gave the owner a stern talk and his \
         pyjamas back.",
        "If you look at the budget of the European Court of Human Rights you see how little money there is \
         for cleaning. The staff bring their own soap! A reporter counted eleven broken lamps.",
        "I once met a man who claimed to have founded the European Court of Human Rights in a bar near the \
         harbour. He paid for the drinks with foreign coins, so perhaps there was some truth in what he told \
         us that night.",
        "Yesterday's quiz asked when the European Court of Human Rights was established, and our whole table \
         got it wrong. We came last again, but won a basket of plums for the funniest team name.",
    ],
    [
        "4417 1234 8821 9034 7712 5501 6632 9917 2048 3391 7754 1180 6629 4023 8874 5561 9032 7718 2265 4490 \
         1187 6603 9952",
        "9021 5534 1178 6620 8843 2295 7071 3316 9948 5057 2213 8890 1164 7735 6048 3382 9901 4476 8853 1129 \
         5540 7702 3068",
        "2250 8846 3371 9905 4418 7763 1052 6684 9930 2217 8845 5561 3078 9916 4432 7750 1183 6605 2291 8837 \
         5544 9062 3319",
        "7718 2265 4490 1187 6603 9952 4417 1234 8821 9034 7712 5501 6632 9917 2048 3391 7754 1180 6629 4023 \
         8874 5561 9032",
        "1129 5540 7702 3068 9021 5534 1178 6620 8843 2295 7071 3316 9948 5057 2213 8890 1164 7735 6048 3382 \
         9901 4476 8853",
    ],
];

/// Texts of one template, in which the numbers differ.
const NUMBERED: [(&str, [u32; 5]); 4] = [
    ("Order {} is ready", [1001, 1002, 1003, 1004, 1007]),
    ("Your order {} is ready for pickup at the counter.", [1001, 1002, 1003, 1011, 1101]),
    ("订单{}已完成", [1001, 1002, 1003, 1004, 1005]),
    (
        "Ticket #{} is closed. Please write to us if it happens again.",
        [4711, 4712, 4719, 4733, 4740],
    ),
];

#[tokio::test(start_paused = true)]
async fn honest_senders_are_not_muted() {
    let numbered = NUMBERED.map(|(template, numbers)| {
        numbers.map(|number| template.replace("{}", &number.to_string()))
    });
    for texts in HONEST.map(|texts| texts.map(str::to_owned)).into_iter().chain(numbered) {
        assert!(are_delivered(texts.clone()).await, "{texts:#?}");
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

const DISGUISES: [(&str, Disguise); 6] = [
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
        let end = repeat_with(|| rng.alphanumeric()).take(text.len() * 12 / 88);
        format!("{text} {}", end.collect::<String>())
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

/// So many numbers that no letter is among the parts that are kept of the text.
#[tokio::test(start_paused = true)]
async fn text_full_of_numbers_is_like_itself() {
    for first in [1, 10, 100] {
        let letters = "加微信领红包".chars().cycle().zip(first..first + 100);
        let spam: String = letters.map(|(letter, number)| format!("{letter}{number}")).collect();
        assert_eq!(similarity(&spam, &spam), 100, "{spam}");
        assert!(!are_delivered([&spam; 5].map(String::clone)).await, "{spam}");
    }
}
