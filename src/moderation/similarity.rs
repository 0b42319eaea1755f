//! [`similarity`]: how similar two texts are, even if the sender has disguised them.

use rapidfuzz::distance::levenshtein::{Args, BatchComparator};

use super::normalised::normalised;

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
            ("10", "100", 66), // repeated digits are another number
            ("100", "1000", 75),
            ("table 11", "table 1", 85),
            ("١١", "١", 50),
            ("10", "lo", 0), // a digit is no letter
            (plain, "b\u{301}u\u{308}y\u{336} ch\u{302}eap go\u{20dd}ld n\u{5b0}ow", 100),
            (plain, "bùÿ çhéàp gòld ñöw", 100),
            (plain, "buу сhеар gоld nоw", 100), // Cyrillic
            (plain, "βuy chεap gοld now", 100), // Greek
            ("money", "₥oney", 100),
            ("BUY MY TOKEN", "ВUУ МУ ТОКЕN", 100), // Cyrillic capitals
            ("BUZZ MEXT", "ΒUΖΖ ΜΕΧΤ", 100),       // Greek capitals
            (plain, "ʙᴜʏ ᴄʜᴇᴀᴘ ɢᴏʟᴅ ɴᴏᴡ", 100),
            (plain, "🅱🆄🆈 🅲🅷🅴🅰🅿 🅖🅞🅛🅓 🅝🅞🅦", 100),
            (plain, "⒝⒰⒴ ⒞⒣⒠⒜⒫ 🄖🄞🄛🄓 ⒩⒪⒲", 100),
            (plain, "b\u{fff9}u\u{fffc}y ch\u{ffff}eap g\u{fdd0}old n\u{1d159}ow", 100),
            ("加微信领红包", "加\u{302a}微\u{302d}信领\u{16ff0}红包", 100),
            ("싸게 팝니다", "싸\u{302e}게 팝\u{302f}니다", 100),
            ("ذهب رخيص", "ذَهَبٌ رَخِيـــص", 100), // vowels that may be left out
            ("זהב זול", "זָהָב זוֹל", 100),
            ("加微信领红包", "加\u{301}微\u{5b0}信\u{20e3}领红包", 100),
            ("かき", "がき", 50), // a mark that tells letters apart
            ("की", "कु", 50),
        ] {
            assert_eq!(similarity(one, other), percent, "{one:?} {other:?}");
        }
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
    }
}
