//! [`ResultLine`]: what became of a message, as a line on stdout.

use std::fmt;
use std::time::Duration;

use crate::line::Message;
use crate::outbox::Hold;

/// What became of a message.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It has been counted and sent.
    Sent,
    /// It was not sent now: its receiver has had enough for so long, or, with an error, nobody
    /// could decide and it waits.
    Held(Hold),
    /// Nobody could decide, and it does not wait.
    Failed(Hold),
    /// It is given up.
    Dropped(Reason),
}

/// Why a message is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// As many messages waited already as may.
    TooManyWaiting,
    /// The program was asked to stop.
    Stopped,
}

/// A line of output, without its ending: fields as in logfmt, so that a value with a space, a
/// quote or a control character stands in quotes.
pub(crate) struct ResultLine<'a> {
    pub(crate) message: &'a Message,
    pub(crate) outcome: &'a Outcome,
    pub(crate) show_text: bool,
}

impl fmt::Display for ResultLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.outcome {
            Outcome::Sent => "sent",
            Outcome::Held(_) => "held",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped(_) => "dropped",
        };
        write!(f, "{verb} receiver={}", Value(&self.message.receiver))?;
        match self.outcome {
            Outcome::Sent => {}
            Outcome::Held(hold) | Outcome::Failed(hold) => {
                write!(f, " retry_after={}s", whole_seconds(hold.wait))?;
                if let Some(error) = &hold.error {
                    write!(f, " reason={}", error.kind())?;
                }
            }
            Outcome::Dropped(Reason::TooManyWaiting) => f.write_str(" reason=too_many_waiting")?,
            Outcome::Dropped(Reason::Stopped) => f.write_str(" reason=stopped")?,
        }
        if self.show_text {
            write!(f, " text={}", Value(&self.message.text))?;
        }
        Ok(())
    }
}

/// Rounds up, and to 1 at least, as `Retry-After` does in HTTP: who waits so long never waits too
/// short.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

struct Value<'a>(&'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |it: char| !it.is_whitespace() && !it.is_control() && !"\"\\=".contains(it);
        if !self.0.is_empty() && self.0.chars().all(plain) {
            f.write_str(self.0)
        } else {
            write!(f, "{:?}", self.0)
        }
    }
}
