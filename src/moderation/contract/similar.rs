//! Which messages are similar.

use super::*;

contract_tests!(
    noise_does_not_hide_similar_messages,
    different_messages_do_not_mute,
    each_rule_counts_within_its_own_window,
    rate_compares_the_newest_with_each_other,
    exact_percentage_is_enough,
    disguised_messages_are_similar,
    blank_texts_are_similar_and_pictures_are_not,
    number_of_kept_texts_is_bounded,
);

async fn noise_does_not_hide_similar_messages(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    for number in 0..2 {
        assert_eq!(chat.says("buy gold").await, None);
        for other in 0..20 {
            let mute = chat.says(&noise(number * 20 + other)).await;
            assert_eq!(mute, None);
        }
    }
    let mute = chat.at(30.0).await.says("buy gold").await.unwrap();
    assert_eq!((mute.reason().count(), mute.reason().percent()), (3, 100));
}

async fn different_messages_do_not_mute(world: World) {
    let chat = world.chat(Rule::recommended());
    for number in 0..200 {
        assert_eq!(chat.says(&noise(number)).await, None);
    }
    assert_eq!(chat.audit(), []);
}

async fn each_rule_counts_within_its_own_window(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h", "similar 5/5m 90% mute 12h"]));
    chat.says("buy gold").await;
    chat.says("buy gold").await;
    chat.at(100.0).await.says(&noise(0)).await;
    chat.says(&noise(1)).await;
    // Three messages in the last minute and five in the last five, but only three are similar.
    assert_eq!(chat.says("buy gold").await, None);
}

async fn rate_compares_the_newest_with_each_other(world: World) {
    let mut chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    // `one` and `two` differ in two of ten characters, and each in one from `third`.
    let [one, two, third] = ["abcdefghiX", "Yabcdefghi", "abcdefghi"];
    chat.says(one).await;
    chat.says(two).await;
    let mute = chat.says(third).await.unwrap();
    assert_eq!((mute.reason().count(), mute.reason().percent()), (3, 90));
    // In another order, the newest is similar to only one of the others.
    chat.at(7.0 * 3600.0).await;
    chat.says(one).await;
    chat.says(third).await;
    assert_eq!(chat.says(two).await, None);
}

async fn exact_percentage_is_enough(world: World) {
    let chat = world.chat(rules(&["similar 2/1m 90% mute 6h"]));
    let send = async |sender: &str, text| {
        chat.send(Message::from(sender).text(text)).await.map(|mute| mute.reason().percent())
    };
    assert_eq!(send("alice", "0123456789").await, None);
    assert_eq!(send("alice", "012345678x").await, Some(90));
    assert_eq!(send("bob", "012345678").await, None);
    assert_eq!(send("bob", "01234567x").await, None, "8 of 9 is less than 90 %");
    let fifty = "一二三四五六七八九十".repeat(5);
    let five_more = format!("{fifty}12345");
    assert_eq!(send("carol", &fifty).await, None);
    assert_eq!(send("carol", &five_more).await, Some(90), "50 of 55, rounded down");
}

async fn disguised_messages_are_similar(world: World) {
    let chat = world.chat(rules(&["similar 4/1m 90% mute 6h"]));
    assert_eq!(chat.says("加微信 abc123 领红包 🧧").await, None);
    assert_eq!(chat.says("加 微 信 ＡＢＣ１２３ 领 红 包 🧧🧧🧧").await, None);
    assert_eq!(chat.says("加\u{200b}微信aBc123领红包包包 🧧\u{fe0f}").await, None);
    assert_eq!(chat.says("加微信ⓐⓑⓒ①②③领红包🧧").await.unwrap().reason().percent(), 100);
}

async fn blank_texts_are_similar_and_pictures_are_not(world: World) {
    let chat = world.chat(rules(&["similar 3/1m 90% mute 6h"]));
    for _ in 0..10 {
        assert_eq!(chat.writes_to("bob").await, None, "pictures are not compared");
    }
    assert_eq!(chat.says("").await, None);
    assert_eq!(chat.says("\n\u{200b}").await, None);
    assert!(chat.says("  ").await.is_some());
}

async fn number_of_kept_texts_is_bounded(world: World) {
    let mut chat = world.chat(rules(&["similar 2/1h 90% mute 6h"]));
    for between in [62, 63] {
        assert_eq!(chat.says("buy gold").await, None);
        for number in 0..between {
            let at = chat.at + MICROSECOND;
            assert_eq!(chat.at_exactly(at).await.says(&noise(between * 100 + number)).await, None);
        }
        let at = chat.at + MICROSECOND;
        let is_muted = chat.at_exactly(at).await.says("buy gold").await.is_some();
        assert_eq!(is_muted, between == 62, "64 texts are kept, including the newest");
        chat.monitor.unmute("alice").await.unwrap();
    }
}
