//! [`Alert`]: a storm that starts or ends, as a line on stdout.

use std::fmt;
use std::time::Duration;

use tower_sliding_window::storm::Profile;
use tower_sliding_window::{Key, StormEvent};

/// A line of output, without its ending: fields as in logfmt, so that a value with a space, a
/// quote or a control character stands in quotes.
pub(crate) struct Alert<'a>(pub(crate) &'a StormEvent);

impl fmt::Display for Alert<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = Group(self.0.group());
        match self.0 {
            StormEvent::Started { count, cap, threshold, .. } => {
                let count = Count(*count, *cap);
                write!(f, "storm start group={group} count={count} threshold={threshold}")
            }
            StormEvent::Ended { peak, cap, threshold, lasted, .. } => {
                let (peak, lasted) = (Count(*peak, *cap), Seconds(*lasted));
                write!(
                    f,
                    "storm end group={group} peak={peak} threshold={threshold} lasted={lasted}"
                )
            }
            // There may be others some day.
            _ => write!(f, "storm group={group}"),
        }
    }
}

/// How many messages came in each step, as a line of output.
pub(crate) struct Steps<'a>(pub(crate) &'a Key, pub(crate) &'a Profile);

impl fmt::Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.1.counts().iter().map(u32::to_string).collect();
        let (group, step) = (Group(self.0), Seconds(self.1.step()));
        write!(f, "profile group={group} step={step} counts={}", counts.join(","))
    }
}

/// A count, and the cap if it has reached that.
struct Count(u32, u32);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, cap) = self;
        write!(f, "{count}")?;
        if count >= cap { write!(f, " cap={cap}") } else { Ok(()) }
    }
}

/// A length of time in seconds, to the millisecond.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3}", self.0.as_secs_f64());
        write!(f, "{}s", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A group as it was given, or what stands for it if that was too long.
struct Group<'a>(&'a Key);

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.as_bytes();
        if let Some(hash) = bytes.strip_prefix(b"sha256:") {
            f.write_str("sha256:")?;
            return hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"));
        }
        let plain = |it: char| !it.is_whitespace() && !it.is_control() && !"\"\\=".contains(it);
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.is_empty() && text.chars().all(plain) => f.write_str(text),
            Ok(text) => write!(f, "{text:?}"),
            Err(_) => write!(f, "\"{}\"", bytes.escape_ascii()),
        }
    }
}
