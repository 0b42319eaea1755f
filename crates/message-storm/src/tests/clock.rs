//! Groups in Redis when its clock steps back.

use super::*;

const HOUR: u64 = 3_600 * SECOND;

#[tokio::test]
async fn messages_keep_their_age_if_clock_steps_back() {
    let mut world = World::on_redis().await;
    world.record_all(2).await;
    world.advance(4 * SECOND).await;
    world.record_all(2).await;
    world.step_back(HOUR).await;
    assert_eq!(world.record().await.count, 5);
    assert_eq!(world.profile(SECOND).await, [0, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
    world.advance(6 * SECOND - 1).await;
    assert_eq!(world.peek().await.count, 5);
    world.advance(1).await;
    assert_eq!(world.peek().await.count, 3, "the first two are ten seconds old");
    assert_eq!(world.profile(SECOND).await, [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]);
    world.step_back(HOUR).await;
    assert_eq!(world.record().await.count, 4, "the window goes on from the newest message");
    world.advance(10 * SECOND).await;
    assert_eq!(world.peek().await.count, 0);
}

#[tokio::test]
async fn storm_keeps_its_length_if_clock_steps_back() {
    let mut world =
        World::on_redis().await.with_rule(|rule| rule.cool_down(Duration::from_secs(60)));
    world.record_all(6).await;
    world.step_back(HOUR).await;
    let seventh = world.record().await;
    assert_eq!((seventh.storm, seventh.started), (Some((0, 7)), None));
    world.advance(10 * SECOND).await;
    let peeked = world.peek().await;
    assert_eq!(peeked.ended, Some((0, 10 * SECOND, 7)));

    // The log is empty. The cool-down must keep its length.
    world.step_back(HOUR).await;
    let last = world.record_all(9).await;
    assert_eq!((last.started, last.recheck_us), (None, 60 * SECOND));
    world.advance(60 * SECOND).await;
    assert!(world.record_all(6).await.started.is_some());
}

#[tokio::test]
async fn end_is_detected_after_log_expired() {
    let mut world =
        World::on_redis().await.with_rule(|rule| rule.cool_down(Duration::from_secs(60)));
    world.record_all(6).await;
    world.advance(4 * SECOND).await;
    world.record().await;
    world.advance(3_600 * SECOND).await;
    // The test clock does not expire keys, so the log is deleted.
    let server = world.server().unwrap();
    server.run::<()>(&["DEL", "tsw:{=lobby}:default:5/10s:storm:log"]).await;
    let ended = (3_594 * SECOND, 10 * SECOND, 7);
    assert_eq!(world.record().await.ended, Some(ended));
    let last = world.record_all(5).await;
    assert_eq!(last.started.map(|(_, count)| count), Some(6), "the cool-down is over");
}

#[tokio::test]
async fn every_key_has_a_ttl_if_clock_steps_back() {
    let mut world = World::on_redis().await;
    for round in 0..6 {
        if round % 2 == 0 {
            world.step_back(HOUR).await;
        }
        world.record_all(2).await;
        world.advance(SECOND).await;
        let server = world.server().unwrap();
        for (part, most) in [("log", 11_000), ("state", 24 * 3_600_000 + 11_000)] {
            let key = format!("tsw:{{=lobby}}:default:5/10s:storm:{part}");
            let ttl: i64 = server.run(&["PTTL", &key]).await;
            assert!(ttl == -2 || (1..=most).contains(&ttl), "{part}: {ttl}");
        }
    }
}
