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
        let proposed = proposed.map(|it| it.as_micros().to_string());
        state.held = state.held.take().or(proposed);
        let now = self.shows + self.started.elapsed().mul_f64(self.speed);
        Ok(Reading { now, held: state.held.clone() })
    }
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
        let opening = agree(noon(), redis).await.unwrap();
        while gate(&opening) != Gate::Open {
            pass(Duration::from_millis(1)).await;
        }
        let late = started.elapsed().mul_f64(speed).checked_sub(minute);
        let late = late.expect("it opens early");
        assert!(late < Duration::from_millis(200), "{late:?} late at speed {speed}");
        assert!(lock(&state).reads < 80, "{} reads", lock(&state).reads);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_open_the_sale() {
    let (redis, state) = Fake::showing(NOON - Duration::from_secs(5), 1.0);
    let opening = agree(noon(), redis).await.unwrap();
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
    let first = agree(wanted(10), first).await.unwrap();
    let second = agree(wanted(1), second).await.unwrap();
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
    let opening = agree(WantedOpening::In(Duration::from_secs(2)), clock).await.unwrap();
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
    let follower = agree(WantedOpening::AtOnce, redis).await.unwrap();
    assert!(follower.check().is_err(), "the others open in ten seconds");
    pass(Duration::from_millis(10_100)).await;
    assert_eq!(gate(&follower), Gate::Open);
    let (redis, state) = Fake::showing(NOON, 1.0);
    assert!(agree(WantedOpening::AtOnce, redis).await.unwrap().check().is_ok());
    assert_eq!(lock(&state).held, None, "nothing is agreed on");
    let (redis, state) = Fake::showing(NOON + Duration::from_secs(11), 1.0);
    lock(&state).held = Some(opening.as_micros().to_string());
    let past = agree(WantedOpening::AtOnce, redis).await.unwrap();
    assert!(matches!(past, Opening::AtOnce), "{past:?}");
}
