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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_part() {
        for (text, part) in [
            ("3/10m", "write STRIKES/TIME:LENGTH"),
            ("0/10m:1m", "the strikes, before the colon: the limit is zero"),
            ("3/10m:", "level number 1"),
            ("3/10m:1m,x", "level number 2"),
            ("3/10m:1h,1m", "level number 2 must be a second to a year long"),
            ("3/10m:10ms", "level number 1 must be a second"),
            ("3/10m:366d", "level number 1 must be a second to a year long"),
            ("101/10m:1m", "101 strikes are too many"),
            ("3/10m:1m decay", "\"decay\" is not an option"),
            ("3/10m:1m decay 1h decay 2h", "\"decay 1h decay 2h\" is not an option"),
            ("3/10m:1m often 2", "level number 1"),
            ("3/10m:1m decay soon", "the decay \"soon\""),
            ("3/10m:1m decay 1ms", "the decay \"1ms\""),
            ("3/10m:1m decay 366d", "the decay \"366d\""),
        ] {
            let error = text.parse::<Penalty>().unwrap_err().to_string();
            assert!(error.starts_with(part), "{text}: {error}");
        }
    }
}
