//! [`Fingerprint`]: what is kept of a text. [`similarity`]: how similar two texts are.

use std::sync::Arc;

use rapidhash::v3::rapidhash_v3;
use unicode_normalization::char::is_combining_mark;
use unicode_script::{Script, UnicodeScript};

use crate::normalised::normalised;

/// How many hashes are kept of a text. Those of a text of about 60 letters are all kept.
const MAX_HASHES: usize = 64;
/// How many words must be known of texts of which not all are.
const FEW_WORDS: usize = 6;
/// How many letters a number counts as.
const NUMBER: usize = 10;
/// The bit of the length that says that hashes are missing.
const CUT: u16 = 1 << 15;

/// What a hash is of, in its low two bits. The hashes of each kind are divided by its weight. So of a
/// long text, relatively more of those with a high weight are kept.
#[derive(Clone, Copy)]
enum Kind {
    /// Three letters in a row, without the spaces between them.
    Piece,
    Word,
    Number,
}

const WEIGHTS: [u32; 3] = [1, 2, 16];

/// The fingerprint of a text: its length, and hashes of its parts.
///
/// It takes at most 258 bytes, whatever the length of the text. If there are more hashes, the lowest are
/// kept. They are the same sample of what two texts have in common, so they show how large it is.
//
// The length in two bytes, and each hash in four, little-endian, the lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(Arc<[u8]>);

/// Returns the similarity of two messages in percent, rounded down.
///
/// Both are [`normalised`] first. The similarity is the higher of two:
///
/// - the cube root of the share of triples of letters that both have. If each letter of a text is
///   replaced with a probability of 10 %, then 0.9³ of the triples remain, and the similarity is 90 %.
///   Where words begin does not matter.
/// - the share of words that both have, in any order.
///
/// A share is relative to the text with more of them. A number counts as ten letters, all of which
/// differ if the number does; spaces within it change nothing. The shares are estimated if a text has
/// more than about 60 letters: the error is below five percent for nine in ten texts.
///
/// ```
/// use speech_monitor::similarity;
///
/// assert_eq!(similarity("Cheap gold at example.com!", "CHEAP  G O L D at example.com!!!"), 100);
/// assert_eq!(similarity("buy cheap gold today", "today: buy 🔥 gold, cheap"), 100);
/// assert!(similarity("buy cheap gold at example.com", "buy cheap gold at example.com x7q") >= 90);
/// assert!(similarity("Order 1001 is ready", "Order 1002 is ready") < 90);
/// ```
#[must_use]
pub fn similarity(one: &str, other: &str) -> u8 {
    Fingerprint::of(one).similarity(&Fingerprint::of(other))
}

impl Fingerprint {
    /// Makes the fingerprint of a message.
    pub(crate) fn of(message: &str) -> Self {
        Self::with_hashes(message, MAX_HASHES)
    }

    fn with_hashes(message: &str, most: usize) -> Self {
        let text = normalised(message);
        let (mut letters, mut hashes) = (Vec::new(), Vec::new());
        let mut length = 0;
        let mut add = |kind: Kind, part: &str| {
            let hash = (rapidhash_v3(part.as_bytes()) >> 34) as u32 / WEIGHTS[kind as usize];
            hashes.push(hash << 2 | kind as u32);
        };
        let words: Vec<&str> = words(&text).collect();
        // Digits with spaces between them are one number.
        for word in words.chunk_by(|one, next| is_number(one) && is_number(next)) {
            let word = &*word.concat();
            let letters_of = word.chars().map(letters_in).sum::<u16>();
            if is_number(word) {
                length += letters_of.min(NUMBER as u16);
                add(Kind::Number, word);
                continue;
            }
            length += letters_of;
            add(Kind::Word, word);
            for letter in word.chars() {
                // A letter may be repeated in the next word: g o o d.
                if letters.last() != Some(&letter) || letter.is_numeric() {
                    letters.push(letter);
                }
            }
        }
        for piece in letters.windows(letters.len().clamp(1, 3)) {
            add(Kind::Piece, &piece.iter().collect::<String>());
        }
        hashes.sort_unstable();
        hashes.dedup();
        let header = if hashes.len() > most { length | CUT } else { length }.to_le_bytes();
        hashes.truncate(most);
        Self(header.into_iter().chain(hashes.into_iter().flat_map(u32::to_le_bytes)).collect())
    }

    /// Returns the similarity of two texts in percent, see [`similarity`].
    pub(crate) fn similarity(&self, other: &Self) -> u8 {
        let known = self.known().min(other.known());
        let ours: Vec<u32> = self.hashes().take_while(|hash| *hash <= known).collect();
        let mut counts = [[0; 3]; 4];
        ours.iter().for_each(|hash| counts[*hash as usize & 3][0] += 1);
        for hash in other.hashes().take_while(|hash| *hash <= known) {
            let count = &mut counts[hash as usize & 3];
            count[1] += 1;
            count[2] += usize::from(ours.binary_search(&hash).is_ok());
        }
        // What a store has kept may be of an earlier version, which had one more kind.
        let [pieces, words, numbers, _] =
            counts.map(|[ours, theirs, common]| (ours.max(theirs), common));
        let is_whole = known == u32::MAX;
        let by_pieces = (0..=100).rev().find(|percent: &usize| {
            pieces.0 > 0 && percent.pow(3) * pieces.0 <= 1_000_000 * pieces.1
        });
        // Of a few words, all may be such as every text has.
        let by_words =
            (words.1 * 100).checked_div(words.0).filter(|_| is_whole || words.0 >= FEW_WORDS);
        // Without any letters, or if none are known because of so many numbers, the numbers decide.
        let alike = if pieces.0 == 0 && (is_whole || numbers.0 > 0) { 100 } else { 0 };
        let letters = by_pieces.max(by_words).unwrap_or(alike);
        let length = usize::from(self.length().max(other.length()));
        (length * letters + NUMBER * numbers.1 * 100)
            .checked_div(length + NUMBER * numbers.0)
            .unwrap_or(letters) as u8
    }

    /// Returns how many letters and digits the text has, as [`letters_in`] counts them.
    pub(crate) fn length(&self) -> u16 {
        self.header() & !CUT
    }

    /// Returns the fingerprint in bytes, as a store keeps it.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads a fingerprint that a store has kept, or returns `None` if the bytes are not one.
    pub(crate) fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() % 4 == 2 && bytes.len() <= 2 + 4 * MAX_HASHES).then_some(Self(bytes))
    }

    fn header(&self) -> u16 {
        self.0.first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    fn hashes(&self) -> impl Iterator<Item = u32> {
        self.0[2..].as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// Returns up to where all hashes of the text are kept.
    fn known(&self) -> u32 {
        let last = if self.header() & CUT == 0 { None } else { self.hashes().last() };
        last.unwrap_or(u32::MAX)
    }
}

/// Returns the words of a normalised text. Ideographs and other letters next to them are different
/// words, although no space is between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let is_first = is_ideograph(rest.chars().next()?);
            let end = rest.find(|it| is_ideograph(it) != is_first).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            Some(word)
        })
    })
}

/// Returns how many letters a character counts as. A word has about twice as many letters as it would have
/// Chinese characters.
fn letters_in(character: char) -> u16 {
    match character.script() {
        Script::Han => 2,
        _ => u16::from(character.is_alphanumeric() && !is_combining_mark(character)),
    }
}

fn is_number(word: &str) -> bool {
    word.chars().all(char::is_numeric)
}

/// Returns whether a character is of a script that is written without spaces.
fn is_ideograph(character: char) -> bool {
    use Script::{Bopomofo, Han, Hiragana, Katakana, Khmer, Lao, Myanmar, Thai};
    matches!(
        character.script(),
        Bopomofo | Han | Hiragana | Katakana | Khmer | Lao | Myanmar | Thai
    )
}

#[cfg(test)]
mod tests {
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
            ("see you at eight", "see you at nine", 79),
            ("10", "100", 23), // repeated digits are another number
            ("100", "1000", 28),
            ("table 11", "table 1", 41),
            ("١١", "١", 16),
            ("10", "lo", 0), // a digit is no letter
            ("call 0170 123-456 now", "call 0 1 7 0 1 2 3 4 5 6 now", 100),
            ("1 2 3", "1 2 4", 23),
            (plain, "b\u{301}u\u{308}y\u{336} ch\u{302}eap go\u{20dd}ld n\u{5b0}ow", 100),
            (plain, "bùÿ çhéàp gòld ñöw", 100),
            (plain, "buу сhеар gоld nоw", 100), // Cyrillic
            (plain, "βuy chεap gοld now", 100), // Greek
            ("money", "₥oney", 100),
            (plain, "b—uy ch―eap go↑ld n◇ow △", 100), // symbols that look like letters of other scripts
            ("BUY MY TOKEN", "ВUУ МУ ТОКЕN", 100),    // Cyrillic capitals
            ("BUZZ MEXT", "ΒUΖΖ ΜΕΧΤ", 100),          // Greek capitals
            (plain, "ʙᴜʏ ᴄʜᴇᴀᴘ ɢᴏʟᴅ ɴᴏᴡ", 100),
            (plain, "🇧 🇺 🇾 🇨\u{200b}🇭\u{200b}🇪\u{200b}🇦\u{200b}🇵 gold now", 100),
            (plain, "🅱🆄🆈 🅲🅷🅴🅰🅿 🅖🅞🅛🅓 🅝🅞🅦", 100),
            (plain, "⒝⒰⒴ ⒞⒣⒠⒜⒫ 🄖🄞🄛🄓 ⒩⒪⒲", 100),
            (plain, "b\u{fff9}u\u{fffc}y ch\u{ffff}eap g\u{fdd0}old n\u{1d159}ow", 100),
            ("加微信领红包", "加\u{302a}微\u{302d}信领\u{16ff0}红包", 100),
            ("싸게 팝니다", "싸\u{302e}게 팝\u{302f}니다", 100),
            ("ذهب رخيص", "ذَهَبٌ رَخِيـــص", 100), // vowels that may be left out
            ("זהב זול", "זָהָב זוֹל", 100),
            ("加微信领红包", "加\u{301}微\u{5b0}信\u{20e3}领红包", 100),
            ("かき", "がき", 0), // a mark that tells letters apart
            ("की", "कु", 0),
        ] {
            assert_eq!(similarity(one, other), percent, "{one:?} {other:?}");
        }
    }

    /// A text of so many letters, in words.
    fn text(letters: usize, rng: &mut fastrand::Rng) -> String {
        let letter = |at| if at % 6 == 5 { ' ' } else { rng.lowercase() };
        (0..letters * 6 / 5).map(letter).collect()
    }

    /// The mean similarity of texts in which each letter is replaced with a probability, its mean
    /// error by the sample of hashes, and the largest.
    fn measured(percent: u8, letters: usize) -> [f64; 3] {
        let mut rng = fastrand::Rng::with_seed(percent.into());
        let (mut sum, mut error, mut largest) = (0.0, 0.0, 0.0_f64);
        for _ in 0..200 {
            let one = text(letters, &mut rng);
            let replaced = |it: char| match it {
                ' ' => ' ',
                _ if rng.u8(..100) < percent => it,
                _ => rng.uppercase(),
            };
            let other: String = one.chars().map(replaced).collect();
            let estimate = f64::from(similarity(&one, &other));
            let all = |text| Fingerprint::with_hashes(text, usize::MAX);
            let exact = f64::from(all(&one).similarity(&all(&other)));
            sum += exact / 200.0;
            error += (estimate - exact).abs() / 200.0;
            largest = largest.max((estimate - exact).abs());
        }
        [sum, error, largest]
    }

    #[test]
    fn estimates_are_close() {
        for (percent, most) in [(100, 0.0), (95, 1.5), (90, 2.0), (80, 3.0), (50, 5.0)] {
            for letters in [40, 90, 140] {
                let [mean, error, largest] = measured(percent, letters);
                println!("{percent} % of {letters} letters: {mean:.1} {error:.1} {largest}");
                assert!((mean - f64::from(percent)).abs() <= 2.0, "{percent} %: {mean}");
                assert!(error <= most, "{percent} % of {letters} letters: {error}");
                assert!(largest == 0.0 || letters > 60, "all hashes of short texts are kept");
            }
        }
    }

    #[test]
    fn size_is_bounded() {
        let mut rng = fastrand::Rng::with_seed(1);
        for letters in [0, 10, 100, 1_000, 50_000] {
            let one = Fingerprint::of(&text(letters, &mut rng));
            assert!(one.as_bytes().len() <= 258);
            assert_eq!(Fingerprint::from_bytes(one.as_bytes()), Some(one.clone()));
        }
        assert_eq!(Fingerprint::from_bytes(*b"not"), None);
        assert_eq!(Fingerprint::from_bytes([0; 262]), None);
        let unknown = Fingerprint::from_bytes([7; 6]).unwrap();
        assert_eq!(unknown.similarity(&Fingerprint::of("buy gold")), 0, "of another version");
    }
}
