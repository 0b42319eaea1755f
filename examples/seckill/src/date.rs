//! [`Date`]: a date and time on the command line.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// The moment at which the sale opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Date(pub(crate) SystemTime);

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        let utc = |text: &str| humantime::parse_rfc3339(text).map_err(|_| DateError);
        if text.ends_with('Z') {
            return Ok(Self(utc(text)?));
        }
        let (local, offset) = text.split_at_checked(text.len().wrapping_sub(6)).ok_or(DateError)?;
        let (sign, offset) = offset.split_at_checked(1).ok_or(DateError)?;
        let (hours, minutes) = offset.split_once(':').ok_or(DateError)?;
        let offset = number(hours, 23)? * 3600 + number(minutes, 59)? * 60;
        let (local, offset) = (utc(&format!("{local}Z"))?, Duration::from_secs(offset));
        let date = match sign {
            "+" => local.checked_sub(offset),
            "-" => local.checked_add(offset),
            _ => None,
        };
        date.map(Self).ok_or(DateError)
    }
}

/// Reads a number of two digits.
fn number(text: &str, most: u64) -> Result<u64, DateError> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.filter(|it| *it <= most).ok_or(DateError)
}

/// A text is not a [`Date`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "it is not a date and time of RFC 3339, such as 2030-11-11T12:00:00Z or \
     2030-11-11T12:00:00+08:00"
)]
pub(crate) struct DateError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_an_offset_from_utc() {
        let date = |text: &str| text.parse::<Date>().map(|date| date.0).ok();
        let noon = date("2030-11-11T12:00:00Z");
        assert!(noon.is_some());
        for same in ["2030-11-11T20:00:00+08:00", "2030-11-11T08:30:00-03:30"] {
            assert_eq!(date(same), noon, "{same}");
        }
        assert_eq!(date("2030-11-11T12:00:00.5Z"), noon.map(|it| it + Duration::from_millis(500)));
        let wrong = ["", "noon", "Z", "+08:00", "2030-11-11", "2030-11-11T12:00:00", "é+08:00"];
        let offsets = ["+24:00", "+08:60", "+8:00", "++8:00", "*08:00", "+08-00", "\u{e9}08:0"];
        for offset in offsets.map(|it| format!("2030-11-11T12:00:00{it}")) {
            assert_eq!(date(&offset), None, "{offset}");
        }
        for text in wrong {
            assert_eq!(date(text), None, "{text}");
        }
    }
}
