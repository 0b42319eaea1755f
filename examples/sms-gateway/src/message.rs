//! [`Message`]: what is to be sent, read from the body of a request.

use axum::http::StatusCode;
use example_support::problem::{Problem, WholeBody};
use serde::Deserialize;

/// The most characters of a text: ten parts that handsets join.
const LONGEST_TEXT: usize = 1600;

/// A message on its way to a receiver.
#[derive(Deserialize)]
pub(crate) struct Message {
    pub(crate) institution: String,
    pub(crate) channel: String,
    /// In the one form that [`e164`] returns.
    pub(crate) to: String,
    pub(crate) text: String,
    /// How many short messages the text is sent as, each of which takes a place at every level.
    #[serde(skip)]
    pub(crate) parts: u32,
}

impl Message {
    pub(crate) fn read(body: &WholeBody) -> Result<Self, Problem> {
        let mut message: Self = body.object().map_err(|error| {
            unreadable(format!(
                "The body must be a JSON object with the texts institution, channel, to and text, \
                 each once: {error}."
            ))
        })?;
        message.to = e164(&message.to).ok_or_else(|| {
            bad("\"to\" is no telephone number: write + or 00, the country code and the number, 7 to \
                 15 digits, such as +491701234567.")
        })?;
        if !(1..=LONGEST_TEXT).contains(&message.text.chars().count()) {
            return Err(bad(format!("\"text\" must be 1 to {LONGEST_TEXT} characters long.")));
        }
        message.parts = parts(&message.text);
        Ok(message)
    }
}

/// Of a body that can't be read at all.
pub(crate) fn unreadable(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "unreadable-body", "The body can't be read")
        .detail(detail)
}

fn bad(detail: impl Into<String>) -> Problem {
    let title = "The body is not a message";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-message", title).detail(detail)
}

/// The country codes behind which people write a 0 that is no part of the number: `+49 (0)170`. From the
/// metadata of libphonenumber 9.0, without the countries where a number may begin with 0, as in Italy.
const TRUNK_ZERO: &str = "20 27 31 32 33 40 41 43 44 46 49 51 53 54 55 57 58 60 61 62 63 64 66 81 82 84 \
    86 90 91 92 93 94 95 98 211 212 213 218 231 232 233 234 243 249 251 252 254 255 256 260 261 262 263 \
    264 265 291 353 355 358 359 370 373 374 377 380 381 382 383 385 386 387 389 421 423 508 590 591 593 \
    594 595 596 598 686 850 855 856 880 886 961 962 963 964 966 967 970 971 972 976 977 994 995 996";

/// Reads a telephone number, and returns the one form of it that is counted and sent, that of ITU-T
/// E.164: `+`, then 7 to 15 digits. Which numbers exist is not checked.
fn e164(text: &str) -> Option<String> {
    let text = text.replace([' ', '-', '.', '/', '(', ')'], "");
    let digits = text.strip_prefix('+').or_else(|| text.strip_prefix("00"))?;
    let behind = |code: &'static str| Some((code, digits.strip_prefix(code)?.strip_prefix('0')?));
    let number = match TRUNK_ZERO.split(' ').find_map(behind) {
        Some((_, rest)) if rest.starts_with('0') => return None,
        Some((code, rest)) => format!("+{code}{rest}"),
        None => format!("+{digits}"),
    };
    let digits = &number[1..];
    let fits = (7..=15).contains(&digits.len()) && !digits.starts_with('0');
    (fits && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

/// The GSM 7 bit default alphabet (3GPP TS 23.038, 6.2.1): each character takes one septet.
const DEFAULT_ALPHABET: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡\
                                ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// Its extension table: each character takes two septets, the first of which is the escape.
const EXTENSION_TABLE: &str = "\u{c}^{}\\[~]|€";

/// Returns how many parts a text has: by septets, or in UCS2 if it has another character. In a text of
/// several parts each has a header. No character is divided between two parts.
fn parts(text: &str) -> u32 {
    let septets = |it| match (DEFAULT_ALPHABET.contains(it), EXTENSION_TABLE.contains(it)) {
        (true, _) => Some(1),
        (_, true) => Some(2),
        _ => None,
    };
    let (sizes, one, each): (Vec<usize>, _, _) = match text.chars().map(septets).collect() {
        Some(sizes) => (sizes, 160, 153),
        None => (text.chars().map(char::len_utf16).collect(), 70, 67),
    };
    if sizes.iter().sum::<usize>() <= one {
        return 1;
    }
    let (mut parts, mut used) = (1, 0);
    for size in sizes {
        used += size;
        if used > each {
            (parts, used) = (parts + 1, size);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_septets_or_units() {
        assert_eq!(DEFAULT_ALPHABET.chars().count(), 127, "and the escape");
        for (character, most) in [
            ("a", [160, 306, 459]),
            ("€", [80, 152, 228]),
            ("ç", [70, 134, 201]),
            ("😀", [35, 66, 99]),
        ] {
            for (index, most) in most.into_iter().enumerate() {
                let count = index as u32 + 1;
                assert_eq!(parts(&character.repeat(most)), count, "{most} x {character:?}");
                assert_eq!(parts(&character.repeat(most + 1)), count + 1, "{most} x {character:?}");
            }
        }
        assert_eq!(
            parts(&format!("{}á", "a".repeat(159))),
            3,
            "one character changes the alphabet"
        );
    }

    #[test]
    fn a_number_has_one_form() {
        let forms = ["+491701234567", "+4901701234567", "00491701234567", "+49 (0)170 / 123-45.67"];
        for text in forms {
            assert_eq!(e164(text).as_deref(), Some("+491701234567"), "{text}");
        }
        // The 0 is part of the number.
        for number in ["+390612345678", "+2250712345678", "+15550000001"] {
            assert_eq!(e164(number).as_deref(), Some(number));
        }
        let wrong = ["", "+", "01701234567", "+0491701234567", "++491701234567", "+49001701234567"];
        for text in wrong.into_iter().chain(["+49170a234567", "+491701", "+1234567890123456"]) {
            assert_eq!(e164(text), None, "{text:?}");
        }
    }
}
