//! [`normalised`]: a text without what a sender adds to disguise it.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;
use unicode_script::{Script, ScriptExtension, UnicodeScript};
use unicode_security::confusable_detection::skeleton;

/// How many visible characters are read at each end of a message.
const MAX_READ: usize = 250;
/// How many characters these may become. Some are short for many.
const MAX_EXPANDED: usize = 300;
/// How many combining marks in a row are read. More of them are costly to sort, and no letter has as
/// many.
const MAX_MARKS: usize = 10;
/// How many characters are kept of each end of a normalised text.
const MAX_KEPT: usize = 150;
/// How many characters of a normalised text are kept and compared.
pub(crate) const MAX_COMPARED: usize = 2 * MAX_KEPT;

/// Returns the form of a message that is compared: its words, with a space between them.
///
/// - Compatibility characters become ordinary ones, by [NFKC](https://www.unicode.org/reports/tr15/):
///   full-width characters, ligatures, circled and mathematical letters.
/// - Upper case becomes lower case.
/// - Letters that look like others become these, by the skeleton of
///   [UTS 39](https://www.unicode.org/reports/tr39/#Confusable_Detection): Cyrillic `а` becomes `a`. The
///   characters of ASCII, and digits of any script, stay as they are: `10` is not `lo`. So do symbols that do not
///   look like letters of ASCII: `—` is no letter.
/// - Small capitals and letters in black, of flags or in parentheses become ordinary ones.
/// - Combining marks are removed, except for those that belong to the script of their letter, such as
///   the vowels of Devanagari. The letters of Latin, Greek, Cyrillic, Arabic, Hebrew and Syriac lose all
///   of them, and any letter loses the tone marks of Han and Hangul.
/// - Invisible characters are removed: control characters, noncharacters, and those that Unicode calls
///   [default-ignorable](https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point), such
///   as zero-width spaces and joiners. So are the characters that only stretch a word of Arabic.
/// - Punctuation, emoji and other symbols are removed, unless there is nothing else.
/// - Repetitions of a character become a single one. Digits are kept: `100` is not `10`.
/// - The first and the last 250 visible characters of the message are read, and the first and the last
///   150 of the result are kept. So the work does not grow with the message, except to skip what is
///   invisible.
///
/// ```
/// use speech_monitor::normalised;
///
/// assert_eq!(normalised("Ｂ Ｕ Ｙ\u{200b} nooooow !!!"), "b u y now");
/// assert_eq!(normalised("\u{441}he\u{430}p g\u{f6}ld: 1000"), "cheap gold 1000");
/// ```
#[must_use]
pub fn normalised(message: &str) -> String {
    let (head, tail) = expanded(message);
    let mut text: Vec<char> = plain(head).chain(plain(tail)).collect();
    if text.iter().any(|it| it.is_alphanumeric()) {
        let mut keeps = false;
        text.retain(|&it| {
            // A mark goes with what it stands on.
            keeps = if is_combining_mark(it) { keeps } else { it == ' ' || it.is_alphanumeric() };
            keeps
        });
    }
    let is_repeated = |a: &mut char, b: &mut char| a == b && !a.is_numeric();
    text.dedup_by(is_repeated);
    if text.len() > MAX_COMPARED {
        text.drain(MAX_KEPT..text.len() - MAX_KEPT);
        text.dedup_by(is_repeated);
    }
    text.iter().collect::<String>().trim_matches(' ').to_owned()
}

/// Returns the beginning and the end of a message, with ordinary characters for compatibility
/// characters. If the message is short, the two are all of it.
fn expanded(message: &str) -> (Vec<char>, Vec<char>) {
    let mut rest = message.chars();
    let head: Vec<char> = visible(rest.by_ref()).take(MAX_READ).collect();
    let mut tail: Vec<char> = visible(rest.rev()).take(MAX_READ).collect();
    tail.reverse();
    let head = head.into_iter().nfkc().take(MAX_EXPANDED).collect();
    let mut tail: Vec<char> = tail.into_iter().nfkc().collect();
    tail.drain(..tail.len().saturating_sub(MAX_EXPANDED));
    (head, tail)
}

/// Returns the characters that are not invisible, with one space for each run of whitespace.
fn visible(characters: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    let (mut marks, mut was_space) = (0, false);
    characters.map(plain_letter).filter_map(move |it| {
        marks = if is_combining_mark(it) { marks + 1 } else { 0 };
        if it.is_whitespace() {
            return (!std::mem::replace(&mut was_space, true)).then_some(' ');
        }
        let is_read = marks <= MAX_MARKS && !is_invisible(it);
        was_space &= !is_read;
        is_read.then_some(it)
    })
}

/// Returns plain letters for what looks like them.
fn plain(expanded: Vec<char>) -> impl Iterator<Item = char> {
    let visible = expanded.into_iter().flat_map(lower_case).filter(|it| !is_invisible(*it));
    // Twice, because the lower-case form of a look-alike may look like another letter.
    let letters =
        visible.nfd().flat_map(look_alike).flat_map(look_alike).nfd().take(2 * MAX_EXPANDED);
    let mut base = None;
    let plain = letters.filter(move |it| {
        if is_combining_mark(*it) {
            return base.is_some_and(|base| belongs_to(*it, base));
        }
        base = Some(*it);
        !is_invisible(*it)
    });
    plain.nfkc()
}

/// Returns a character in lower case.
fn lower_case(character: char) -> impl Iterator<Item = char> {
    // Upper case first: different lower-case forms, such as σ and ς, may share an upper-case form.
    character.to_uppercase().flat_map(char::to_lowercase).map(plain_letter)
}

/// Returns the ordinary letter for a small capital, or for one in black, of a flag or in parentheses. NFKC
/// and the skeleton keep the first three, and the skeleton has a small capital for some Cyrillic letters.
#[rustfmt::skip]
fn plain_letter(character: char) -> char {
    let nth = |first: char| char::from(b'a' + (character as u32 - first as u32) as u8);
    match character {
        '\u{249c}'..='\u{24b5}' => nth('\u{249c}'),
        '\u{1f110}'..='\u{1f129}' => nth('\u{1f110}'),
        '\u{1f150}'..='\u{1f169}' => nth('\u{1f150}'),
        '\u{1f170}'..='\u{1f189}' => nth('\u{1f170}'),
        '\u{1f1e6}'..='\u{1f1ff}' => nth('\u{1f1e6}'),
        'ĸ' => 'k',
        'ʍ' => 'm',
        // Their capitals look like these.
        'β' => 'b',
        'ε' => 'e',
        'ζ' => 'z',
        'μ' => 'm',
        'χ' => 'x',
        'ᴀ' => 'a', 'ʙ' => 'b', 'ᴄ' => 'c', 'ᴅ' => 'd', 'ᴇ' => 'e', 'ꜰ' => 'f',
        'ɢ' => 'g', 'ʜ' => 'h', 'ɪ' => 'i', 'ᴊ' => 'j', 'ᴋ' => 'k', 'ʟ' => 'l',
        'ᴍ' => 'm', 'ɴ' => 'n', 'ᴏ' => 'o', 'ᴘ' => 'p', 'ʀ' => 'r', 'ꜱ' => 's',
        'ᴛ' => 't', 'ᴜ' => 'u', 'ᴠ' => 'v', 'ᴡ' => 'w', 'ʏ' => 'y', 'ᴢ' => 'z',
        _ => character,
    }
}

/// Returns the letters that a character looks like, in lower case.
fn look_alike(character: char) -> Vec<char> {
    // A mark that looks like one of another script would no longer belong to its letter.
    if character.is_ascii() || character.is_numeric() || is_combining_mark(character) {
        return vec![character];
    }
    let mut bytes = [0; 4];
    let skeleton = skeleton(character.encode_utf8(&mut bytes));
    let mut letters: Vec<char> = skeleton.flat_map(lower_case).collect();
    // A dash looks like a letter of Katakana, and an arrow like a rune.
    let is_plain = |it: &char| it.is_ascii() || is_combining_mark(*it);
    if !character.is_alphanumeric() && !letters.iter().all(is_plain) {
        return vec![character];
    }
    // The skeleton of m and all that looks like it.
    if letters.starts_with(&['r', 'n']) {
        letters.splice(..2, ['m']);
    }
    letters
}

/// Returns whether a combining mark belongs to the script of the letter before it.
fn belongs_to(mark: char, base: char) -> bool {
    let script = base.script();
    let is_alphabet = matches!(script, Script::Latin | Script::Greek | Script::Cyrillic);
    // Their marks are vowels that a writer may leave out.
    let is_abjad = matches!(script, Script::Arabic | Script::Hebrew | Script::Syriac);
    let is_any = matches!(script, Script::Common | Script::Inherited | Script::Unknown);
    let scripts: ScriptExtension = mark.script_extension();
    !is_alphabet
        && !is_abjad
        && !is_any
        && !scripts.is_inherited()
        && scripts.contains_script(script)
}

/// Returns whether a character is shown as nothing. The spaces between words are not counted.
fn is_invisible(character: char) -> bool {
    character.is_whitespace() && character != ' '
        || character.is_control()
        || is_default_ignorable(character)
        || is_filler(character)
}

/// Returns whether a character is shown as nothing, or changes no reading, although Unicode does not
/// call it ignorable.
fn is_filler(character: char) -> bool {
    // The last two code points of each plane are noncharacters.
    character as u32 & 0xfffe == 0xfffe
        || matches!(character,
            '\u{640}' | '\u{70f}' | '\u{7fa}' | '\u{302a}'..='\u{302f}' | '\u{fdd0}'..='\u{fdef}'
            | '\u{fff9}'..='\u{fffc}' | '\u{13430}'..='\u{1343f}' | '\u{16ff0}'..='\u{16ff1}'
            | '\u{1d159}')
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fingerprint::{Fingerprint, similarity};

    #[test]
    fn both_ends_of_a_text_are_compared() {
        let long: String = ('a'..='z').cycle().take(10_000).collect();
        assert_eq!(normalised(&long).chars().count(), MAX_COMPARED);
        let (head, tail) = (&long[..150], &long[9_850..]);
        for middle in ["", " 1 ", &long[..600], "\u{200b}"] {
            assert_eq!(
                normalised(&format!("{head}{middle}{tail}")),
                format!("{head}{tail}").replace("\u{200b}", "")
            );
        }
        let huge = "e\u{301}".repeat(1_000_000);
        assert_eq!(normalised(&huge), "e");
        let marks = format!("a{}", "\u{300}\u{301}".repeat(500_000));
        assert_eq!(normalised(&marks), "a");
        let own_marks = format!("क{}", "\u{93f}\u{941}".repeat(500_000));
        assert!(normalised(&own_marks).chars().count() <= 1 + 2 * MAX_MARKS);
        let blank = "\u{200b} ".repeat(10_001);
        assert_eq!(normalised(&format!("{blank}spam{blank}")), "spam", "blanks hide nothing");
    }

    /// Some characters are short for many: each of these is four integral signs, and each of the others
    /// a sentence of 18.
    #[test]
    fn work_is_bounded_after_expansion() {
        for (character, times) in [('\u{2a0c}', 10_000), ('\u{fdfa}', 10_000), ('ﬃ', 10_000)] {
            let message = character.to_string().repeat(times);
            let (head, tail) = expanded(&message);
            assert!(head.len() + tail.len() <= 2 * MAX_EXPANDED, "{character}");
            let letters = plain(head).count() + plain(tail).count();
            assert!(letters <= 4 * MAX_EXPANDED, "{character}: {letters}");
            let spam = normalised(&format!("{message} buy gold"));
            assert!(spam.ends_with("buy gold"), "{spam}");
        }
    }

    #[test]
    fn every_character_has_a_stable_form() {
        let mut unstable = Vec::new();
        // The planes between these have no characters yet, and the last two are for private use.
        for character in ('\0'..='\u{3ffff}').chain('\u{dffff}'..='\u{effff}') {
            let text = character.to_string();
            let once = normalised(&text);
            if once != text && normalised(&once) != once {
                unstable.push((character, normalised(&once), once));
            }
        }
        assert!(unstable.is_empty(), "{}: {unstable:?}", unstable.len());
    }

    #[test]
    fn letters_of_other_scripts_stay_apart() {
        for text in ["하나", "हिन्दी", "ไทย", "עִבְרִית", "العربية", "ひらがな", "中文123", "ガ"]
        {
            assert_ne!(normalised(text), "", "{text}");
            assert_eq!(similarity(text, "english"), 0, "{text}");
        }
        assert_eq!(normalised("हिन्दी"), "हिन्दी", "its vowels are kept");
        assert_eq!(normalised("\u{1d800}\u{1daa1}A"), "a", "a mark goes with its symbol");
        assert!(similarity("がき", "かき") < 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn normalising_is_idempotent(
            text in prop_oneof!["[ab好😀]{0,24}", "[abcd好😀]{0,300}", "\\PC{0,12}"],
        ) {
            let once = normalised(&text);
            prop_assert_eq!(normalised(&once), once);
        }

        #[test]
        fn inserted_spaces_change_no_letters(text in "\\PC{0,40}", at in 0..40_usize) {
            let characters: Vec<char> = text.chars().collect();
            let at = at.min(characters.len());
            let (before, after) = characters.split_at(at);
            let spaced: String = before.iter().chain(&[' ', '\u{200b}']).chain(after).collect();
            // A combining mark after the space would combine with the space.
            prop_assume!(!after.first().is_some_and(|it| is_combining_mark(*it)));
            let letters = |text: &str| Fingerprint::of(&normalised(text).replace(' ', ""));
            prop_assert_eq!(letters(&spaced), letters(&text));
        }
    }
}
