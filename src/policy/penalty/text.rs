//! The text form of a [`Penalty`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{DEFAULT_DECAY, LONGEST_BAN, Penalty};
use crate::policy::ParsePenaltyError;
use crate::quota::{Quota, Span};
use crate::time::micros;

const MANUAL: &str = "manual";
const DECAY: &str = "decay";

impl fmt::Display for Penalty {
    /// Writes the penalty in the form that [`Penalty::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.strikes {
            None => f.write_str(MANUAL)?,
            Some(strikes) => write!(f, "{strikes}")?,
        }
        for (index, level) in self.levels.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { ':' } else { ',' }, Span(micros(*level)))?;
        }
        if self.decay != DEFAULT_DECAY {
            write!(f, " {DECAY} {}", Span(self.decay_us()))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Penalty({self})")
    }
}

impl FromStr for Penalty {
    type Err = ParsePenaltyError;

    fn from_str(text: &str) -> Result<Self, ParsePenaltyError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let decay_at = words.iter().position(|word| *word == DECAY).unwrap_or(words.len());
        let (bans, decay) = words.split_at(decay_at);
        let penalty = read_bans(&bans.join(" "))?;
        match *decay {
            [] => Ok(penalty),
            [_, length] => Ok(penalty.decay(read_decay(length)?)),
            _ => Err(ParsePenaltyError::Option { text: decay.join(" ") }),
        }
    }
}

/// Reads `STRIKES/TIME:LENGTH,LENGTH,...` or `manual`.
fn read_bans(text: &str) -> Result<Penalty, ParsePenaltyError> {
    if text == MANUAL {
        return Ok(Penalty::manual());
    }
    let (strikes, levels) = text.split_once(':').ok_or(ParsePenaltyError::NoLevels)?;
    let strikes: Quota = strikes.trim().parse().map_err(ParsePenaltyError::Strikes)?;
    let level = |(index, level): (usize, &str)| {
        let wrong = |source| ParsePenaltyError::Level { position: index + 1, source };
        level.parse().map(|Span(us)| Duration::from_micros(us)).map_err(wrong)
    };
    let levels: Vec<Duration> =
        levels.split(',').enumerate().map(level).collect::<Result<_, _>>()?;
    Penalty::try_new(strikes, levels)
}

fn read_decay(text: &str) -> Result<Duration, ParsePenaltyError> {
    let allowed = Duration::from_secs(1)..=LONGEST_BAN;
    let decay = text.parse().map(|Span(us)| Duration::from_micros(us)).ok();
    let decay = decay.filter(|decay| allowed.contains(decay));
    decay.ok_or_else(|| ParsePenaltyError::Decay { text: text.to_owned() })
}
