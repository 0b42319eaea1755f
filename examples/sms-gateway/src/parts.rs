//! [`parts`]: how many short messages a text is sent as.
//!
//! The alphabets are those of 3GPP TS 23.038: the GSM 7 bit default alphabet with its extension table
//! (6.2.1), and UCS2 (6.2.3) for every text that has another character. A part has 140 octets; in a
//! text of several parts, 6 of them are the header that joins the parts (3GPP TS 23.040, 9.2.3.24.1). No
//! character is divided between two parts.

/// The GSM 7 bit default alphabet: each character takes one septet.
const DEFAULT_ALPHABET: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡\
                                ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// The extension table of that alphabet: each character takes two septets, the first is the escape.
const EXTENSION_TABLE: &str = "\u{c}^{}\\[~]|€";

/// How many septets one part holds, and each of several parts.
const SEPTETS: [usize; 2] = [160, 153];
/// How many UTF-16 units one part holds, and each of several parts.
const UNITS: [usize; 2] = [70, 67];

/// Returns how many parts a text has. A text without a character has one.
pub(crate) fn parts(text: &str) -> u32 {
    let in_septets: Option<Vec<usize>> = text.chars().map(septets).collect();
    match in_septets {
        Some(sizes) => filled(sizes.into_iter(), SEPTETS),
        None => filled(text.chars().map(char::len_utf16), UNITS),
    }
}

fn septets(character: char) -> Option<usize> {
    match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' => Some(1),
        other if DEFAULT_ALPHABET.contains(other) => Some(1),
        other if EXTENSION_TABLE.contains(other) => Some(2),
        _ => None,
    }
}

/// Returns how many parts characters of these sizes fill.
fn filled(sizes: impl Iterator<Item = usize> + Clone, [one, each]: [usize; 2]) -> u32 {
    if sizes.clone().sum::<usize>() <= one {
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
            ("@", [160, 306, 459]),
            ("Ω", [160, 306, 459]),
            ("\n", [160, 306, 459]),
            // Two septets: of the 153 of a part one stays empty.
            ("€", [80, 152, 228]),
            ("\\", [80, 152, 228]),
            // ç is not in the alphabet: only Ç is.
            ("ç", [70, 134, 201]),
            ("`", [70, 134, 201]),
            ("你", [70, 134, 201]),
            // Two units: of the 67 of a part one stays empty.
            ("😀", [35, 66, 99]),
        ] {
            for (index, most) in most.into_iter().enumerate() {
                let count = index as u32 + 1;
                assert_eq!(parts(&character.repeat(most)), count, "{most} x {character:?}");
                assert_eq!(parts(&character.repeat(most + 1)), count + 1, "{most} x {character:?}");
            }
        }
    }

    #[test]
    fn one_character_changes_the_alphabet() {
        let text = "a".repeat(160);
        assert_eq!(parts(&text), 1);
        assert_eq!(parts(&text.replacen('a', "ä", 1)), 1);
        assert_eq!(parts(&text.replacen('a', "€", 1)), 2);
        assert_eq!(parts(&text.replacen('a', "á", 1)), 3, "160 units");
        // The escape and its character stay together, as do the two halves of an emoji.
        assert_eq!(parts(&format!("{}€{}", "a".repeat(152), "a".repeat(152))), 3);
        assert_eq!(parts(&format!("{}😀{}", "你".repeat(66), "你".repeat(66))), 3);
    }
}
