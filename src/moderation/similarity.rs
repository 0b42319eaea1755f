//! [`similarity`]: how much two texts are alike, whatever their sender did to disguise it.

use rapidfuzz::distance::levenshtein::{Args, BatchComparator};
use unicode_normalization::UnicodeNormalization;

/// How many characters of a message are read.
const LONGEST_MESSAGE: usize = 10_000;
/// How many characters of a normalised text are kept and compared.
const LONGEST_TEXT: usize = 500;

/// Returns how much two messages are alike, in percent, rounded down.
///
/// That is `100 (1 - d / n)`, where both texts are [`normalised`], `d` is their Levenshtein
/// distance, the least number of characters to insert, delete or replace that makes one the other,
/// and `n` the number of characters of the longer one. Two texts without a character are alike to
/// 100 percent, and one with to one without to 0.
///
/// ```
/// use tower_sliding_window::moderation::similarity;
///
/// assert_eq!(similarity("Cheap gold at example.com!", "CHEAP  G O L D at example.com!!!"), 100);
/// assert_eq!(similarity("加微信领红包", "加薇信领红包"), 83);
/// assert_eq!(similarity("a", "abc"), 33);
/// ```
#[must_use]
pub fn similarity(one: &str, other: &str) -> u8 {
    Comparison::with(&normalised(one)).percent(&normalised(other), 0)
}

/// Returns what is compared of a message.
///
/// - Characters that look alike for compatibility's sake become one, by
///   [NFKC](https://www.unicode.org/reports/tr15/): full-width and ordinary, ligatures, circled and
///   mathematical letters.
/// - Upper and lower case become one.
/// - What can't be seen goes: whitespace, control characters, and those that Unicode client
///   [default-ignorable](https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point), such
///   as zero-width spaces and joiners.
/// - A character repeated becomes one.
/// - Of a message 10,000 characters are read, and of the result 500 are kept.
///
/// ```
/// use tower_sliding_window::moderation::normalised;
///
/// assert_eq!(normalised("Ｂ Ｕ Ｙ\u{200b} nooooow !!!"), "buynow!");
/// ```
#[must_use]
pub fn normalised(message: &str) -> String {
    let characters = message.chars().take(LONGEST_MESSAGE).nfkc();
    // By way of upper case, so that the forms which share one share the lower case too: ß, ς.
    let folded = characters.flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    let seen = folded.filter(|it| !is_unseen(*it)).nfkc();
    let mut last = None;
    seen.filter(|it| last.replace(*it) != Some(*it)).take(LONGEST_TEXT).collect()
}

fn is_unseen(character: char) -> bool {
    character.is_whitespace() || character.is_control() || is_default_ignorable(character)
}

/// The property `Default_Ignorable_Code_Point` of Unicode 16, `DerivedCoreProperties.txt`. Code
/// points yet to be assigned are in it already.
fn is_default_ignorable(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A normalised text that others are compared with.
pub(super) struct Comparison {
    comparator: BatchComparator<char>,
    length: usize,
}

impl Comparison {
    pub(super) fn with(text: &str) -> Self {
        let comparator = BatchComparator::new(text.chars());
        Self { comparator, length: text.chars().count() }
    }

    /// Returns how much a normalised text is like this one, in percent rounded down, or 0 if that
    /// is less than `least`.
    pub(super) fn percent(&self, other: &str, least: u8) -> u8 {
        let longer = self.length.max(other.chars().count());
        if longer == 0 {
            return 100;
        }
        // Whole numbers, for 90 % of ten characters is nine in any arithmetic.
        let most = longer * (100 - usize::from(least.min(100))) / 100;
        let within = Args::default().score_cutoff(most);
        let distance = self.comparator.distance_with_args(other.chars(), &within);
        let percent = distance.map_or(0, |distance| (longer - distance) * 100 / longer);
        u8::try_from(percent).unwrap_or(100)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::replace;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_any_length_have_a_similarity() {
        assert_eq!(similarity("", ""), 100);
        assert_eq!(similarity("", "a"), 0);
        assert_eq!(similarity(" \t\u{200b}\u{feff}", ""), 100, "nothing to be seen in either");
        assert_eq!(similarity("a", "a"), 100);
        assert_eq!(similarity("a", "b"), 0);
        assert_eq!(similarity("好", "好"), 100);
        assert_eq!(similarity("abcdefghij", "abcdefghix"), 90);
        assert_eq!(similarity("abcdefghi", "abcdefghx"), 88);
    }

    #[test]
    fn disguises_do_not_count() {
        let plain = "buy cheap gold now";
        for disguised in [
            "BUY CHEAP GOLD NOW",
            "b u y  c h e a p  g o l d  n o w",
            "buuuuy cheeeeap gooold nowww",
            "ｂｕｙ　ｃｈｅａｐ　ｇｏｌｄ　ｎｏｗ",
            "𝓫𝓾𝔂 𝓬𝓱𝓮𝓪𝓹 𝓰𝓸𝓵𝓭 𝓷𝓸𝔀",
            "ⓑⓤⓨ ⓒⓗⓔⓐⓟ ⓖⓞⓛⓓ ⓝⓞⓦ",
            "bu\u{200b}y ch\u{ad}eap go\u{2060}ld n\u{fe0f}ow",
            "\u{202e}buy cheap gold now\u{202c}",
        ] {
            assert_eq!(similarity(plain, disguised), 100, "{disguised}");
        }
        assert_eq!(similarity("加微信领红包", "加 微 信 领 红 包"), 100);
        assert_eq!(similarity("加微信领红包", "加微信领红包包包"), 100);
        assert_eq!(similarity("ΣΊΣΥΦΟΣ STRASSE", "σίσυφος straße"), 100);
        assert_eq!(similarity("re\u{301}sume\u{301}", "résumé"), 100, "composed or not");
        assert_eq!(similarity("👍️👍️👍️", "👍"), 100);
        assert_eq!(similarity("👨‍👩‍👧", "👨👩👧"), 100, "the joiners can't be seen");
    }

    #[test]
    fn what_differs_is_told_apart() {
        assert_eq!(similarity("加微信领红包", "今天天气很好"), 0);
        assert_eq!(similarity("😀", "😁"), 0, "they share three of four bytes");
        assert_eq!(similarity("see you at eight", "see you at nine"), 66);
    }

    #[test]
    fn the_beginning_of_a_long_message_is_compared() {
        let long: String = ('a'..='z').cycle().take(10_000).collect();
        assert_eq!(normalised(&long).chars().count(), LONGEST_TEXT);
        let ends_otherwise = format!("{}!", &long[..9_999]);
        assert_eq!(similarity(&long, &ends_otherwise), 100);
        let begins_otherwise = long.replace('a', "0");
        assert_eq!(similarity(&long, &begins_otherwise), 96);
        let huge = "e\u{301}".repeat(1_000_000);
        assert_eq!(normalised(&huge), "é");
        let marks = format!("a{}", "\u{300}\u{301}".repeat(500_000));
        assert!(normalised(&marks).chars().count() <= LONGEST_TEXT);
        assert_eq!(normalised(&" ".repeat(10_001)), "", "blank as far as it is read");
    }

    /// The textbook's table of distances.
    fn distance(one: &[char], other: &[char]) -> usize {
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (i, a) in one.iter().enumerate() {
            let mut corner = replace(&mut row[0], i + 1);
            for (j, b) in other.iter().enumerate() {
                let replaced = corner + usize::from(a != b);
                corner = row[j + 1];
                row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
            }
        }
        row[other.len()]
    }

    /// Texts of few letters, so that they are often alike, some of them long.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![3 => "[ab好😀]{0,24}", 1 => "[abcd好😀]{0,300}", 1 => "\\PC{0,12}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_rate_is_that_of_the_definition(one in text(), other in text(), least in 0..=100_u8) {
            let (one, other) = (normalised(&one), normalised(&other));
            let (a, b): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
            let longer = a.len().max(b.len());
            let expected = ((longer - distance(&a, &b)) * 100).checked_div(longer).unwrap_or(100);
            prop_assert_eq!(usize::from(Comparison::with(&one).percent(&other, 0)), expected);
            prop_assert_eq!(usize::from(Comparison::with(&other).percent(&one, 0)), expected);
            let found = Comparison::with(&one).percent(&other, least);
            prop_assert_eq!(found >= least, expected >= usize::from(least));
            if expected >= usize::from(least) {
                prop_assert_eq!(usize::from(found), expected);
            }
        }

        #[test]
        fn what_is_normalised_stays_as_it_is(text in text()) {
            let once = normalised(&text);
            prop_assert_eq!(normalised(&once), once);
        }

        #[test]
        fn inserted_spaces_and_repeats_change_nothing(text in "\\PC{0,40}", at in 0..40_usize) {
            let characters: Vec<char> = text.chars().collect();
            let at = at.min(characters.len());
            let (before, after) = characters.split_at(at);
            let spaced: String = before.iter().chain(&[' ', '\u{200b}']).chain(after).collect();
            // A mark after the space would stand on the space, and not on what was before it.
            prop_assume!(!after.first().is_some_and(|it| unicode_normalization::char::is_combining_mark(*it)));
            prop_assert_eq!(normalised(&spaced), normalised(&text));
        }
    }
}
