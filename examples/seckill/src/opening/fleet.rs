//! [`agree`]: one opening for all servers with the same prefix, on the clock of Redis.

#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_millis;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower_sliding_window::StoreError;

use super::clock::FleetClock;
use super::{Gate, Opening, WantedOpening};

/// The longest time between two reads of the clock of Redis. Within it, two clocks that the network
/// keeps right differ by at most a millisecond.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// The time between two reads while Redis does not answer.
const RETRY: Duration = Duration::from_millis(100);
/// The end of the year 9999, in seconds since 1970. No date is later.
const LAST_SECOND: u64 = 253_402_300_799;

/// Returns the opening that all servers share.
///
/// A date is the same on all of them already. A delay is added to the time of Redis by the first
/// server, and the others take its opening over, also those without a flag: one of them would sell
/// before the opening of the others.
pub(crate) async fn agree(
    wanted: WantedOpening,
    clock: impl FleetClock,
) -> Result<Opening, StoreError> {
    let (opening, proposed) = match wanted {
        WantedOpening::AtOnce => {
            let reading = clock.read(None).await?;
            match reading.held.as_deref().map(agreed).transpose()? {
                Some(held) if held > reading.now => {
                    warn_of_kept(held);
                    (held, Some(held))
                }
                Some(_) | None => return Ok(Opening::AtOnce),
            }
        }
        WantedOpening::At(date) => (date.duration_since(UNIX_EPOCH).unwrap_or_default(), None),
        WantedOpening::In(delay) => {
            let reading = clock.read(None).await?;
            let proposed = reading.now + delay;
            let reading = match reading.held {
                Some(_) => reading,
                None => clock.read(Some(proposed)).await?,
            };
            let held = match reading.held {
                Some(held) => agreed(&held)?,
                None => proposed,
            };
            if held != proposed {
                warn_of_kept(held);
            }
            (held, Some(held))
        }
    };
    tracing::info!(opens = shown(opening), "the sale opens by the clock of Redis");
    let follower = Follower { clock, opening, proposed };
    let (sender, gate) = watch::channel(Gate::Unknown);
    // Also tells whether the sale is open already, before the server takes an order.
    let next = follower.read(&sender).await?;
    if let Some(next) = next {
        tokio::spawn(follower.follow(sender, next));
    }
    Ok(Opening::Fleet(gate))
}

/// Reads the opening that Redis holds.
fn agreed(held: &str) -> Result<Duration, StoreError> {
    held.parse().map(Duration::from_micros).map_err(|_| {
        let message = "the key PREFIX:opening holds no opening: delete it".to_owned();
        StoreError::Protocol { message }
    })
}

fn warn_of_kept(opening: Duration) {
    tracing::warn!(
        opens = shown(opening),
        "the opening was agreed on before, and is kept; for a new sale delete the key PREFIX:opening \
         in Redis before the start"
    );
}

fn shown(since_1970: Duration) -> String {
    let date = SystemTime::UNIX_EPOCH + since_1970.min(Duration::from_secs(LAST_SECOND));
    format_rfc3339_millis(date).to_string()
}

/// Follows the clock of Redis up to the opening.
struct Follower<C> {
    clock: C,
    opening: Duration,
    /// The agreed opening, for a Redis that has lost it.
    proposed: Option<Duration>,
}

impl<C: FleetClock> Follower<C> {
    /// Reads the clock, and returns when to read it again, unless the sale is open now.
    ///
    /// Only Redis opens the sale: what this server computes is when to ask. So the sale is never open
    /// early by the clock of Redis, and late by one round trip and the timer's millisecond.
    async fn read(&self, gate: &watch::Sender<Gate>) -> Result<Option<Instant>, StoreError> {
        let sent = Instant::now();
        let reading = self.clock.read(self.proposed).await?;
        let left = self.opening.saturating_sub(reading.now);
        if left.is_zero() {
            gate.send_replace(Gate::Open);
            return Ok(None);
        }
        // Redis read its clock between the request and the reply: the earlier of the two is early
        // enough to ask, and the later one is long enough for a client to wait.
        gate.send_replace(Gate::Opens(Instant::now() + left));
        Ok(Some(sent + left.min(READ_AGAIN)))
    }

    async fn follow(self, gate: watch::Sender<Gate>, mut next: Instant) {
        loop {
            sleep_until(next).await;
            match self.read(&gate).await {
                Ok(Some(then)) => next = then,
                Ok(None) => return tracing::info!("the sale is open"),
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
