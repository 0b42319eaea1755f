//! [`Opening`]: when the sale opens. With Redis, all servers of a prefix have one opening, by the clock of
//! Redis.

use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::{Instant, sleep};
use tower_sliding_window::{RedisCommands, RedisScript, StoreError};

use crate::args::Args;
use example_support::problem::Problem;

/// How often a server that is closed looks for a later opening.
const LOOK: Duration = Duration::from_secs(1);
/// The time between two reads while Redis does not answer.
const RETRY: Duration = Duration::from_millis(100);

/// When orders are taken from.
#[derive(Clone)]
pub(crate) struct Opening(Receiver<When>);

/// The opening in microseconds since 1970, or 0 if there is none; and about when that is, unless it has been.
type When = (u64, Option<Instant>);

impl Opening {
    /// Reads when the sale opens, and follows the clock until then: that of Redis, or else that of this
    /// machine.
    pub(crate) async fn start(
        args: &Args,
        redis: Option<RedisCommands>,
    ) -> Result<Self, StoreError> {
        let date = args.opens_at.map(|date| date.duration_since(UNIX_EPOCH).unwrap_or_default());
        let delay = args.opens_in.map(|delay| since_1970() + delay);
        let here = date.or(delay).unwrap_or_default().as_micros() as u64;
        let script = RedisScript::new(include_str!("opening.lua"));
        let clock = Clock { here, redis, script, key: format!("{}:opening", args.redis.prefix) };
        let micros = |it: Duration| it.as_micros() as u64;
        let when = clock.read(date.map(micros), args.opens_in.map(micros)).await?;
        let (sender, receiver) = watch::channel(when);
        let opening = Self(receiver);
        if let Some(left) = opening.opens_in() {
            tracing::info!(opens_in = ?left, "the sale is closed, on every server");
            tokio::spawn(clock.follow(sender));
        } else if when.0 > 0 {
            tracing::info!("the sale is open");
        }
        Ok(opening)
    }

    /// Passes if the sale is open.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let Some(wait) = self.opens_in() else { return Ok(()) };
        let problem = Problem::new(StatusCode::FORBIDDEN, "sale-not-open", "The sale is not open");
        let detail = "Orders sent before the opening count in the window all the same.";
        Err(problem.detail(detail).retry_after(wait))
    }

    /// Returns about how long it is until the sale opens, or nothing if it is open.
    pub(crate) fn opens_in(&self) -> Option<Duration> {
        self.0.borrow().1.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the opening, in microseconds since 1970: 0 if the sale has always been open.
    pub(crate) fn micros(&self) -> u64 {
        self.0.borrow().0
    }
}

/// The clock of Redis, or else that of this machine.
struct Clock {
    /// The opening on that of this machine.
    here: u64,
    redis: Option<RedisCommands>,
    script: RedisScript,
    key: String,
}

impl Clock {
    /// Proposes an opening, and returns the one that stands. All times are in microseconds.
    async fn read(&self, date: Option<u64>, delay: Option<u64>) -> Result<When, StoreError> {
        let (now, opening) = match &self.redis {
            None => (since_1970().as_micros() as u64, self.here),
            Some(commands) => {
                let text = |it: Option<u64>| it.map_or(String::new(), |it| it.to_string());
                let proposed = [text(date), text(delay)];
                let (now, opening): (u64, String) =
                    commands.script(&self.script, &[&self.key], &proposed).await?;
                let opening = if opening.is_empty() { Ok(0) } else { opening.parse() };
                let message = || format!("the key {} holds no opening: delete it", self.key);
                (now, opening.map_err(|_| StoreError::Protocol { message: message() })?)
            }
        };
        let left = Duration::from_micros(opening.saturating_sub(now));
        Ok((opening, (opening > now).then(|| Instant::now() + left)))
    }

    /// Opens the sale when the clock says that it is time. What this server computes is only when to ask, so
    /// no order is early by that clock.
    async fn follow(self, sender: Sender<When>) {
        let mut is_known = true;
        loop {
            let (opening, at) = *sender.borrow();
            let Some(at) = at else { return tracing::info!("the sale is open") };
            let left = at.saturating_duration_since(Instant::now());
            sleep(if is_known { left.min(LOOK) } else { RETRY }).await;
            // Proposed again, for a Redis that has lost it.
            match self.read(Some(opening), None).await {
                Ok(when) => {
                    is_known = true;
                    sender.send_replace(when);
                }
                Err(error) => {
                    if mem::take(&mut is_known) {
                        tracing::warn!(%error, "the sale can't open: Redis does not tell the time");
                    }
                }
            }
        }
    }
}

pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
