//! What a check decides, in process and on Redis, with a clock that the test moves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use test_support::clock::{Clock, on_both};
use test_support::recorder::RecordedMetrics;
use tokio::time::Instant;
use tower_sliding_window::{Key, RedisStore};
use uuid::Uuid;

use crate::check::{Check, Outcome};
use crate::detector::Store;
use crate::in_process::InProcess;
use crate::on_redis::OnRedis;
use crate::{StormDetector, StormEvent, StormRule};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// A store and its clock. On Redis, all stores of a clock have the same groups.
struct World {
    clock: Clock,
    store: Store,
    rule: StormRule,
    sent: u32,
}

impl World {
    /// A storm starts with more than five messages in ten seconds and ends with fewer than three.
    fn new(clock: Clock) -> Self {
        let rule = StormRule::new("5/10s".parse().unwrap());
        Self { store: store(&clock, &rule), clock, rule, sent: 0 }
    }

    fn use_rule(&mut self, rule: StormRule) {
        (self.store, self.rule) = (store(&self.clock, &rule), rule);
    }

    async fn advance(&mut self, us: u64) {
        self.clock.advance(Duration::from_micros(us)).await;
    }

    async fn check(&self, check: &Check) -> Outcome {
        Outcome { at: UNIX_EPOCH, ..self.store.check(check).await.unwrap() }
    }

    /// Records a new message of the group.
    async fn record(&mut self) -> Outcome {
        self.sent += 1;
        let id = Key::from(format!("message-{}", self.sent));
        self.check(&Check::new("lobby".into(), Some(id))).await
    }

    /// Records `count` messages at the same instant, and returns the last outcome.
    async fn record_all(&mut self, count: usize) -> Outcome {
        for _ in 1..count {
            self.record().await;
        }
        self.record().await
    }

    async fn peek(&self) -> Outcome {
        self.check(&Check::new("lobby".into(), None)).await
    }
}

fn store(clock: &Clock, rule: &StormRule) -> Store {
    let rule = Arc::new(rule.clone());
    match clock.store() {
        None => Store::InProcess(InProcess::new(rule)),
        Some(store) => Store::OnRedis(OnRedis::new(rule, store.commands(), Clock::edited)),
    }
}

#[tokio::test]
async fn messages_that_leave_together_are_removed_over_several_calls() {
    on_both(async |clock| {
        let mut world = World::new(clock);
        world.record_all(900).await;
        world.advance(10 * SECOND).await;
        let next = world.peek().await;
        assert_eq!((next.ended, next.count), (Some((0, 10 * SECOND, 900)), 0));
        if let Some(redis) = world.clock.redis() {
            assert!(ttl(&world, "log").await <= 11_000, "no longer that of a storm");
            assert!(ttl(&world, "state").await > 3_590_000, "a lost reply is asked for");
            assert_eq!(redis.entries("tsw:{=lobby}:default:5/10s:storm:log").await, 900 - 256);
        }
        assert_eq!(world.record().await.count, 1);
        // The last one by its name is among those that Redis still has.
        let again = Check::new("lobby".into(), Some("message-99".into()));
        assert_eq!(world.check(&again).await.count, 2, "it had left the window");
        assert_eq!(world.peek().await.count, 2);
        assert_eq!((world.check(&again).await.count, world.record().await.count), (2, 3));
        if let Some(redis) = world.clock.redis() {
            assert_eq!(redis.entries("tsw:{=lobby}:default:5/10s:storm:log").await, 3);
        }
    })
    .await;
}

/// Returns the time to live of a key of the group, in milliseconds.
async fn ttl(world: &World, part: &str) -> i64 {
    let key = format!("tsw:{{=lobby}}:default:5/10s:storm:{part}");
    world.clock.redis().unwrap().run(&["PTTL", &key]).await
}

#[tokio::test]
async fn every_key_has_a_ttl_if_clock_steps_back() {
    let mut world = World::new(Clock::on_redis().await);
    world.record().await;
    world.clock.step_back(Duration::from_micros(HOUR)).await;
    world.record().await;
    let state = "tsw:{=lobby}:default:5/10s:storm:state";
    world.clock.redis().unwrap().run::<()>(&["PEXPIRE", state, "1000"]).await;
    world.record().await;
    assert!(ttl(&world, "state").await > 10_000, "each message keeps what is known of the step");
    for round in 0..6 {
        if round % 2 == 0 {
            world.clock.step_back(Duration::from_micros(HOUR)).await;
        }
        world.record_all(2).await;
        world.advance(SECOND).await;
        for part in ["log", "state"] {
            let most = 24 * 3_600_000 + 11_000;
            let ttl = ttl(&world, part).await;
            assert!(ttl == -2 || (1..=most).contains(&ttl), "{part}: {ttl}");
        }
    }
}

/// A call whose reply is lost finds both if the storm is over when it is repeated.
#[test]
fn earlier_event_is_the_first() {
    for (started_us, is_start) in [(9, [true, false]), (2, [false, true])] {
        let (started, ended) = (Some((started_us, 6)), Some((5, 4, 6)));
        let (at, storm) = (UNIX_EPOCH, None);
        let outcome = Outcome { at, count: 0, recheck_us: 0, storm, started, ended };
        let events = outcome.events(&"lobby".into());
        let starts = events.iter().map(|it| matches!(it, StormEvent::Started { .. }));
        assert_eq!(starts.collect::<Vec<_>>(), is_start);
    }
}

/// Nobody answers at that port. The time is that of the test, so it counts the attempts.
#[tokio::test(start_paused = true)]
async fn failed_call_is_repeated_with_growing_pauses() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let store = RedisStore::connect_lazy("redis://127.0.0.1:1").unwrap();
    let rule = StormRule::new("1/10s".parse().unwrap());
    let detector = StormDetector::on_redis(rule, &store).unwrap();
    detector.peek("lobby").await.unwrap_err();
    let errors = || {
        let errors = recorded.names().into_iter().filter(|it| it.contains("store_errors"));
        errors.map(|it| recorded.count(&it)).sum::<u64>()
    };
    let (before, start) = (errors(), Instant::now());
    detector.0.check_later(Check::new("lobby".into(), None), Duration::ZERO, None);
    let mut attempts = Vec::new();
    while attempts.len() < 8 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let done = (errors() - before) as usize;
        attempts.resize(done, start.elapsed().as_millis());
    }
    let pauses: Vec<_> = attempts.windows(2).map(|two| (two[1] - two[0]).div_ceil(100)).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 50, 50], "in tenths of a second: {attempts:?}");
}

const GROUPS: [&str; 2] = ["lobby", "}\0%"];

/// A group, as the documentation of the crate defines it.
#[derive(Default)]
struct Model {
    messages: Vec<(u64, Key)>,
    /// When the storm started, and its peak.
    storm: Option<(u64, u32)>,
    /// By how much the group's timestamps are ahead of the clock after it has stepped back.
    offset_us: u64,
    /// The call that has started the last storm, when, and the count then.
    started: Option<(Uuid, u64, u32)>,
    /// The call that has ended the last storm, when, how long it lasted, and its peak.
    ended: Option<(Uuid, u64, u64, u32)>,
}

impl Model {
    /// Returns the first instant at which fewer than `ends_below` messages are in the window.
    fn below_us(&self, rule: &StormRule) -> Option<u64> {
        let leave = || self.messages.iter().map(|(at_us, _)| at_us + rule.window_us());
        let is_below =
            |at_us: &u64| leave().filter(|it| it > at_us).count() < rule.ends_below as usize;
        (self.messages.len() >= rule.ends_below as usize).then(|| leave().filter(is_below).min())?
    }

    fn check(&mut self, check: &Check, rule: &StormRule, clock_us: u64) -> Outcome {
        let times = self.messages.iter().map(|(at_us, _)| *at_us);
        let times = times.chain(self.started.map(|it| it.1)).chain(self.ended.map(|it| it.1));
        let latest_us = times.max().unwrap_or(0);
        self.offset_us = self.offset_us.max(latest_us.saturating_sub(clock_us));
        let now_us = clock_us + self.offset_us;

        if let Some((since_us, peak)) = self.storm {
            let over_us = self.below_us(rule).unwrap_or(now_us);
            if over_us <= now_us {
                let over_us = over_us.max(since_us);
                self.storm = None;
                self.ended = Some((check.call, over_us, over_us - since_us, peak));
            }
        }
        self.messages.retain(|(at_us, _)| at_us + rule.window_us() > now_us);
        let is_new = |id: &&Key| self.messages.iter().all(|(_, it)| it != *id);
        let added = check.message.as_ref().filter(is_new).cloned();
        let is_added = added.is_some();
        if let Some(id) = added {
            self.messages.push((now_us, id));
            // Redis sorts messages of one instant. In process, the histories have none at the cap.
            self.messages.sort();
            let above = self.messages.len().saturating_sub(rule.cap as usize);
            self.messages.drain(..above);
        }
        let count = (self.messages.len() as u32).min(rule.cap);
        let starts = self.storm.is_none() && count > rule.threshold.limit();
        if starts {
            self.storm = Some((now_us, count));
            self.started = Some((check.call, now_us, count));
        }
        let below_us = self.below_us(rule);
        let mut recheck_us = 0;
        if let Some((_, peak)) = &mut self.storm {
            if is_added {
                *peak = count.max(*peak);
            }
            recheck_us = below_us.map_or(1, |at_us| at_us - now_us);
        }
        let started = self.started.filter(|(call, ..)| *call == check.call);
        let ended = self.ended.filter(|(call, ..)| *call == check.call);
        Outcome {
            at: UNIX_EPOCH,
            count,
            recheck_us,
            storm: self.storm.map(|(since_us, peak)| (now_us - since_us, peak)),
            started: started.map(|(_, at_us, count)| (now_us - at_us, count)),
            ended: ended.map(|(_, at_us, lasted_us, peak)| (now_us - at_us, lasted_us, peak)),
        }
    }
}

fn random_rule(rng: &mut Rng) -> StormRule {
    let limit = rng.u32(2..8);
    let rule = StormRule::new(format!("{limit}/10s").parse().unwrap()).named("same");
    rule.ends_below(rng.u32(1..=limit)).cap(limit + rng.u32(1..6))
}

/// Often a multiple of half a window, plus or minus a microsecond.
fn random_pause_us(rng: &mut Rng) -> u64 {
    match rng.u8(..60) {
        0..29 => rng.u64(..4 * SECOND),
        29..49 => (rng.u64(..3) * 5 * SECOND + rng.u64(..3)).saturating_sub(1),
        49..59 => rng.u64(..40 * SECOND),
        // A storm is known for a day after its last message.
        _ => rng.u64(..24 * HOUR),
    }
}

/// Plays a random history, with groups of its own, to a store and to the model.
async fn play(world: &mut World, run: u32) {
    let (seed, on_redis) = (fastrand::u64(..), world.clock.redis().is_some());
    let mut rng = Rng::with_seed(seed);
    world.use_rule(random_rule(&mut rng));
    let (mut sent, mut models) = (Vec::<Check>::new(), HashMap::<Key, Model>::new());
    for step in 0..rng.u32(1..120) {
        let check = match rng.u8(..if on_redis { 31 } else { 27 }) {
            0..4 => {
                world.advance(random_pause_us(&mut rng)).await;
                continue;
            }
            27 => {
                let by_us = rng.u64(1..30 * SECOND);
                world.clock.step_back(Duration::from_micros(by_us)).await;
                continue;
            }
            28 => {
                // Another process has another rule.
                world.use_rule(random_rule(&mut rng));
                continue;
            }
            // A call of before is repeated.
            29.. if !sent.is_empty() => sent[rng.usize(..sent.len())].clone(),
            _ => {
                // In process, messages of one instant leave in the order in which they came.
                if !on_redis {
                    world.advance(1).await;
                }
                let group = Key::from(format!("{run}:{}", GROUPS[rng.usize(..GROUPS.len())]));
                let is_message = rng.u8(..8) > 0;
                // The first id is the empty one.
                let id = rng.u8(..);
                let id = Key::from(&[id][..usize::from(id.min(1))]);
                Check::new(group, is_message.then_some(id))
            }
        };
        let clock_us = world.clock.now().as_micros() as u64;
        let model = models.entry(check.group.clone()).or_default();
        let expected = model.check(&check, &world.rule, clock_us);
        assert_eq!(world.check(&check).await, expected, "seed {seed}, step {step}");
        sent.push(check);
    }
}

#[tokio::test]
async fn random_histories_agree_with_the_model() {
    on_both(async |clock| {
        let mut world = World::new(clock);
        for run in 0..150 {
            play(&mut world, run).await;
        }
    })
    .await;
}
