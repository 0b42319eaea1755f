//! [`agree`]: one opening for all servers with the same prefix, on the clock of Redis.

#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use example_support::policies::LOOK_EVERY;
use humantime::format_rfc3339_millis;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower_sliding_window::StoreError;

use super::clock::FleetClock;
use super::{Gate, Opening, WantedOpening};

/// The longest time between two reads of the clock of Redis, after which a server knows of a later
/// opening. Within it, two clocks that the network keeps right differ by at most a millisecond.
const READ_AGAIN: Duration = LOOK_EVERY;
/// The time between two reads while Redis does not answer.
const RETRY: Duration = Duration::from_millis(100);
/// The end of the year 9999, in seconds since 1970. No date is later.
const LAST_SECOND: u64 = 253_402_300_799;

/// Proposes an opening to all servers with this prefix. Of two dates the later one holds for each of
/// them, also for those without a flag: a server that kept the earlier one would sell too early.
///
/// A delay is added to the time of Redis once, by the first server, so that a restart does not move the
/// opening.
pub(crate) async fn agree<C: FleetClock>(
    wanted: WantedOpening,
    clock: C,
) -> Result<Follower<C>, StoreError> {
    let reading = clock.read(None).await?;
    let held = reading.held.as_deref().map(agreed).transpose()?;
    let asked = match wanted {
        WantedOpening::AtOnce => None,
        WantedOpening::In(delay) => Some(reading.now + delay),
        WantedOpening::At(date) => Some(date.duration_since(UNIX_EPOCH).unwrap_or_default()),
    };
    // As Redis keeps it.
    let asked =
        asked.map(|it| Duration::from_micros(it.as_micros().try_into().unwrap_or(u64::MAX)));
    let opening = match (wanted, held) {
        (WantedOpening::In(_), Some(held)) => Some(held),
        _ => asked.max(held),
    };
    if let Some(held) = held
        && asked != Some(held)
        && (asked.is_some() || held > reading.now)
    {
        tracing::warn!(
            agreed = shown(held),
            asked = asked.map_or("at once".to_owned(), shown),
            opens = shown(opening.unwrap_or_default()),
            "the servers of this prefix are started with different openings; to open earlier, stop all \
             of them and delete the key PREFIX:opening"
        );
    }
    if opening.is_some() {
        clock.read(opening).await?;
    }
    Ok(Follower { clock, opening })
}

/// Reads the opening that Redis holds.
fn agreed(held: &str) -> Result<Duration, StoreError> {
    held.parse().map(Duration::from_micros).map_err(|_| {
        let message = "the key PREFIX:opening holds no opening: delete it".to_owned();
        StoreError::Protocol { message }
    })
}

fn shown(since_1970: Duration) -> String {
    let date = SystemTime::UNIX_EPOCH + since_1970.min(Duration::from_secs(LAST_SECOND));
    format_rfc3339_millis(date).to_string()
}

/// Follows the clock of Redis, and the opening on which the servers agree.
pub(crate) struct Follower<C> {
    clock: C,
    /// `None` if the sale is open from the start.
    opening: Option<Duration>,
}

impl<C: FleetClock> Follower<C> {
    /// Begins to follow. Also tells whether the sale is open already, before the server takes an order.
    pub(crate) async fn start(mut self) -> Result<Opening, StoreError> {
        let (sender, gate) = watch::channel(Gate::Unknown);
        let next = self.read(&sender).await?;
        if let Some(opening) = self.opening {
            tracing::info!(opens = shown(opening), "the sale opens by the clock of Redis");
        }
        tokio::spawn(self.follow(sender, next));
        Ok(Opening::Fleet(gate))
    }

    /// Reads the clock and the opening, and returns when to read them again.
    ///
    /// Only Redis opens the sale: what this server computes is when to ask. So the sale is never open
    /// early by the clock of Redis, and late by one round trip and the timer's millisecond.
    async fn read(&mut self, gate: &watch::Sender<Gate>) -> Result<Instant, StoreError> {
        let sent = Instant::now();
        let was_open = *gate.borrow() == Gate::Open;
        // A foreign value changes nothing.
        let valid = |held: Option<String>| held.as_deref().and_then(|held| agreed(held).ok());
        if was_open && valid(self.clock.held().await?) <= self.opening {
            return Ok(sent + READ_AGAIN);
        }
        // An opening that is past is not given back to a Redis that has lost it: a new sale may have
        // another.
        let reading = self.clock.read(self.opening.filter(|_| !was_open)).await?;
        let held = valid(reading.held);
        let is_later = held > self.opening;
        if is_later {
            tracing::warn!(
                was = self.opening.map_or("at once".to_owned(), shown),
                opens = held.map(shown),
                "another server was started with a later opening, which holds for all"
            );
            self.opening = held;
        }
        let left = self.opening.unwrap_or_default().saturating_sub(reading.now);
        // Once open it stays open, whatever happens to that clock.
        if left.is_zero() || (was_open && !is_later) {
            if gate.send_replace(Gate::Open) != Gate::Open {
                tracing::info!("the sale is open");
            }
            return Ok(sent + READ_AGAIN);
        }
        // Redis read its clock between the request and the reply: the earlier of the two is early
        // enough to ask, and the later one is long enough for a client to wait.
        gate.send_replace(Gate::Opens(Instant::now() + left));
        Ok(sent + left.min(READ_AGAIN))
    }

    async fn follow(mut self, gate: watch::Sender<Gate>, mut next: Instant) {
        loop {
            sleep_until(next).await;
            match self.read(&gate).await {
                Ok(then) => next = then,
                Err(error) => {
                    gate.send_if_modified(|gate| {
                        let is_due = matches!(gate, Gate::Opens(at) if *at <= Instant::now());
                        if is_due {
                            tracing::warn!(%error, "the sale can't open: Redis does not tell the time");
                            *gate = Gate::Unknown;
                        }
                        is_due
                    });
                    sleep(RETRY).await;
                    next = Instant::now();
                }
            }
        }
    }
}
