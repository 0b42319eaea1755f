//! Start and end of storms, and which call gets each event.

use super::*;

on_both!(
    storm_starts_above_limit_and_ends_below_other,
    storm_ends_at_the_exact_microsecond,
    next_message_reports_an_undetected_end,
    no_event_between_the_two_counts,
    no_storm_starts_in_the_cool_down,
    delayed_storm_starts_after_the_cool_down,
    storm_can_last_until_the_last_message_leaves,
    lowered_threshold_applies_to_next_message,
    raised_threshold_ends_the_storm,
);

fn started(outcome: &Outcome) -> Option<u32> {
    outcome.started.map(|(_, count)| count)
}

fn has_no_event(outcome: &Outcome) -> bool {
    (outcome.started, outcome.ended) == (None, None)
}

async fn storm_starts_above_limit_and_ends_below_other(mut world: World) {
    for number in 1..=5 {
        let outcome = world.record().await;
        assert_eq!((outcome.count, outcome.storm), (number, None));
        assert!(has_no_event(&outcome) && outcome.recheck_us == 0);
        world.advance(SECOND).await;
    }
    let sixth = world.record().await;
    assert_eq!(sixth.started, Some((0, 6)));
    assert_eq!((sixth.count, sixth.storm, sixth.ended), (6, Some((0, 6)), None));
    // The count falls below three when the fourth message leaves, which came at second 3.
    assert_eq!(sixth.recheck_us, 8 * SECOND);
    world.advance(SECOND).await;
    let seventh = world.record().await;
    assert!(has_no_event(&seventh), "the storm has already started");
    assert_eq!((seventh.storm, seventh.recheck_us), (Some((SECOND, 7)), 8 * SECOND));
    world.advance(8 * SECOND).await;
    let peeked = world.peek().await;
    let ended = (0, 9 * SECOND, 7);
    assert_eq!((peeked.ended, peeked.count, peeked.storm), (Some(ended), 2, None));
    assert!(has_no_event(&world.peek().await), "the storm has already ended");
}

async fn storm_ends_at_the_exact_microsecond(mut world: World) {
    let last = world.record_all(6).await;
    assert_eq!((started(&last), last.recheck_us), (Some(6), 10 * SECOND));
    world.advance(10 * SECOND - 1).await;
    let peeked = world.peek().await;
    assert!(has_no_event(&peeked));
    assert_eq!((peeked.count, peeked.recheck_us), (6, 1));
    world.advance(1).await;
    let peeked = world.peek().await;
    assert_eq!(peeked.ended, Some((0, 10 * SECOND, 6)));
    assert_eq!((peeked.count, peeked.recheck_us), (0, 0));
}

async fn next_message_reports_an_undetected_end(mut world: World) {
    for wait in [0, 3_600 * SECOND, 23 * 3_600 * SECOND] {
        assert_eq!(started(&world.record_all(6).await), Some(6), "after {wait} us");
        world.advance(10 * SECOND + wait).await;
        let next = world.record().await;
        let ended = (wait, 10 * SECOND, 6);
        assert_eq!((next.ended, next.started, next.count), (Some(ended), None, 1));
        world.advance(20 * SECOND).await;
    }
}

async fn no_event_between_the_two_counts(mut world: World) {
    world.record_all(2).await;
    for _ in 0..20 {
        // Three to five messages are in the window.
        world.advance(5 * SECOND / 2).await;
        assert!(has_no_event(&world.record().await));
    }
    world.advance(10 * SECOND).await;
    assert_eq!(started(&world.record_all(6).await), Some(6));
    let mut counts = Vec::new();
    for round in 0..50 {
        world.advance(5 * SECOND / 2).await;
        for _ in 0..1 + round % 2 {
            let outcome = world.record().await;
            assert!(has_no_event(&outcome) && outcome.storm.is_some(), "the storm continues");
            counts.push(outcome.count);
        }
    }
    // The count varies around the threshold.
    assert!(counts[20..].contains(&5) && counts[20..].contains(&6), "{counts:?}");
}

#[tokio::test]
async fn only_a_repeated_call_gets_the_event_again() {
    let mut world = World::on_redis().await;
    world.record_all(5).await;
    let sixth = world.message("sixth");
    let first = world.check(&sixth).await;
    assert_eq!((started(&first), first.is_repeated), (Some(6), false));
    world.advance(SECOND).await;
    let again = world.check(&sixth).await;
    assert_eq!(again.started, Some((SECOND, 6)));
    assert_eq!((again.count, again.is_repeated), (6, true), "the message counts once");
    let delivered_again = world.check(&world.message("sixth")).await;
    assert!(has_no_event(&delivered_again), "this is another call");
    assert_eq!((delivered_again.count, delivered_again.is_repeated), (6, true));
    assert!(has_no_event(&world.record().await));
    assert!(has_no_event(&world.peek().await));

    world.advance(20 * SECOND).await;
    let peek = world.check_of("lobby", None);
    for _ in 0..3 {
        assert_eq!(world.check(&peek).await.ended.map(|(_, _, peak)| peak), Some(7));
        world.advance(SECOND).await;
    }
    assert!(has_no_event(&world.peek().await));
    assert!(has_no_event(&world.record().await));
}

#[tokio::test]
async fn lost_start_is_delivered_after_the_end() {
    let mut world = World::on_redis().await;
    world.record_all(5).await;
    let sixth = world.message("sixth");
    world.check(&sixth).await;
    world.advance(30 * SECOND).await;
    let ended = world.peek().await;
    assert!(ended.ended.is_some() && ended.started.is_none());
    let mut repeated = world.check_of("lobby", None);
    repeated.call = sixth.call;
    let late = world.check(&repeated).await;
    assert_eq!(late.started, Some((30 * SECOND, 6)));
    assert_eq!((late.ended, late.count), (None, 0), "another call got the end");
}

#[tokio::test]
async fn lost_end_is_delivered_in_the_next_storm() {
    let mut world = World::on_redis().await;
    world.record_all(6).await;
    world.advance(12 * SECOND).await;
    let first_of_next = world.message("first of the next");
    let ended = world.check(&first_of_next).await.ended;
    assert_eq!(ended, Some((2 * SECOND, 10 * SECOND, 6)));
    assert_eq!(started(&world.record_all(5).await), Some(6));
    world.advance(SECOND).await;
    let again = world.check(&first_of_next).await;
    assert_eq!(again.ended, Some((3 * SECOND, 10 * SECOND, 6)));
    assert_eq!(again.started, None, "another call got the start");
}

async fn no_storm_starts_in_the_cool_down(world: World) {
    let mut world = world.with_rule(|rule| rule.cool_down(Duration::from_secs(60)));
    world.record_all(6).await;
    world.advance(10 * SECOND).await;
    assert!(world.peek().await.ended.is_some());
    world.advance(30 * SECOND).await;
    let last = world.record_all(9).await;
    assert!(has_no_event(&last) && last.storm.is_none());
    assert_eq!((last.count, last.recheck_us), (9, 30 * SECOND), "the end of the cool-down");
    world.advance(30 * SECOND).await;
    assert!(has_no_event(&world.peek().await), "the count fell during the cool-down");
    assert_eq!(started(&world.record_all(6).await), Some(6));
}

async fn delayed_storm_starts_after_the_cool_down(world: World) {
    let mut world = world.with_rule(|rule| rule.cool_down(Duration::from_secs(60)));
    for by_message in [true, false] {
        world.advance(100 * SECOND).await;
        assert_eq!(started(&world.record_all(6).await), Some(6));
        // The cool-down begins at the end of the storm, not when the end is detected.
        world.advance(65 * SECOND).await;
        let last = world.record_all(8).await;
        assert!(last.started.is_none() && last.ended.is_none());
        world.advance(5 * SECOND - 1).await;
        let early = world.peek().await;
        assert!(has_no_event(&early));
        assert_eq!(early.recheck_us, 1);
        world.advance(1).await;
        let outcome = if by_message { world.record().await } else { world.peek().await };
        let count = if by_message { 9 } else { 8 };
        assert_eq!(outcome.started, Some((0, count)));
        assert_eq!((outcome.storm, outcome.recheck_us), (Some((0, count)), 5 * SECOND));
        world.advance(5 * SECOND).await;
        let over = world.peek().await;
        // The message of this round may still be in the window.
        assert_eq!(over.count, u32::from(by_message));
        let ended = (0, 5 * SECOND, count);
        assert_eq!(over.ended, Some(ended));
    }
}

async fn storm_can_last_until_the_last_message_leaves(world: World) {
    let mut world = world.with_rule(|rule| rule.ends_below(1));
    world.record_all(6).await;
    for _ in 0..10 {
        world.advance(10 * SECOND - 1).await;
        let outcome = world.record().await;
        assert!(has_no_event(&outcome) && outcome.storm.is_some(), "one message is left");
    }
    world.advance(10 * SECOND + 7).await;
    let next = world.record().await;
    assert_eq!((next.ended.map(|(ago_us, ..)| ago_us), next.count), (Some(7), 1));
}

async fn lowered_threshold_applies_to_next_message(world: World) {
    let mut world = world.with_rule(|rule| rule.named("same"));
    world.record_all(4).await;
    world.rule = Arc::new(StormRule::new("2/10s".parse().unwrap()).named("same"));
    assert_eq!(started(&world.record().await), Some(5));
}

async fn raised_threshold_ends_the_storm(world: World) {
    let mut world = world.with_rule(|rule| rule.named("same"));
    world.record_all(6).await;
    world.advance(SECOND).await;
    world.rule = Arc::new(StormRule::new("20/10s".parse().unwrap()).named("same"));
    let peeked = world.peek().await;
    assert_eq!(peeked.ended, Some((0, SECOND, 6)));
    assert_eq!(peeked.count, 6);
}
