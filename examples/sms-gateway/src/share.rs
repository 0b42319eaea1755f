//! [`Share`]: a part of a whole, such as `20%`.

use std::fmt;
use std::str::FromStr;

/// A part of a whole, from none to all, in thousandths, so that it can be compared exactly.
///
/// Its text form is a percentage with at most one decimal: `20%`, `2.5%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(u32);

impl Share {
    pub(crate) const ALL: Self = Self(1000);

    /// Creates a share of so many thousandths, or of all.
    pub(crate) const fn thousandths(count: u32) -> Self {
        if count < 1000 { Self(count) } else { Self::ALL }
    }

    /// Returns this share of a whole, rounded down.
    pub(crate) fn of(self, whole: u64) -> u64 {
        // Two steps, so that nothing overflows.
        let part = u64::from(self.0);
        whole / 1000 * part + whole % 1000 * part / 1000
    }

    /// Tells whether `part` of `whole` is more than this share. Of zero it is not.
    pub(crate) fn is_below(self, part: u64, whole: u64) -> bool {
        u128::from(part) * 1000 > u128::from(self.0) * u128::from(whole)
    }

    /// Returns what share `part` of `whole` is, rounded to the nearest thousandth.
    pub(crate) fn ratio(part: u64, whole: u64) -> Self {
        let (part, whole) = (u128::from(part), u128::from(whole));
        let thousandths = (part * 1000 + whole / 2).checked_div(whole).unwrap_or(0);
        Self::thousandths(u32::try_from(thousandths).unwrap_or(u32::MAX))
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self::thousandths(self.0 + other.0)
    }

    /// Returns this share of another share, rounded down.
    pub(crate) const fn times(self, other: Self) -> Self {
        Self(self.0 * other.0 / 1000)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (percent, 0) => write!(f, "{percent}%"),
            (percent, tenths) => write!(f, "{percent}.{tenths}%"),
        }
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        // The text of every share there is: nothing else is one.
        let text = text.replace(" %", "%").replace(".0%", "%");
        (0..=1000).map(Self).find(|share| share.to_string() == text).ok_or(ShareError)
    }
}

/// A text is no [`Share`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("it is not a percentage from 0% to 100%, such as 20% or 2.5%")]
pub(crate) struct ShareError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["0%", "0.1%", "20%", "2.5%", "100%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        for text in ["", "20", "%", "101%", "100.1%", "-1%", "+5%", "2.55%", "1.%", ".5%", "1e2%"] {
            assert_eq!(text.parse::<Share>(), Err(ShareError), "{text:?}");
        }
    }

    #[test]
    fn shares_are_exact() {
        let fifth = Share::thousandths(200);
        assert!(!fifth.is_below(2, 10) && fifth.is_below(3, 10));
        assert!(!fifth.is_below(0, 0) && !Share(0).is_below(0, 5));
        assert_eq!((fifth.of(u64::MAX), fifth.of(29), Share::ALL.of(7)), (u64::MAX / 5, 5, 7));
        assert_eq!((Share::ratio(1, 3), Share::ratio(2, 3)), (Share(333), Share(667)));
        assert_eq!((Share::ratio(0, 0), Share::ratio(9, 3)), (Share(0), Share::ALL));
    }
}
