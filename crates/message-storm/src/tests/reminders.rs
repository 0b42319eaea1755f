//! Reminders of storms that continue.

use super::*;

on_both!(
    reminder_is_due_at_each_multiple,
    missed_reminders_are_one,
    no_reminder_unless_it_is_requested,
    next_storm_has_reminders_of_its_own,
    message_can_carry_the_reminder,
);

impl World {
    fn reminds_every(mut self, seconds: u64) -> Self {
        self.remind_us = seconds * SECOND;
        self
    }
}

fn ongoing(ago_us: u64, lasted_s: u64, count: u32, peak: u32) -> Option<(u64, u64, u32, u32)> {
    Some((ago_us, lasted_s * SECOND, count, peak))
}

async fn reminder_is_due_at_each_multiple(world: World) {
    let mut world = world.reminds_every(4);
    let sixth = world.record_all(6).await;
    assert_eq!((sixth.ongoing, sixth.recheck_us), (None, 4 * SECOND));
    world.advance(4 * SECOND - 1).await;
    let early = world.peek().await;
    assert_eq!((early.ongoing, early.recheck_us), (None, 1));
    world.advance(1).await;
    let due = world.peek().await;
    assert_eq!((due.ongoing, due.recheck_us), (ongoing(0, 4, 6, 6), 4 * SECOND));
    assert_eq!(world.peek().await.ongoing, None, "another process has reported it");
    world.advance(4 * SECOND).await;
    let due = world.peek().await;
    assert_eq!((due.ongoing, due.recheck_us), (ongoing(0, 8, 6, 6), 2 * SECOND));
    world.advance(2 * SECOND).await;
    let over = world.peek().await;
    assert!(over.ended.is_some() && over.ongoing.is_none());
    assert_eq!(over.recheck_us, 0);
    world.advance(2 * SECOND).await;
    assert_eq!(world.peek().await.ongoing, None);
}

async fn missed_reminders_are_one(world: World) {
    let mut world = world.reminds_every(2);
    world.record_all(6).await;
    world.advance(7 * SECOND).await;
    let late = world.peek().await;
    assert_eq!((late.ongoing, late.recheck_us), (ongoing(SECOND, 6, 6, 6), SECOND));
    world.advance(SECOND).await;
    assert_eq!(world.peek().await.ongoing, ongoing(0, 8, 6, 6), "the delay does not add up");
}

async fn no_reminder_unless_it_is_requested(mut world: World) {
    world.record_all(6).await;
    world.advance(9 * SECOND).await;
    let peeked = world.peek().await;
    assert_eq!((peeked.ongoing, peeked.recheck_us), (None, SECOND));
}

#[tokio::test]
async fn only_a_repeated_call_gets_the_reminder_again() {
    let mut world = World::on_redis().await.reminds_every(4);
    world.record_all(6).await;
    world.advance(4 * SECOND).await;
    let seventh = world.message("seventh");
    assert_eq!(world.check(&seventh).await.ongoing, ongoing(0, 4, 7, 7));
    world.advance(SECOND).await;
    assert_eq!(world.record().await.ongoing, None);
    assert_eq!(world.check(&seventh).await.ongoing, ongoing(SECOND, 4, 7, 7));
    assert_eq!(world.check(&world.message("seventh")).await.ongoing, None);
}

async fn next_storm_has_reminders_of_its_own(world: World) {
    let mut world = world.reminds_every(4);
    for _ in 0..2 {
        world.record_all(6).await;
        world.advance(4 * SECOND).await;
        assert_eq!(world.peek().await.ongoing, ongoing(0, 4, 6, 6));
        world.advance(10 * SECOND).await;
        assert!(world.peek().await.ended.is_some());
        world.advance(SECOND).await;
    }
}

async fn message_can_carry_the_reminder(world: World) {
    let mut world = world.reminds_every(15);
    world.record_all(6).await;
    for second in 1..=31 {
        world.advance(SECOND).await;
        let reminder = world.record().await.ongoing.map(|(_, lasted_us, ..)| lasted_us / SECOND);
        let expected = if second % 15 == 0 { Some(second) } else { None };
        assert_eq!(reminder, expected, "after {second} s");
    }
}
