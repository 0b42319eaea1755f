//! Reminders of storms that continue.

use super::super::store::Ongoing;
use super::*;

contract_tests!(
    reminder_is_due_at_each_multiple,
    missed_reminders_are_one,
    no_reminder_unless_it_is_requested,
    only_a_repeated_call_gets_the_reminder_again,
    next_storm_has_reminders_of_its_own,
    message_can_carry_the_reminder,
);

impl World {
    fn reminds_every(mut self, seconds: u64) -> Self {
        self.remind_every = Some(Duration::from_secs(seconds));
        self
    }
}

fn ongoing(ago_us: u64, lasted_seconds: u64, count: u32, peak: u32) -> Option<Ongoing> {
    Some(Ongoing { ago: us(ago_us), lasted: Duration::from_secs(lasted_seconds), count, peak })
}

async fn reminder_is_due_at_each_multiple(world: World) {
    let mut world = world.reminds_every(4);
    let sixth = world.record_all(6).await;
    assert_eq!((sixth.ongoing, recheck_us(&sixth)), (None, 4 * SECOND));
    world.advance(4 * SECOND - 1).await;
    let early = world.peek().await;
    assert_eq!((early.ongoing, recheck_us(&early)), (None, 1));
    world.advance(1).await;
    let due = world.peek().await;
    assert_eq!((due.ongoing, recheck_us(&due)), (ongoing(0, 4, 6, 6), 4 * SECOND));
    assert_eq!(world.peek().await.ongoing, None, "another process has reported it");
    world.advance(4 * SECOND).await;
    let due = world.peek().await;
    assert_eq!((due.ongoing, recheck_us(&due)), (ongoing(0, 8, 6, 6), 2 * SECOND));
    world.advance(2 * SECOND).await;
    let over = world.peek().await;
    assert!(over.ended.is_some() && over.ongoing.is_none());
    assert_eq!(recheck_us(&over), 0);
    world.advance(2 * SECOND).await;
    assert_eq!(world.peek().await.ongoing, None);
}

async fn missed_reminders_are_one(world: World) {
    let mut world = world.reminds_every(2);
    world.record_all(6).await;
    world.advance(7 * SECOND).await;
    let late = world.peek().await;
    assert_eq!((late.ongoing, recheck_us(&late)), (ongoing(SECOND, 6, 6, 6), SECOND));
    world.advance(SECOND).await;
    assert_eq!(world.peek().await.ongoing, ongoing(0, 8, 6, 6), "the delay does not add up");
}

async fn no_reminder_unless_it_is_requested(mut world: World) {
    world.record_all(6).await;
    world.advance(9 * SECOND).await;
    let peeked = world.peek().await;
    assert_eq!((peeked.ongoing, recheck_us(&peeked)), (None, SECOND));
}

async fn only_a_repeated_call_gets_the_reminder_again(world: World) {
    let mut world = world.reminds_every(4);
    world.record_all(6).await;
    world.advance(4 * SECOND).await;
    let seventh = world.message("lobby", "seventh");
    assert_eq!(world.check(&seventh).await.ongoing, ongoing(0, 4, 7, 7));
    world.advance(SECOND).await;
    assert_eq!(world.record().await.ongoing, None);
    assert_eq!(world.check(&seventh).await.ongoing, ongoing(SECOND, 4, 7, 7));
    assert_eq!(world.check(&world.message("lobby", "seventh")).await.ongoing, None);
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
        let reminder = world.record().await.ongoing.map(|it| it.lasted.as_secs());
        let expected = if second % 15 == 0 { Some(second) } else { None };
        assert_eq!(reminder, expected, "after {second} s");
    }
}
