//! What is counted: each message once, up to the cap, step by step.

use super::*;

contract_tests!(
    a_message_counts_once_however_often_it_is_delivered,
    a_message_counts_for_the_window_and_no_longer,
    messages_of_one_moment_are_several,
    the_count_stops_at_the_cap_and_the_newest_are_kept,
    groups_and_rules_do_not_share_anything,
    a_look_records_nothing,
    a_profile_counts_each_step,
    a_profile_of_nothing_is_all_zero,
);

async fn a_message_counts_once_however_often_it_is_delivered(mut world: World) {
    for _ in 0..8 {
        let outcome = world.check(&world.message("lobby", "the same")).await;
        assert_eq!((outcome.count, outcome.started), (1, None));
        world.advance(SECOND).await;
    }
    world.advance(2 * SECOND).await;
    let look = world.look().await;
    assert_eq!(look.count, 0, "its timestamp is that of the first delivery");
    let outcome = world.check(&world.message("lobby", "the same")).await;
    assert_eq!((outcome.count, outcome.is_repeated), (1, false), "it was out of the window");
}

async fn a_message_counts_for_the_window_and_no_longer(mut world: World) {
    assert_eq!(world.record().await.count, 1);
    world.advance(10 * SECOND - 1).await;
    assert_eq!(world.look().await.count, 1);
    world.advance(1).await;
    assert_eq!(world.look().await.count, 0, "one that is exactly as old as the window is out");
}

async fn messages_of_one_moment_are_several(mut world: World) {
    assert_eq!(world.record_all(4).await.count, 4);
}

async fn the_count_stops_at_the_cap_and_the_newest_are_kept(world: World) {
    let mut world = world.ruled(|rule| rule.cap(8));
    let mut counts = Vec::new();
    for _ in 0..12 {
        world.advance(SECOND / 10).await;
        counts.push(world.record().await.count);
    }
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]);
    assert_eq!(world.look().await.storm.map(|(_, peak)| peak), Some(8));
    assert_eq!(world.profile(SECOND / 10).await.iter().sum::<u32>(), 8);
    // The fifth is the oldest that is left; it came 0.7 seconds before the twelfth.
    world.advance(10 * SECOND - 7 * SECOND / 10).await;
    assert_eq!(world.look().await.count, 7);
    let known = world.check(&world.message("lobby", "message-12")).await;
    assert_eq!((known.count, known.is_repeated), (7, true));
    let forgotten = world.check(&world.message("lobby", "message-1")).await;
    assert_eq!((forgotten.count, forgotten.is_repeated), (8, false));
}

async fn groups_and_rules_do_not_share_anything(mut world: World) {
    let long = "k".repeat(1000);
    let groups: [&[u8]; 9] =
        [b"", b"=", b"}", b"{}", b"%7D", b"a\r\nb", b"\0", b"\xff\xfe", long.as_bytes()];
    for number in 1..=6_u32 {
        for group in groups {
            let ids: [&[u8]; 6] = [b"", b"\0", b"\xff", b"{}", long.as_bytes(), b"x"];
            let id = Key::from(ids[number as usize - 1]);
            let check = StormCheck::new(world.rule.clone(), group.into(), Some(id));
            let outcome = world.check(&check).await;
            assert_eq!(outcome.count, number, "{group:?}");
            assert_eq!(outcome.started.is_some(), number == 6, "{group:?}");
        }
    }
    assert_eq!(world.look().await.count, 0);
    let named = Arc::new((*world.rule).clone().named("other"));
    for (rule, count) in [(world.rule.clone(), 6), (named, 0)] {
        world.rule = rule;
        let look = StormCheck::new(world.rule.clone(), "}".into(), None);
        assert_eq!(world.check(&look).await.count, count);
    }
    let of_another_threshold = Arc::new(StormRule::new("6/10s".parse().unwrap()));
    let look = StormCheck::new(of_another_threshold, "}".into(), None);
    assert_eq!(world.check(&look).await.count, 0);
}

async fn a_look_records_nothing(mut world: World) {
    for _ in 0..20 {
        let look = world.look().await;
        assert_eq!((look.count, look.is_repeated, look_us(&look)), (0, false, 0));
        assert_eq!((look.started, look.ended, look.storm), (None, None, None));
    }
    assert_eq!(world.record().await.count, 1);
    if let Some(clock) = &mut world.clock {
        let keys = redis::cmd("KEYS").arg("tsw:*").clone();
        let keys: Vec<String> = keys.query_async(&mut clock.connection).await.unwrap();
        assert_eq!(keys, ["tsw:{=lobby}:default:5/10s:storm:log"], "a quiet group has no state");
    }
}

async fn a_profile_counts_each_step(mut world: World) {
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
    assert_eq!(world.profile(100 * SECOND).await, [6], "no further back than the window");
    world.advance(1).await;
    assert_eq!(world.profile(10 * SECOND).await, [3], "what is out of the window does not count");
}

async fn a_profile_of_nothing_is_all_zero(world: World) {
    assert_eq!(world.profile(2 * SECOND).await, [0; 5]);
}
