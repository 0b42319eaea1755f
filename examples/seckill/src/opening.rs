//! [`Opening`]: when the sale opens. With Redis, all servers of a prefix agree on it, and open by the
//! clock of Redis.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use humantime::{format_rfc3339_millis, parse_rfc3339};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use crate::args::Args;
use example_support::problem::Problem;

/// The longest time between two reads of the clock of Redis, after which a server knows of a later
/// opening. Within it, two clocks that the network keeps right differ by at most a millisecond.
const READ_AGAIN: Duration = Duration::from_millis(250);
/// The time between two reads while Redis does not answer.
const RETRY: Duration = Duration::from_millis(100);
/// When to try again while Redis does not tell the time.
const UNKNOWN: Duration = Duration::from_secs(1);
/// For how long after the opening Redis keeps it: longer than a sale, so that a restart does not move it.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The end of the year 9999, in seconds since 1970. No date is later.
const LAST_SECOND: u64 = 253_402_300_799;

/// When orders are taken from.
#[derive(Clone, Debug)]
pub(crate) enum Opening {
    AtOnce,
    /// An instant of this process's monotonic clock.
    Instant(Instant),
    /// A moment of the calendar, by the clock of this machine.
    Date(SystemTime),
    /// A moment on the clock of Redis. One task follows that clock, so that no order has to.
    Fleet(watch::Receiver<Gate>),
}

/// What is known of an opening on the clock of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Redis has said that the opening is past. It stays open, whatever happens to that clock.
    Open,
    /// About when Redis is expected to say so.
    Opens(Instant),
    /// That instant is past, and Redis does not tell the time.
    Unknown,
}

impl Opening {
    /// Opens a sale that a single server holds, on its own clock.
    pub(crate) fn here(args: &Args) -> Self {
        match (args.opens_in, args.opens_at) {
            (Some(delay), _) => Self::Instant(Instant::now() + delay),
            (None, Some(date)) => Self::Date(date),
            (None, None) => Self::AtOnce,
        }
    }

    /// Passes if the sale is open.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let Some(wait) = self.opens_in() else { return Ok(()) };
        match self {
            Self::Fleet(gate) if *gate.borrow() == Gate::Unknown => {
                Err(Problem::reduced_capacity(wait))
            }
            _ => Err(Problem::new(StatusCode::FORBIDDEN, "sale-not-open", "The sale is not open")
                .detail("Orders sent before the opening count in the window all the same.")
                .retry_after(wait)),
        }
    }

    /// Returns how long it is until the sale opens, as far as that is known, or nothing if it is open.
    pub(crate) fn opens_in(&self) -> Option<Duration> {
        let wait = match self {
            Self::AtOnce => None,
            Self::Instant(at) => Some(at.saturating_duration_since(Instant::now())),
            Self::Date(at) => at.duration_since(SystemTime::now()).ok(),
            Self::Fleet(gate) => match *gate.borrow() {
                Gate::Open => None,
                // No order is taken before Redis has said so, also when the time has come.
                Gate::Opens(at) => return Some(at.saturating_duration_since(Instant::now())),
                Gate::Unknown => Some(UNKNOWN),
            },
        };
        wait.filter(|wait| !wait.is_zero())
    }

    /// Proposes an opening to all servers with this prefix, and begins to follow the one that stands. Of
    /// two dates the later one holds for each of them, also for those without a flag: a server that kept
    /// the earlier one would sell too early.
    ///
    /// A delay is added to the time of Redis once, by the first server, so that a restart does not move
    /// the opening.
    pub(crate) async fn agreed(args: &Args, commands: RedisCommands) -> Result<Self, StoreError> {
        let script = RedisScript::new(include_str!("opening.lua"));
        let key = format!("{}:opening", args.redis.prefix);
        let mut fleet = Fleet { commands, key, script, opening: None };
        let (now, held) = fleet.read(None).await?;
        let held = held.as_deref().map(parse).transpose()?;
        let date = args.opens_at.map(|date| date.duration_since(UNIX_EPOCH).unwrap_or_default());
        let asked = args.opens_in.map(|delay| now + delay).or(date);
        // As Redis keeps it.
        let asked = asked.map(|it| Duration::from_micros(micros(it)));
        fleet.opening = held.filter(|_| args.opens_in.is_some()).or(asked.max(held));
        if let Some(held) = held
            && asked != Some(held)
            && (asked.is_some() || held > now)
        {
            tracing::warn!(
                agreed = shown(held),
                asked = asked.map_or("at once".to_owned(), shown),
                opens = fleet.opening.map(shown),
                "the servers of this prefix are started with different openings; to open earlier, stop \
                 all of them and delete the key PREFIX:opening"
            );
        }
        // Also tells whether the sale is open already, before the server takes an order.
        let (sender, gate) = watch::channel(Gate::Unknown);
        let next = fleet.look(&sender).await?;
        if let Some(opening) = fleet.opening {
            tracing::info!(opens = shown(opening), "the sale opens by the clock of Redis");
        }
        tokio::spawn(fleet.follow(sender, next));
        Ok(Self::Fleet(gate))
    }
}

/// Follows the clock of Redis, and the opening on which the servers of a prefix agree.
struct Fleet {
    commands: RedisCommands,
    /// On a Cluster, the key says which server's clock it is.
    key: String,
    script: RedisScript,
    /// Since 1970. `None` if the sale is open from the start.
    opening: Option<Duration>,
}

impl Fleet {
    /// Returns the time, and the opening that stands, which is the latest that was ever proposed.
    async fn read(
        &self,
        proposed: Option<Duration>,
    ) -> Result<(Duration, Option<String>), StoreError> {
        let text = proposed.map(|it| micros(it).to_string()).unwrap_or_default();
        let until = proposed.map(|it| (it + KEPT).as_millis().to_string()).unwrap_or_default();
        let (now_us, held): (u64, String) =
            self.commands.script(&self.script, &[&self.key], &[text, until]).await?;
        Ok((Duration::from_micros(now_us), Some(held).filter(|it| !it.is_empty())))
    }

    /// Reads the clock and the opening, and returns when to read them again.
    ///
    /// Only Redis opens the sale: what this server computes is when to ask. So the sale is never open
    /// early by the clock of Redis, and late by one round trip and the timer's millisecond.
    async fn look(&mut self, gate: &watch::Sender<Gate>) -> Result<Instant, StoreError> {
        let sent = Instant::now();
        let was_open = *gate.borrow() == Gate::Open;
        // An opening that is past is not given back to a Redis that has lost it: a new sale may have
        // another.
        let (now, held) = self.read(self.opening.filter(|_| !was_open)).await?;
        // What another program has written there changes nothing.
        let held = held.and_then(|held| parse(&held).ok());
        let is_later = held > self.opening;
        if is_later {
            tracing::warn!(
                was = self.opening.map_or("at once".to_owned(), shown),
                opens = held.map(shown),
                "another server was started with a later opening, which holds for all"
            );
            self.opening = held;
        }
        let left = self.opening.unwrap_or_default().saturating_sub(now);
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
            match self.look(&gate).await {
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

/// Reads the opening that Redis holds.
fn parse(held: &str) -> Result<Duration, StoreError> {
    held.parse().map(Duration::from_micros).map_err(|_| {
        let message = "the key PREFIX:opening holds no opening: delete it".to_owned();
        StoreError::Protocol { message }
    })
}

fn micros(since_1970: Duration) -> u64 {
    since_1970.as_micros().try_into().unwrap_or(u64::MAX)
}

fn shown(since_1970: Duration) -> String {
    let date = UNIX_EPOCH + since_1970.min(Duration::from_secs(LAST_SECOND));
    format_rfc3339_millis(date).to_string()
}

/// Reads a date and time of RFC 3339, with any offset from UTC.
pub(crate) fn date(text: &str) -> Result<SystemTime, &'static str> {
    let error = "it is not a date and time of RFC 3339, such as 2030-11-11T12:00:00Z or \
                 2030-11-11T12:00:00+08:00";
    let utc = |text: &str| parse_rfc3339(text).map_err(|_| error);
    if text.ends_with('Z') {
        return utc(text);
    }
    let (local, offset) = text.split_at_checked(text.len().wrapping_sub(6)).ok_or(error)?;
    let local = utc(&format!("{local}Z"))?;
    // The offset is written like a time of day, and is as long as that is after midnight.
    let time = offset.strip_prefix(['+', '-']).ok_or(error)?;
    let time = utc(&format!("1970-01-01T{time}:00Z"))?;
    let length = time.duration_since(UNIX_EPOCH).map_err(|_| error)?;
    let is_ahead = offset.starts_with('+');
    let date = if is_ahead { local.checked_sub(length) } else { local.checked_add(length) };
    date.ok_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_an_offset_from_utc() {
        let noon = date("2030-11-11T12:00:00Z").unwrap();
        for same in ["2030-11-11T20:00:00+08:00", "2030-11-11T08:30:00-03:30"] {
            assert_eq!(date(same).unwrap(), noon, "{same}");
        }
        let wrong = ["", "noon", "Z", "+08:00", "2030-11-11", "2030-11-11T12:00:00", "é+08:00"];
        let offsets = ["+24:00", "+08:60", "+8:00", "++8:00", "*08:00", "+08-00", "\u{e9}08:0"];
        let offsets = offsets.map(|it| format!("2030-11-11T12:00:00{it}"));
        for text in wrong.into_iter().chain(offsets.iter().map(|it| &it[..])) {
            assert!(date(text).is_err(), "{text}");
        }
    }
}
