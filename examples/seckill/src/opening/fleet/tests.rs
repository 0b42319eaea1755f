//! Followers of a clock that is not this machine's.

use std::sync::{Arc, Mutex};

use example_support::lock;
use tokio::time::advance;

use super::*;
use crate::opening::clock::Reading;

/// A Redis whose clock shows this at the start of the test, and runs at this speed.
struct Fake {
    started: Instant,
    shows: Duration,
    speed: f64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    held: Option<String>,
    is_down: bool,
    reads: usize,
}

impl Fake {
    fn showing(shows: Duration, speed: f64) -> (Self, Arc<Mutex<State>>) {
        let state = Arc::default();
        (Self { started: Instant::now(), shows, speed, state: Arc::clone(&state) }, state)
    }
}

impl FleetClock for Fake {
    async fn read(&self, proposed: Option<Duration>) -> Result<Reading, StoreError> {
        let mut state = lock(&self.state);
        state.reads += 1;
        if state.is_down {
            return Err(StoreError::Timeout);
        }
        // As the script: the latest stands, and so does what is no number.
        let held = state.held.as_deref().map(|held| agreed(held).unwrap_or(Duration::MAX));
        if proposed > held {
            state.held = proposed.map(|it| it.as_micros().to_string());
        }
        let now = self.shows + self.started.elapsed().mul_f64(self.speed);
        Ok(Reading { now, held: state.held.clone() })
    }

    async fn held(&self) -> Result<Option<String>, StoreError> {
        let state = lock(&self.state);
        if state.is_down { Err(StoreError::Timeout) } else { Ok(state.held.clone()) }
    }
}

/// Starts a server.
async fn opened(wanted: WantedOpening, clock: Fake) -> Opening {
    agree(wanted, clock).await.unwrap().start().await.unwrap()
}

fn gate(opening: &Opening) -> Gate {
    let Opening::Fleet(gate) = opening else { panic!("{opening:?}") };
    *gate.borrow()
}

const NOON: Duration = Duration::from_secs(1_900_000_000);

fn noon() -> WantedOpening {
    WantedOpening::At(UNIX_EPOCH + NOON)
}

/// Lets this much time pass, and the follower after each millisecond.
async fn pass(time: Duration) {
    for _ in 0..time.as_millis() {
        advance(Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_date_is_a_time_on_the_clock_of_redis() {
    let minute = Duration::from_secs(60);
    // A clock that is right, one that is slow and one that is fast.
    for speed in [1.0, 0.9, 1.1] {
        let (redis, state) = Fake::showing(NOON - minute, speed);
        let started = Instant::now();
        let opening = opened(noon(), redis).await;
        while gate(&opening) != Gate::Open {
            pass(Duration::from_millis(1)).await;
        }
        let late = started.elapsed().mul_f64(speed).checked_sub(minute);
        let late = late.expect("it opens early");
        assert!(late < Duration::from_millis(200), "{late:?} late at speed {speed}");
        assert!(lock(&state).reads < 300, "{} reads", lock(&state).reads);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_open_the_sale() {
    let (redis, state) = Fake::showing(NOON - Duration::from_secs(5), 1.0);
    let opening = opened(noon(), redis).await;
    lock(&state).is_down = true;
    pass(Duration::from_secs(4)).await;
    assert!(matches!(gate(&opening), Gate::Opens(_)), "the estimate holds meanwhile");
    pass(Duration::from_secs(4)).await;
    assert_eq!(gate(&opening), Gate::Unknown);
    assert!(opening.check().is_err());
    lock(&state).is_down = false;
    pass(2 * RETRY).await;
    assert_eq!(gate(&opening), Gate::Open);
}

#[tokio::test(start_paused = true)]
async fn the_first_delay_stands_for_all() {
    let (first, state) = Fake::showing(NOON, 1.0);
    let second = Fake { state: Arc::clone(&state), ..Fake::showing(NOON, 1.0).0 };
    let wanted = |seconds| WantedOpening::In(Duration::from_secs(seconds));
    let first = opened(wanted(10), first).await;
    let second = opened(wanted(1), second).await;
    pass(Duration::from_secs(9)).await;
    // Both keep the instant if Redis loses it, and write it again.
    let held = lock(&state).held.take();
    for opening in [&first, &second] {
        assert!(matches!(gate(opening), Gate::Opens(_)), "{opening:?}");
    }
    pass(Duration::from_millis(1100)).await;
    assert_eq!((gate(&first), gate(&second)), (Gate::Open, Gate::Open));
    let opening = (NOON + Duration::from_secs(10)).as_micros().to_string();
    assert_eq!((held, lock(&state).held.clone()), (Some(opening.clone()), Some(opening)));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_stops_no_running_server() {
    let (clock, state) = Fake::showing(NOON, 1.0);
    let opening = opened(WantedOpening::In(Duration::from_secs(2)), clock).await;
    lock(&state).held = Some("noon".to_owned());
    let (late, _) = Fake::showing(NOON, 1.0);
    let late = Fake { state: Arc::clone(&state), ..late };
    assert!(agree(WantedOpening::In(Duration::ZERO), late).await.is_err());
    pass(Duration::from_millis(2100)).await;
    assert_eq!(gate(&opening), Gate::Open);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_flag_keeps_the_opening() {
    let (redis, state) = Fake::showing(NOON, 1.0);
    let opening = NOON + Duration::from_secs(10);
    lock(&state).held = Some(opening.as_micros().to_string());
    let follower = opened(WantedOpening::AtOnce, redis).await;
    assert!(follower.check().is_err(), "the others open in ten seconds");
    pass(Duration::from_millis(10_100)).await;
    assert_eq!(gate(&follower), Gate::Open);
    let (redis, state) = Fake::showing(NOON, 1.0);
    assert!(opened(WantedOpening::AtOnce, redis).await.check().is_ok());
    assert_eq!(lock(&state).held, None, "nothing is agreed on");
    let (redis, state) = Fake::showing(NOON + Duration::from_secs(11), 1.0);
    lock(&state).held = Some(opening.as_micros().to_string());
    let past = opened(WantedOpening::AtOnce, redis).await;
    assert_eq!(gate(&past), Gate::Open);
}

#[tokio::test(start_paused = true)]
async fn a_later_date_closes_a_sale_that_is_open() {
    let (redis, state) = Fake::showing(NOON - Duration::from_secs(10), 1.0);
    let late = Fake { state: Arc::clone(&state), ..Fake::showing(redis.shows, 1.0).0 };
    let hasty = opened(WantedOpening::AtOnce, redis).await;
    assert_eq!(gate(&hasty), Gate::Open);
    let late = opened(noon(), late).await;
    pass(2 * READ_AGAIN).await;
    for opening in [&hasty, &late] {
        assert!(matches!(gate(opening), Gate::Opens(_)), "{opening:?}");
    }
    pass(Duration::from_secs(10)).await;
    assert_eq!((gate(&hasty), gate(&late)), (Gate::Open, Gate::Open));
    // The next sale's date is of no server here, and holds all the same.
    lock(&state).held = Some((2 * NOON).as_micros().to_string());
    pass(2 * READ_AGAIN).await;
    assert!(matches!(gate(&hasty), Gate::Opens(_)));
}
