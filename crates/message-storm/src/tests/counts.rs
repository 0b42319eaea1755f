//! Counts: each message once, up to the cap, and profiles.

use super::*;

on_both!(
    redelivered_message_counts_once,
    message_counts_for_exactly_the_window,
    count_stops_at_cap_and_newest_are_kept,
    groups_and_rules_are_independent,
    peek_records_nothing,
    profile_counts_each_step,
);

async fn redelivered_message_counts_once(mut world: World) {
    for _ in 0..8 {
        let outcome = world.check(&world.message("the same")).await;
        assert_eq!((outcome.count, outcome.started), (1, None));
        world.advance(SECOND).await;
    }
    world.advance(2 * SECOND).await;
    let peeked = world.peek().await;
    assert_eq!(peeked.count, 0, "the first delivery sets the timestamp");
    let outcome = world.check(&world.message("the same")).await;
    assert_eq!((outcome.count, outcome.is_repeated), (1, false), "the first has left the window");
}

async fn message_counts_for_exactly_the_window(mut world: World) {
    assert_eq!(world.record().await.count, 1);
    world.advance(10 * SECOND - 1).await;
    assert_eq!(world.peek().await.count, 1);
    world.advance(1).await;
    assert_eq!(world.peek().await.count, 0, "an entry exactly `window` old is out");
}

async fn count_stops_at_cap_and_newest_are_kept(world: World) {
    let mut world = world.with_rule(|rule| rule.cap(8));
    let mut counts = Vec::new();
    for _ in 0..12 {
        world.advance(SECOND / 10).await;
        counts.push(world.record().await.count);
    }
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]);
    assert_eq!(world.peek().await.storm.map(|(_, peak)| peak), Some(8));
    assert_eq!(world.profile(SECOND / 10).await.iter().sum::<u32>(), 8);
    // The oldest message left is the fifth, 0.7 seconds older than the twelfth.
    world.advance(10 * SECOND - 7 * SECOND / 10).await;
    assert_eq!(world.peek().await.count, 7);
    let kept = world.check(&world.message("message-12")).await;
    assert_eq!((kept.count, kept.is_repeated), (7, true));
    let dropped = world.check(&world.message("message-1")).await;
    assert_eq!((dropped.count, dropped.is_repeated), (8, false));
}

async fn groups_and_rules_are_independent(world: World) {
    let long = "k".repeat(1000);
    let groups: [&[u8]; 9] =
        [b"", b"=", b"}", b"{}", b"%7D", b"a\r\nb", b"\0", b"\xff\xfe", long.as_bytes()];
    for number in 1..=6_u32 {
        for group in groups {
            let ids: [&[u8]; 6] = [b"", b"\0", b"\xff", b"{}", long.as_bytes(), b"x"];
            let id = Key::from(ids[number as usize - 1]);
            let check = world.check_of(group, Some(id));
            let outcome = world.check(&check).await;
            assert_eq!(outcome.count, number, "{group:?}");
            assert_eq!(outcome.started.is_some(), number == 6, "{group:?}");
        }
    }
    assert_eq!(world.peek().await.count, 0);
    // In process, a rule has groups of its own.
    for rule in
        [StormRule::clone(&world.rule).named("other"), StormRule::new("6/10s".parse().unwrap())]
            .into_iter()
            .filter(|_| world.redis.is_some())
    {
        assert_eq!(world.check(&world.check_of("}", None)).await.count, 6);
        let other = Check { rule: Arc::new(rule), ..world.check_of("}", None) };
        assert_eq!(world.check(&other).await.count, 0);
    }
}

async fn peek_records_nothing(mut world: World) {
    for _ in 0..20 {
        let peeked = world.peek().await;
        assert_eq!((peeked.count, peeked.is_repeated, peeked.recheck_us), (0, false, 0));
        assert_eq!((peeked.started, peeked.ended, peeked.storm), (None, None, None));
    }
    assert_eq!(world.record().await.count, 1);
    if let Some(server) = world.server() {
        let keys: Vec<String> = server.run(&["KEYS", "tsw:{*"]).await;
        assert_eq!(keys, ["tsw:{=lobby}:default:5/10s:storm:log"], "no storm, so no state");
    }
}

async fn profile_counts_each_step(mut world: World) {
    assert_eq!(world.profile(2 * SECOND).await, [0; 5]);
    world.record_all(3).await;
    world.advance(4 * SECOND).await;
    world.record_all(2).await;
    world.advance(SECOND - 1).await;
    world.record().await;
    assert_eq!(world.profile(SECOND).await, [0, 0, 0, 0, 0, 3, 0, 0, 0, 3]);
    world.advance(1).await;
    assert_eq!(world.profile(SECOND).await, [0, 0, 0, 0, 3, 0, 0, 0, 2, 1]);
    world.advance(5 * SECOND - 1).await;
    assert_eq!(world.profile(SECOND).await, [3, 0, 0, 0, 3, 0, 0, 0, 0, 0], "to the microsecond");
    // Steps of three seconds: the first is one second long.
    assert_eq!(world.profile(3 * SECOND).await, [3, 0, 3, 0]);
    assert_eq!(world.profile(10 * SECOND).await, [6]);
    assert_eq!(world.profile(100 * SECOND).await, [6], "not longer than the window");
    world.advance(1).await;
    assert_eq!(world.profile(10 * SECOND).await, [3], "messages out of the window do not count");
}
