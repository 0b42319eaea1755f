//! [`date`]: reads when a sale opens.

use std::time::{SystemTime, UNIX_EPOCH};

/// Reads a date and time of RFC 3339, with any offset from UTC.
pub(crate) fn date(text: &str) -> Result<SystemTime, DateError> {
    let utc = |text: &str| humantime::parse_rfc3339(text).map_err(|_| DateError);
    if text.ends_with('Z') {
        return utc(text);
    }
    let (local, offset) = text.split_at_checked(text.len().wrapping_sub(6)).ok_or(DateError)?;
    let local = utc(&format!("{local}Z"))?;
    // The offset is written like a time of day, and is as long as that is after midnight.
    let time = offset.strip_prefix(['+', '-']).ok_or(DateError)?;
    let time = utc(&format!("1970-01-01T{time}:00Z"))?;
    let length = time.duration_since(UNIX_EPOCH).map_err(|_| DateError)?;
    let is_ahead = offset.starts_with('+');
    let date = if is_ahead { local.checked_sub(length) } else { local.checked_add(length) };
    date.ok_or(DateError)
}

/// A text is not a date and time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "it is not a date and time of RFC 3339, such as 2030-11-11T12:00:00Z or \
     2030-11-11T12:00:00+08:00"
)]
pub(crate) struct DateError;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_have_an_offset_from_utc() {
        let noon = date("2030-11-11T12:00:00Z").unwrap();
        for same in ["2030-11-11T20:00:00+08:00", "2030-11-11T08:30:00-03:30"] {
            assert_eq!(date(same).unwrap(), noon, "{same}");
        }
        let half = date("2030-11-11T12:00:00.5Z").unwrap();
        assert_eq!(half, noon + Duration::from_millis(500));
        let wrong = ["", "noon", "Z", "+08:00", "2030-11-11", "2030-11-11T12:00:00", "é+08:00"];
        let offsets = ["+24:00", "+08:60", "+8:00", "++8:00", "*08:00", "+08-00", "\u{e9}08:0"];
        let offsets = offsets.map(|it| format!("2030-11-11T12:00:00{it}"));
        for text in wrong.into_iter().chain(offsets.iter().map(|it| &it[..])) {
            assert!(date(text).is_err(), "{text}");
        }
    }
}
