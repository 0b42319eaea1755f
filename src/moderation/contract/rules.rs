//! What triggers a rule.

use super::*;

contract_tests!(
    five_similar_in_5m_mute_for_12h,
    three_similar_in_1m_mute_for_6h,
    five_peers_in_3m_mute_for_24h,
    nine_peers_in_5m_mute_for_48h,
    repeated_peer_moves_and_counts_once,
    events_rule_counts_all_messages,
    entry_exactly_one_window_old_is_out,
);

async fn five_similar_in_5m_mute_for_12h(world: World) {
    let mut chat = world.chat(rules(&["similar 5/5m 90% mute 12h"]));
    for at in 0..4 {
        chat.at(f64::from(at) * 70.0).await;
        assert_eq!(chat.says("Cheap gold at example.com").await, None);
    }
    let mute = chat.at(299.0).await.says("cheap gold at example.com!").await.unwrap();
    assert_eq!(mute.remaining(), hours(12));
    assert_eq!(mute.rule().to_string(), "similar 5/300s 90% mute 12h");
    assert_eq!(mute.reason().to_string(), "5 messages within 300s at 95% similarity");
    assert_eq!(chat.mute().await.unwrap().reason(), mute.reason());
    assert_eq!(chat.audit(), [(12, false)]);
    assert_eq!(chat.events.lock().unwrap()[0].sender.as_bytes(), b"alice");
}

async fn three_similar_in_1m_mute_for_6h(world: World) {
    let mut chat = world.chat(Rule::recommended());
    assert_eq!(chat.says("加微信领红包").await, None);
    assert_eq!(chat.at(20.0).await.says("加微信领红包！").await, None);
    assert_eq!(chat.at(81.0).await.says("加 微信领红包").await, None, "only two within any minute");
    assert_eq!(chat.at(141.0).await.says(&noise(0)).await, None);
    let mute = chat.at(142.0).await.says("加微信领红包").await;
    assert_eq!(mute, None, "the third is two minutes old");
    assert_eq!(chat.at(143.0).await.says(&noise(1)).await, None);
    assert_eq!(chat.at(440.0).await.says("加微信领红包").await, None);
    assert_eq!(chat.at(450.0).await.says("加微信领红包").await, None);
    let mute = chat.at(499.0).await.says("加微信领红包").await.unwrap();
    assert_eq!((mute.remaining(), mute.reason().count()), (hours(6), 3));
    assert_eq!(chat.audit(), [(6, false)]);
}

async fn five_peers_in_3m_mute_for_24h(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for (at, peer) in [(0.0, "a"), (45.0, "b"), (90.0, "c"), (135.0, "d"), (180.0, "e")] {
        assert_eq!(chat.at(at).await.writes_to(peer).await, None, "the fifth peer is too late");
    }
    let mute = chat.at(200.0).await.writes_to("f").await.unwrap();
    assert_eq!(mute.reason().to_string(), "5 private-chat peers within 180s");
    assert_eq!(mute.remaining(), hours(24));
    assert_eq!(chat.audit(), [(24, false)]);
}

async fn nine_peers_in_5m_mute_for_48h(world: World) {
    let mut chat = world.chat(Rule::recommended());
    for peer in 0..9_u32 {
        let mute = chat.at(f64::from(peer) * 37.0).await.writes_to(&peer.to_string()).await;
        let hours = mute.map(|mute| mute.rule().mute().as_secs() / 3600);
        assert_eq!(hours, [None, Some(24), Some(48)][(peer >= 4) as usize + (peer >= 8) as usize]);
    }
    let mute = chat.mute().await.unwrap();
    assert_eq!((mute.remaining(), mute.reason().count()), (hours(48), 9));
    assert_eq!(chat.audit(), [(24, false), (48, true)]);
}

async fn repeated_peer_moves_and_counts_once(world: World) {
    let mut chat = world.chat(rules(&["peers 3/1m mute 24h"]));
    for at in 0..20 {
        assert_eq!(chat.at(f64::from(at)).await.writes_to("a").await, None);
    }
    assert_eq!(chat.at(70.0).await.writes_to("b").await, None, "the first peer has left");
    assert_eq!(chat.at(75.0).await.writes_to("a").await, None, "the peer is back and counts once");
    assert_eq!(chat.at(80.0).await.writes_to("b").await, None);
    assert!(chat.at(134.0).await.writes_to("c").await.is_some(), "both peers have moved");
}

async fn events_rule_counts_all_messages(world: World) {
    let mut chat = world.chat(rules(&["events 4/10s mute 1h"]));
    chat.says("one").await;
    chat.writes_to("bob").await;
    assert_eq!(chat.at(5.0).await.says("two").await, None);
    assert_eq!(chat.at(10.0).await.says("three").await, None, "two messages have left");
    assert_eq!(chat.at(11.0).await.send(Message::from("alice").to("bob").text("4")).await, None);
    let mute = chat.at(14.0).await.writes_to("carol").await.unwrap();
    assert_eq!(mute.reason().to_string(), "4 messages within 10s");
    assert_eq!(mute.remaining(), hours(1));
}

async fn entry_exactly_one_window_old_is_out(world: World) {
    let texts = ["similar 2/1m 90% mute 12h", "peers 2/1m mute 12h", "events 2/1m mute 12h"];
    let mut chat = world.chat([]);
    let minute = Duration::from_secs(60);
    for (index, text) in texts.iter().enumerate() {
        let store = chat.world.store.clone();
        chat.monitor = SpeechMonitor::new(rules(&[text]), store);
        let say = |to| Message::from(*text).to(to).text("buy");
        let start = Duration::from_secs(1000 * index as u64);
        assert_eq!(chat.at_exactly(start).await.send(say("a")).await, None);
        assert_eq!(chat.at_exactly(start + minute).await.send(say("b")).await, None, "{text}");
        let last = start + 2 * minute - MICROSECOND;
        assert!(chat.at_exactly(last).await.send(say("c")).await.is_some(), "{text}");
    }
}
