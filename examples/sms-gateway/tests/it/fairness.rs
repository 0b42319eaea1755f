//! An institution that sends far too much costs the other institutions nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use test_support::Redis;
use test_support::server_process::Server;
use tokio::time::{MissedTickBehavior, interval};

use crate::{SHARE, spawn_sms, start};

/// How many messages got each status.
type Statuses = BTreeMap<u16, usize>;

/// How long the load lasts.
const LOAD: Duration = Duration::from_secs(4);
/// How often a sender sends some messages at once.
const TICK: Duration = Duration::from_millis(20);

/// Sends so many messages each tick, each to another receiver, and counts the statuses. A tick that
/// is late is not made up for, so that no sender is faster than it says.
async fn paced(server: &Server, institution: &str, messages_a_tick: usize) -> Statuses {
    let area = if institution == "bank" { 555 } else { 777 };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = Vec::new();
    for tick in 0..LOAD.as_millis() / TICK.as_millis() {
        ticks.tick().await;
        for message in 0..messages_a_tick {
            let number = tick as usize * messages_a_tick + message;
            let receiver = format!("+1{area}{number:07}");
            sent.push(spawn_sms(server, institution, &receiver));
        }
    }
    let mut statuses = Statuses::new();
    for answer in sent {
        *statuses.entry(answer.await.unwrap().status.as_u16()).or_default() += 1;
    }
    statuses
}

/// Two institutions of 100/1s: one sends 700 a second, the other 50.
#[tokio::test]
async fn flood_of_one_institution_costs_no_other() {
    let server = start(&SHARE);
    let (shop, bank) = tokio::join!(paced(&server, "shop", 14), paced(&server, "bank", 1));
    println!("shop at 700/s of 100/s: {shop:?}; bank at 50/s of 100/s: {bank:?}");
    assert_eq!(bank.into_keys().collect::<Vec<_>>(), [202], "shop: {shop:?}");
    assert_eq!(shop.into_keys().collect::<Vec<_>>(), [202, 429]);
}

/// Fifty times its rate. The bucket and the channel that both institutions share have room for what the
/// institutions may send, and for no more.
#[tokio::test]
async fn flood_at_fifty_times_the_rate_is_refused() {
    let redis = Redis::start().await;
    let redis = redis.url();
    let flags = ["--institution", "shop=20/1s", "--institution", "bank=100/1s"];
    let shared = ["--global", "120/1s", "--channel-limit", "120/1s"];
    for more in [&[][..], &["--redis", &redis], &["--hold", "1s"]] {
        let server = start(&[&flags[..], &shared, &SHARE, more].concat());
        let (shop, bank) = tokio::join!(paced(&server, "shop", 20), paced(&server, "bank", 1));
        println!("shop at 1000/s of 20/s: {shop:?}; bank at 50/s of 100/s: {bank:?}");
        assert_eq!(bank.into_keys().collect::<Vec<_>>(), [202], "shop: {shop:?}");
        assert_eq!(shop.into_keys().collect::<Vec<_>>(), [202, 429]);
    }
}
