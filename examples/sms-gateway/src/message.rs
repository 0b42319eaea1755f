//! [`Message`]: what is to be sent, read from the body of a request.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use crate::name::Name;
use crate::parts::parts;

/// A message on its way to a receiver. No error of reading one repeats what the body says.
#[derive(Deserialize)]
#[serde(from = "Written")]
pub(crate) struct Message {
    pub(crate) institution: Name,
    pub(crate) channel: Name,
    pub(crate) to: String,
    pub(crate) text: String,
    /// How many short messages the text is sent as, each of which takes a place at every level.
    pub(crate) parts: u32,
}

/// A message as the body says it.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    institution: Name,
    channel: Name,
    #[serde(deserialize_with = "number")]
    to: String,
    #[serde(deserialize_with = "text")]
    text: String,
}

impl From<Written> for Message {
    fn from(Written { institution, channel, to, text }: Written) -> Self {
        let parts = parts(&text);
        Self { institution, channel, to, text, parts }
    }
}

/// The country codes behind which people write a 0 that is no part of the number: `+49 (0)170`. From the
/// metadata of libphonenumber 9.0, without the countries where a number may begin with 0, as in Italy:
/// there the 0 stays. Other such prefixes, as Hungary's 06, are not known here.
const TRUNK_ZERO: &str = "20 27 31 32 33 40 41 43 44 46 49 51 53 54 55 57 58 60 61 62 63 64 66 81 82 84 \
    86 90 91 92 93 94 95 98 211 212 213 218 231 232 233 234 243 249 251 252 254 255 256 260 261 262 263 \
    264 265 291 353 355 358 359 370 373 374 377 380 381 382 383 385 386 387 389 421 423 508 590 591 593 \
    594 595 596 598 686 850 855 856 880 886 961 962 963 964 966 967 970 971 972 976 977 994 995 996";

/// Reads a telephone number, and returns the one form of it that is counted and sent, that of ITU-T
/// E.164: `+`, then 7 to 15 digits.
///
/// Which numbers exist is not checked: that takes the 15 MB of libphonenumber's metadata. A number that
/// does not exist counts for its destination.
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

fn number<'de, D: Deserializer<'de>>(member: D) -> Result<String, D::Error> {
    let number = Value::deserialize(member)?.as_str().and_then(e164);
    number.ok_or_else(|| {
        D::Error::custom(
            "\"to\" is no telephone number: write + or 00, the country code and the number, 7 to 15 \
             digits, such as +491701234567",
        )
    })
}

/// Reads a text of a length that handsets join.
fn text<'de, D: Deserializer<'de>>(member: D) -> Result<String, D::Error> {
    match Value::deserialize(member)? {
        Value::String(text) if (1..=1600).contains(&text.chars().count()) => Ok(text),
        _ => Err(D::Error::custom("\"text\" must be 1 to 1600 characters long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_form() {
        for text in [
            "+491701234567",
            "+4901701234567",
            "00491701234567",
            "004901701234567",
            "+49 170 1234567",
            "+49 (0)170 / 123-45.67",
        ] {
            assert_eq!(e164(text).as_deref(), Some("+491701234567"), "{text}");
        }
        // The 0 is part of the number.
        for number in ["+390612345678", "+2250712345678", "+15550000001", "+12125550000"] {
            assert_eq!(e164(number).as_deref(), Some(number));
        }
        for text in [
            "",
            "+",
            "01701234567",
            "+0491701234567",
            "++491701234567",
            "+49001701234567",
            "+000491701234567",
            "+49170a234567",
            "+49\u{661}701234567",
            "+491701",
            "+1234567890123456",
        ] {
            assert_eq!(e164(text), None, "{text:?}");
        }
    }
}
