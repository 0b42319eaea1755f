//! [`similarity`]: how similar two texts are, even if the sender has disguised them.

use rapidfuzz::distance::levenshtein::{Args, BatchComparator};
use unicode_normalization::UnicodeNormalization;

/// How many characters of a message are read.
const MAX_READ: usize = 10_000;
/// How many characters of a normalised text are kept and compared.
const MAX_COMPARED: usize = 500;

/// Returns the similarity of two messages in percent, rounded down.
///
/// The similarity is `100 (1 - d / n)`. Both texts are [`normalised`] first. `d` is their Levenshtein
/// distance: the least number of characters to insert, delete or replace to turn one text into the
/// other. `n` is the number of characters of the longer text. Two empty texts have a similarity of 100
/// percent, and an empty and a non-empty text of 0.
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

/// Returns the form of a message that is compared.
///
/// - Compatibility characters become ordinary ones, by [NFKC](https://www.unicode.org/reports/tr15/):
///   full-width characters, ligatures, circled and mathematical letters.
/// - Upper case becomes lower case.
/// - Invisible characters are removed: whitespace, control characters, and those that Unicode calls
///   [default-ignorable](https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point), such
///   as zero-width spaces and joiners.
/// - Repetitions of a character become a single one.
/// - The first 10,000 characters of the message are read, and the first 500 of the result are kept.
///
/// ```
/// use tower_sliding_window::moderation::normalised;
///
/// assert_eq!(normalised("Ｂ Ｕ Ｙ\u{200b} nooooow !!!"), "buynow!");
/// ```
#[must_use]
pub fn normalised(message: &str) -> String {
    let characters = message.chars().take(MAX_READ).nfkc();
    // Upper case first: different lower-case forms, such as σ and ς, may share an upper-case form.
    let folded = characters.flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    let visible = folded.filter(|it| !is_invisible(*it)).nfkc();
    let mut last = None;
    visible.filter(|it| last.replace(*it) != Some(*it)).take(MAX_COMPARED).collect()
}

fn is_invisible(character: char) -> bool {
    character.is_whitespace() || character.is_control() || is_default_ignorable(character)
}

/// Returns the property `Default_Ignorable_Code_Point` of Unicode 16, `DerivedCoreProperties.txt`. It
/// includes code points that are not assigned yet.
fn is_default_ignorable(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A normalised text to compare others with.
pub(super) struct Comparison {
    comparator: BatchComparator<char>,
    length: usize,
}

impl Comparison {
    pub(super) fn with(text: &str) -> Self {
        let comparator = BatchComparator::new(text.chars());
        Self { comparator, length: text.chars().count() }
    }

    /// Returns the similarity of a normalised text to this one, in percent, rounded down; or 0 if it is
    /// less than `least`.
    pub(super) fn percent(&self, other: &str, least: u8) -> u8 {
        let longer = self.length.max(other.chars().count());
        if longer == 0 {
            return 100;
        }
        // Integers only: 90 % of ten characters must be exactly nine.
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
    fn similarity_of_examples() {
        let plain = "buy cheap gold now";
        for (one, other, percent) in [
            ("", "", 100),
            ("", "a", 0),
            (" \t\u{200b}\u{feff}", "", 100),
            ("a", "a", 100),
            ("a", "b", 0),
            ("好", "好", 100),
            ("abcdefghij", "abcdefghix", 90),
            ("abcdefghi", "abcdefghx", 88),
            (plain, "BUY CHEAP GOLD NOW", 100),
            (plain, "b u y  c h e a p  g o l d  n o w", 100),
            (plain, "buuuuy cheeeeap gooold nowww", 100),
            (plain, "ｂｕｙ　ｃｈｅａｐ　ｇｏｌｄ　ｎｏｗ", 100),
            (plain, "𝓫𝓾𝔂 𝓬𝓱𝓮𝓪𝓹 𝓰𝓸𝓵𝓭 𝓷𝓸𝔀", 100),
            (plain, "ⓑⓤⓨ ⓒⓗⓔⓐⓟ ⓖⓞⓛⓓ ⓝⓞⓦ", 100),
            (plain, "bu\u{200b}y ch\u{ad}eap go\u{2060}ld n\u{fe0f}ow", 100),
            (plain, "\u{202e}buy cheap gold now\u{202c}", 100),
            ("加微信领红包", "加 微 信 领 红 包", 100),
            ("加微信领红包", "加微信领红包包包", 100),
            ("加微信 abc123 领红包 🧧", "加微信ⓐⓑⓒ①②③领红包🧧", 100),
            ("加微信 abc123 领红包 🧧", "加 微 信 ＡＢＣ１２３ 领 红 包 🧧🧧🧧", 100),
            ("加微信 abc123 领红包 🧧", "加\u{200b}微信aBc123领红包包包 🧧\u{fe0f}", 100),
            ("ΣΊΣΥΦΟΣ STRASSE", "σίσυφος straße", 100),
            ("re\u{301}sume\u{301}", "résumé", 100), // composed or not
            ("👍️👍️👍️", "👍", 100),
            ("👨‍👩‍👧", "👨👩👧", 100), // joiners are invisible
            ("加微信领红包", "今天天气很好", 0),
            ("😀", "😁", 0), // they share three of four bytes
            ("see you at eight", "see you at nine", 66),
        ] {
            assert_eq!(similarity(one, other), percent, "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_text_is_compared() {
        let long: String = ('a'..='z').cycle().take(10_000).collect();
        assert_eq!(normalised(&long).chars().count(), MAX_COMPARED);
        let other_end = format!("{}!", &long[..9_999]);
        assert_eq!(similarity(&long, &other_end), 100);
        let other_begin = long.replace('a', "0");
        assert_eq!(similarity(&long, &other_begin), 96);
        let huge = "e\u{301}".repeat(1_000_000);
        assert_eq!(normalised(&huge), "é");
        let marks = format!("a{}", "\u{300}\u{301}".repeat(500_000));
        assert!(normalised(&marks).chars().count() <= MAX_COMPARED);
        assert_eq!(normalised(&" ".repeat(10_001)), "", "the part that is read is blank");
    }

    /// The Levenshtein distance by the textbook algorithm.
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

    /// Texts of few letters, so that they are often similar. Some are long.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![3 => "[ab好😀]{0,24}", 1 => "[abcd好😀]{0,300}", 1 => "\\PC{0,12}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn similarity_matches_its_definition(one in text(), other in text(), least in 0..=100_u8) {
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
        fn normalising_is_idempotent(text in text()) {
            let once = normalised(&text);
            prop_assert_eq!(normalised(&once), once);
        }

        #[test]
        fn inserted_spaces_and_repeats_change_nothing(text in "\\PC{0,40}", at in 0..40_usize) {
            let characters: Vec<char> = text.chars().collect();
            let at = at.min(characters.len());
            let (before, after) = characters.split_at(at);
            let spaced: String = before.iter().chain(&[' ', '\u{200b}']).chain(after).collect();
            // A combining mark after the space would combine with the space.
            prop_assume!(!after.first().is_some_and(|it| unicode_normalization::char::is_combining_mark(*it)));
            prop_assert_eq!(normalised(&spaced), normalised(&text));
        }
    }
}
