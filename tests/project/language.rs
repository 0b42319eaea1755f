//! The project's names and texts keep to the language rules of CONTRIBUTING.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Idioms that a reader can take for a riddle. See `at_most_ten_lines_have_idioms`.
const IDIOMS: [&str; 3] = ["who", "whoever", "nobody"];
/// Ends of paths of the files that may have idioms, each with the reason.
const IDIOMS_ALLOWED: [(&str, &str); 2] =
    [("language.rs", "lists them"), ("CONTRIBUTING.md", "names them as what to avoid")];

/// Words that have a replacement in the vocabulary of CONTRIBUTING.md.
const REPLACED: [(&str, &str); 17] = [
    ("partition", "log"),
    ("question", "check"),
    ("verdict", "outcome"),
    ("answer", "outcome or reply"),
    ("answers", "outcomes or replies"),
    ("stamp", "timestamp"),
    ("stamps", "timestamps"),
    ("weight", "cost"),
    ("link", "circuit breaker"),
    ("calls", "client"),
    ("trouble", "outage"),
    ("standing", "ban record"),
    ("promises", "contract test"),
    ("agreement", "contract test"),
    ("asks", "request"),
    ("asked", "request"),
    ("told", "reply"),
];

const LONGEST_TEST_NAME: usize = 45;
const LONGEST_EXAMPLE: usize = 120;

struct File {
    path: String,
    text: String,
}

/// Returns the text files of the project: code, scripts and documentation.
fn files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "lua", "tests", "examples", "benches", "bench-peers", ".ci"] {
        collect(root, &root.join(folder), &mut files);
    }
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == Some("md".as_ref()) {
            read(root, &path, &mut files);
        }
    }
    assert!(files.len() > 100, "the files are found");
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            read(root, &path, files);
        } else if !path.ends_with("target") {
            collect(root, &path, files);
        }
    }
}

fn read(root: &Path, path: &Path, files: &mut Vec<File>) {
    if let Ok(text) = fs::read_to_string(path) {
        let path = path.strip_prefix(root).unwrap().display().to_string();
        files.push(File { path, text });
    }
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the names that the file gives to types, functions, modules and constants.
    fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        const KEYWORDS: [&str; 8] =
            ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
        let mut is_test = false;
        self.text.lines().filter_map(move |line| {
            let line = line.trim();
            if line.starts_with("#[") {
                is_test |= line.contains("test]") || line.contains("test(");
                return None;
            }
            let words = line.split(|letter: char| !is_word(letter));
            let mut words = words.skip_while(|word| !KEYWORDS.contains(word));
            let is_code = !line.starts_with("//") && words.next().is_some();
            let name = words.next().filter(|name| is_code && !name.is_empty())?;
            Some((name, std::mem::take(&mut is_test)))
        })
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Splits a name at underscores and capital letters: `RedisStore` is `redis` and `store`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_small = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && after_small) {
            words.push(String::new());
        }
        after_small = letter.is_lowercase();
        if letter != '_' {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    words
}

/// Fails if there is anything in the list.
#[track_caller]
fn expect_none(found: &BTreeSet<String>, rule: &str) {
    let list = found.iter().map(|line| format!("\n  {line}")).collect::<String>();
    assert!(found.is_empty(), "{}: {rule}:{list}", found.len());
}

#[test]
fn at_most_ten_lines_have_idioms() {
    let mut found = BTreeSet::new();
    for file in files() {
        if IDIOMS_ALLOWED.iter().any(|(path, _)| file.path.ends_with(path)) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let line = line.to_lowercase();
            if line.split(|letter| !is_word(letter)).any(|word| IDIOMS.contains(&word)) {
                found.insert(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    if found.len() > 10 {
        expect_none(&found, "lines with idioms");
    }
}

#[test]
fn test_names_are_short() {
    let mut found = BTreeSet::new();
    for file in files().iter().filter(|file| file.is_rust()) {
        let tests = file.names().filter(|(_, is_test)| *is_test);
        for (name, _) in tests.filter(|(name, _)| name.len() > LONGEST_TEST_NAME) {
            found.insert(format!("{}: {name} has {} characters", file.path, name.len()));
        }
    }
    expect_none(&found, "long names of tests");
}

#[test]
fn no_module_has_a_path_attribute() {
    let mut found = BTreeSet::new();
    for file in files() {
        let attribute = |line: &str| line.trim_start().starts_with("#[path");
        found.extend(file.text.lines().any(attribute).then(|| file.path.clone()));
    }
    expect_none(&found, "files with `#[path]`");
}

#[test]
fn examples_are_short() {
    let mut found = BTreeSet::new();
    for file in files() {
        let Some(name) = file.path.strip_prefix("examples/") else { continue };
        let lines = file.text.lines().count();
        if name.ends_with(".rs") && !name.contains('/') && lines > LONGEST_EXAMPLE {
            found.insert(format!("{}: {lines} lines", file.path));
        }
    }
    expect_none(&found, "long examples");
}

#[test]
fn names_use_the_vocabulary() {
    let mut found = BTreeSet::new();
    for file in files().iter().filter(|file| file.is_rust()) {
        let stem = Path::new(&file.path).file_stem().unwrap().to_str().unwrap();
        for name in file.names().map(|(name, _)| name).chain([stem]) {
            let words = words(name);
            for (word, better) in
                REPLACED.iter().filter(|(word, _)| words.contains(&(*word).into()))
            {
                found.insert(format!("{}: {name}: not {word}, but {better}", file.path));
            }
        }
    }
    expect_none(&found, "names that the vocabulary replaces");
}

#[test]
fn names_are_read_from_code() {
    let text =
        "#[tokio::test(start_paused = true)]\nasync fn waits() {}\npub(crate) struct RedisStore;";
    let file = File { path: "a.rs".into(), text: text.into() };
    assert_eq!(file.names().collect::<Vec<_>>(), [("waits", true), ("RedisStore", false)]);
    assert_eq!(words("RedisStore"), ["redis", "store"]);
    assert_eq!(words("lost_reply"), ["lost", "reply"]);
}
