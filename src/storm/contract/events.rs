//! When a storm starts and ends, and who is told.

use super::*;

contract_tests!(
    a_storm_starts_above_the_threshold_and_ends_below_the_second_one,
    a_storm_ends_to_the_microsecond,
    an_end_that_nobody_has_looked_for_is_told_by_the_next_message,
    between_the_two_counts_nothing_starts_and_nothing_ends,
    a_group_that_stays_above_the_second_count_is_one_storm,
    a_call_that_is_repeated_is_told_again_and_no_other_is,
    a_start_whose_answer_was_lost_is_told_after_the_end,
    an_end_whose_answer_was_lost_is_told_in_the_next_storm,
    a_message_that_is_delivered_again_is_told_of_nothing,
    in_the_cool_down_no_storm_starts,
    a_storm_that_waits_for_the_cool_down_starts_if_it_still_is_one,
    a_storm_that_ends_below_one_ends_when_the_last_message_leaves,
    a_lowered_threshold_holds_from_the_next_message_on,
    a_raised_threshold_ends_the_storm,
);

fn started(outcome: &StormOutcome) -> Option<u32> {
    outcome.started.map(|it| it.count)
}

fn nothing(outcome: &StormOutcome) -> bool {
    (outcome.started, outcome.ended) == (None, None)
}

async fn a_storm_starts_above_the_threshold_and_ends_below_the_second_one(mut world: World) {
    for number in 1..=5 {
        let outcome = world.record().await;
        assert_eq!((outcome.count, storm_us(&outcome)), (number, None));
        assert!(nothing(&outcome) && look_us(&outcome) == 0);
        world.advance(SECOND).await;
    }
    let sixth = world.record().await;
    assert_eq!(sixth.started, Some(Started { ago: us(0), count: 6 }));
    assert_eq!((sixth.count, storm_us(&sixth), sixth.ended), (6, Some((0, 6)), None));
    // Below three when the fourth has left, which came at second 3.
    assert_eq!(look_us(&sixth), 8 * SECOND);
    world.advance(SECOND).await;
    let seventh = world.record().await;
    assert!(nothing(&seventh), "it has started already");
    assert_eq!((storm_us(&seventh), look_us(&seventh)), (Some((SECOND, 7)), 8 * SECOND));
    world.advance(8 * SECOND).await;
    let look = world.look().await;
    let ended = Ended { ago: us(0), lasted: us(9 * SECOND), peak: 7 };
    assert_eq!((look.ended, look.count, look.storm), (Some(ended), 2, None));
    assert!(nothing(&world.look().await), "it has ended already");
}

async fn a_storm_ends_to_the_microsecond(mut world: World) {
    let last = world.record_all(6).await;
    assert_eq!((started(&last), look_us(&last)), (Some(6), 10 * SECOND));
    world.advance(10 * SECOND - 1).await;
    let look = world.look().await;
    assert!(nothing(&look));
    assert_eq!((look.count, look_us(&look)), (6, 1));
    world.advance(1).await;
    let look = world.look().await;
    assert_eq!(look.ended, Some(Ended { ago: us(0), lasted: us(10 * SECOND), peak: 6 }));
    assert_eq!((look.count, look_us(&look)), (0, 0));
}

async fn an_end_that_nobody_has_looked_for_is_told_by_the_next_message(mut world: World) {
    for wait in [0, 3_600 * SECOND, 23 * 3_600 * SECOND] {
        assert_eq!(started(&world.record_all(6).await), Some(6), "after {wait} us");
        world.advance(10 * SECOND + wait).await;
        let next = world.record().await;
        let ended = Ended { ago: us(wait), lasted: us(10 * SECOND), peak: 6 };
        assert_eq!((next.ended, next.started, next.count), (Some(ended), None, 1));
        world.advance(20 * SECOND).await;
    }
}

async fn between_the_two_counts_nothing_starts_and_nothing_ends(mut world: World) {
    world.record_all(2).await;
    for _ in 0..20 {
        // Up to five in the window, and no fewer than three from the second on.
        world.advance(5 * SECOND / 2).await;
        assert!(nothing(&world.record().await));
    }
    world.advance(10 * SECOND).await;
    assert_eq!(started(&world.record_all(6).await), Some(6));
    for _ in 0..20 {
        world.advance(5 * SECOND / 2).await;
        let outcome = world.record().await;
        assert!(nothing(&outcome) && outcome.storm.is_some(), "three or more: it goes on");
    }
}

async fn a_group_that_stays_above_the_second_count_is_one_storm(mut world: World) {
    let (mut starts, mut ends, mut highest) = (0, 0, 0);
    // Around the threshold, from four messages to six.
    for round in 0..50 {
        for _ in 0..1 + round % 2 {
            let outcome = world.record().await;
            starts += u32::from(outcome.started.is_some());
            ends += u32::from(outcome.ended.is_some());
            highest = highest.max(outcome.count);
        }
        world.advance(5 * SECOND / 2).await;
    }
    assert_eq!((starts, ends, highest), (1, 0, 6));
}

async fn a_call_that_is_repeated_is_told_again_and_no_other_is(mut world: World) {
    world.record_all(5).await;
    let sixth = world.message("lobby", "sixth");
    let first = world.check(&sixth).await;
    assert_eq!((started(&first), first.is_repeated), (Some(6), false));
    world.advance(SECOND).await;
    let again = world.check(&sixth).await;
    assert_eq!(again.started, Some(Started { ago: us(SECOND), count: 6 }));
    assert_eq!((again.count, again.is_repeated), (6, true), "it counts once");
    assert!(nothing(&world.record().await));
    assert!(nothing(&world.look().await));

    world.advance(20 * SECOND).await;
    let look = StormCheck::new(world.rule.clone(), "lobby".into(), None);
    // In process no answer is lost, and nothing is kept of what is over.
    for _ in 0..if world.clock.is_some() { 3 } else { 1 } {
        assert_eq!(world.check(&look).await.ended.map(|it| it.peak), Some(7));
        world.advance(SECOND).await;
    }
    assert!(nothing(&world.look().await));
    assert!(nothing(&world.record().await));
}

async fn a_start_whose_answer_was_lost_is_told_after_the_end(mut world: World) {
    world.record_all(5).await;
    let sixth = world.message("lobby", "sixth");
    world.check(&sixth).await;
    world.advance(30 * SECOND).await;
    let ended = world.look().await;
    assert!(ended.ended.is_some() && ended.started.is_none());
    let mut asked = StormCheck::new(world.rule.clone(), "lobby".into(), None);
    asked.call = sixth.call;
    let late = world.check(&asked).await;
    if world.clock.is_some() {
        assert_eq!(late.started, Some(Started { ago: us(30 * SECOND), count: 6 }));
    }
    assert_eq!((late.ended, late.count), (None, 0), "the end was told to another");
}

async fn an_end_whose_answer_was_lost_is_told_in_the_next_storm(mut world: World) {
    world.record_all(6).await;
    world.advance(12 * SECOND).await;
    let first_of_next = world.message("lobby", "first of the next");
    let ended = world.check(&first_of_next).await.ended;
    assert_eq!(ended, Some(Ended { ago: us(2 * SECOND), lasted: us(10 * SECOND), peak: 6 }));
    assert_eq!(started(&world.record_all(5).await), Some(6));
    world.advance(SECOND).await;
    let again = world.check(&first_of_next).await;
    assert_eq!(again.ended, Some(Ended { ago: us(3 * SECOND), lasted: us(10 * SECOND), peak: 6 }));
    assert_eq!(again.started, None, "the start was told to another");
}

async fn a_message_that_is_delivered_again_is_told_of_nothing(mut world: World) {
    world.record_all(5).await;
    assert_eq!(started(&world.check(&world.message("lobby", "sixth")).await), Some(6));
    let again = world.check(&world.message("lobby", "sixth")).await;
    assert!(nothing(&again), "it is another call");
    assert_eq!((again.count, again.is_repeated), (6, true));
}

async fn in_the_cool_down_no_storm_starts(world: World) {
    let mut world = world.ruled(|rule| rule.cool_down(Duration::from_secs(60)));
    world.record_all(6).await;
    world.advance(10 * SECOND).await;
    assert!(world.look().await.ended.is_some());
    world.advance(30 * SECOND).await;
    let last = world.record_all(9).await;
    assert!(nothing(&last) && last.storm.is_none());
    assert_eq!((last.count, look_us(&last)), (9, 30 * SECOND), "it is worth looking again");
    world.advance(30 * SECOND).await;
    assert!(nothing(&world.look().await), "it was over before the cool-down was");
    assert_eq!(started(&world.record_all(6).await), Some(6));
}

async fn a_storm_that_waits_for_the_cool_down_starts_if_it_still_is_one(world: World) {
    let mut world = world.ruled(|rule| rule.cool_down(Duration::from_secs(60)));
    for by_message in [true, false] {
        world.advance(100 * SECOND).await;
        assert_eq!(started(&world.record_all(6).await), Some(6));
        // Nobody looks: the cool-down counts from when the storm was over, not from the look.
        world.advance(65 * SECOND).await;
        let last = world.record_all(8).await;
        assert!(last.started.is_none() && last.ended.is_none());
        world.advance(5 * SECOND - 1).await;
        let early = world.look().await;
        assert!(nothing(&early));
        assert_eq!(look_us(&early), 1);
        world.advance(1).await;
        let outcome = if by_message { world.record().await } else { world.look().await };
        let count = if by_message { 9 } else { 8 };
        assert_eq!(outcome.started, Some(Started { ago: us(0), count }));
        assert_eq!((storm_us(&outcome), look_us(&outcome)), (Some((0, count)), 5 * SECOND));
        world.advance(5 * SECOND).await;
        let over = world.look().await;
        // The one that came last may still be in the window.
        assert_eq!(over.count, u32::from(by_message));
        let ended = Ended { ago: us(0), lasted: us(5 * SECOND), peak: count };
        assert_eq!(over.ended, Some(ended));
    }
}

async fn a_storm_that_ends_below_one_ends_when_the_last_message_leaves(world: World) {
    let mut world = world.ruled(|rule| rule.ends_below(1));
    world.record_all(6).await;
    for _ in 0..10 {
        world.advance(10 * SECOND - 1).await;
        let outcome = world.record().await;
        assert!(nothing(&outcome) && outcome.storm.is_some(), "one is left");
    }
    world.advance(10 * SECOND + 7).await;
    let next = world.record().await;
    assert_eq!((next.ended.map(|it| it.ago.as_micros()), next.count), (Some(7), 1));
}

async fn a_lowered_threshold_holds_from_the_next_message_on(mut world: World) {
    world.record_all(4).await;
    let lower = StormRule::new("2/10s".parse().unwrap()).named("same");
    let mut world = world.ruled(|rule| rule.named("same"));
    world.record_all(4).await;
    world.rule = Arc::new(lower);
    assert_eq!(started(&world.record().await), Some(5));
}

async fn a_raised_threshold_ends_the_storm(world: World) {
    let mut world = world.ruled(|rule| rule.named("same"));
    world.record_all(6).await;
    world.advance(SECOND).await;
    world.rule = Arc::new(StormRule::new("20/10s".parse().unwrap()).named("same"));
    let look = world.look().await;
    assert_eq!(look.ended, Some(Ended { ago: us(0), lasted: us(SECOND), peak: 6 }));
    assert_eq!(look.count, 6);
}
