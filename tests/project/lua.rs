//! Each script keeps to the header it begins with, and to the conventions of all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

struct Script {
    name: String,
    header: Vec<String>,
    body: String,
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn scripts() -> Vec<Script> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["lua", "examples"].iter().flat_map(|folder| files(&root.join(folder)));
    let lua = files.filter(|path| path.extension() == Some("lua".as_ref()));
    let scripts: Vec<_> = lua
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let header = text.lines().map_while(|line| line.strip_prefix("-- ")).map(String::from);
            let body = text.lines().filter(|line| !line.trim_start().starts_with("--"));
            Script {
                name: path.file_name().unwrap().to_string_lossy().into_owned(),
                header: header.collect(),
                body: body.collect::<Vec<_>>().join("\n"),
            }
        })
        .collect();
    assert!(scripts.len() >= 2, "the scripts are found");
    scripts
}

/// The indices in `NAME[...]`, digits only; anything else is an index that is computed.
fn indices<'a>(text: &'a str, name: &str) -> BTreeSet<&'a str> {
    let opening = format!("{name}[");
    text.match_indices(&opening)
        .map(|(at, _)| text[at + opening.len()..].split(']').next().unwrap_or_default())
        .collect()
}

#[test]
fn headers_have_every_part_once_and_in_order() {
    for script in scripts() {
        let parts: Vec<_> = script
            .header
            .iter()
            .map(|line| {
                line.split_once(": ").unwrap_or_else(|| panic!("{}: {line}", script.name)).0
            })
            .map(|part| part.split('[').next().unwrap())
            .collect();
        let mut order = parts.clone();
        order.dedup();
        assert_eq!(order, ["Purpose", "KEYS", "ARGV", "Reply", "Cost", "TTL"], "{}", script.name);
    }
}

#[test]
fn headers_name_exactly_the_arguments() {
    for script in scripts() {
        for name in ["KEYS", "ARGV"] {
            let lines = script.header.iter().filter(|line| line.starts_with(name));
            let documented: BTreeSet<_> = lines.flat_map(|line| indices(line, name)).collect();
            let read = indices(&script.body, name);
            let digits = |index: &&str| index.bytes().all(|byte| byte.is_ascii_digit());
            let listed =
                documented.contains("i") || documented.iter().any(|it| it.ends_with("..."));
            let computed = read.iter().any(|index| !digits(index));
            assert_eq!(listed, computed, "{} {name}: a list is documented as one", script.name);
            let documented: BTreeSet<_> = documented.into_iter().filter(digits).collect();
            let read: BTreeSet<_> = read.into_iter().filter(digits).collect();
            assert_eq!(documented, read, "{} {name}", script.name);
        }
    }
}

#[test]
fn scripts_keep_to_the_conventions() {
    for script in scripts() {
        let count = |text: &str| script.body.matches(text).count();
        assert!(count("'TIME'") <= 1, "{}: one clock, read once", script.name);
        assert_eq!(count("tostring"), 0, "{}: tostring loses digits of a timestamp", script.name);
        assert_eq!(count("math.random"), 0, "{}: repeats itself after a restart", script.name);
        assert_eq!(count("..now_us") + count(".. now_us"), 0, "{}: loses digits", script.name);
    }
}
