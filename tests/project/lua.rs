//! Each Lua script begins with the header that all share, and keeps what the header says.
//!
//! ```lua
//! --[[
//!   Purpose.
//!
//!   Keys:
//!     KEYS[1] name (type): meaning
//!
//!   Arguments:
//!     ARGV[1] name (unit): meaning
//!     ARGV[2...] for each thing:
//!       name (unit): meaning
//!
//!   Reply:
//!     REPLY[1] name (unit): meaning
//!
//!   Cost: how the time grows.
//!   TTL: of each key.
//! ]]
//! local names, of, the, keys, and, arguments = ...
//! ```

use std::fs;
use std::path::PathBuf;

use crate::{files, root};

const SECTIONS: [&str; 5] = ["Keys:", "Arguments:", "Reply:", "Cost:", "TTL:"];
const TABLES: [&str; 3] = ["KEYS", "ARGV", "REPLY"];

struct Script {
    path: PathBuf,
    header: Vec<String>,
    /// The lines after the header, without comments.
    code: Vec<String>,
}

/// A line `KEYS[1] name (unit): meaning`, or `ARGV[2...] for each thing:`.
#[derive(Debug)]
struct Slot {
    /// What is between the brackets. Empty for a reply that is no array.
    index: String,
    /// None for the slots of a list.
    name: Option<String>,
}

impl Slot {
    fn number(&self) -> Option<usize> {
        self.index.parse().ok()
    }
}

fn scripts() -> Vec<Script> {
    let paths = ["lua", "crates", "examples"].map(|it| files(&root().join(it), "lua")).concat();
    assert!(paths.len() >= 11, "the scripts are found");
    paths.into_iter().map(read).collect()
}

fn read(path: PathBuf) -> Script {
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().map(String::from).collect();
    assert_eq!(lines[0], "--[[", "{path:?} begins with its header");
    let end = lines.iter().position(|line| line == "]]").expect("the header ends");
    let is_code = |line: &&String| !line.trim_start().starts_with("--");
    let code = lines[end + 1..].iter().filter(is_code).cloned().collect();
    Script { header: lines[1..end].to_vec(), code, path }
}

impl Script {
    #[track_caller]
    fn ensure(&self, holds: bool, what: &str, line: &str) {
        assert!(holds, "{}: {what}: {line}", self.path.display());
    }

    fn is_section(line: &str) -> Option<usize> {
        SECTIONS.iter().position(|title| line.starts_with(&format!("  {title}")))
    }

    /// Returns the lines of a section after its title, up to the next section.
    fn section(&self, index: usize) -> impl Iterator<Item = &str> {
        let lines = self.header.iter().map(String::as_str);
        lines
            .skip_while(move |line| Self::is_section(line) != Some(index))
            .skip(1)
            .take_while(|line| Self::is_section(line).is_none())
    }

    /// Returns what the header says of `KEYS`, `ARGV` or `REPLY`.
    fn slots(&self, table: usize) -> Vec<Slot> {
        let mut slots = Vec::new();
        let mut opens_list = false;
        // Notes may follow the first paragraph.
        for line in self.section(table).take_while(|line| !line.is_empty()) {
            let text = line.trim_start();
            let indent = line.len() - text.len();
            let is_list = text.ends_with(':') && text.contains("for each ");
            if indent == 4 {
                let (slot, rest) = text.split_once(' ').unwrap_or((text, ""));
                let index = slot.strip_prefix(TABLES[table]).unwrap_or_else(|| {
                    panic!("{}: not in {}: {line}", self.path.display(), SECTIONS[table])
                });
                let name = if is_list { None } else { field(rest) };
                self.ensure(is_list || name.is_some(), "no name, unit and meaning", line);
                let index = index.trim_matches(['[', ']']).to_owned();
                slots.push(Slot { index, name });
            } else {
                self.ensure(!TABLES.iter().any(|table| text.starts_with(table)), "indent", line);
                let is_item = is_list || field(text).is_some();
                self.ensure(is_item || !opens_list, "a list begins with a field", line);
            }
            opens_list = is_list;
        }
        self.ensure(!opens_list, "an empty list", SECTIONS[table]);
        slots
    }

    /// Returns what is between the brackets after the table's name, wherever the code has it.
    fn used(&self, table: &str) -> Vec<String> {
        let open = format!("{table}[");
        let code = self.code.join("\n");
        code.match_indices(&open).map(|(at, _)| inside(&code[at + open.len()..])).collect()
    }

    /// Returns the names that the code binds, each with its value.
    fn locals<'a>(lines: impl Iterator<Item = &'a String>) -> Vec<(String, String)> {
        let bindings = lines.filter_map(|line| line.trim_start().strip_prefix("local "));
        bindings
            .filter_map(|line| line.split_once(" = "))
            .flat_map(|(names, values)| split(names).into_iter().zip(split(values)))
            .collect()
    }
}

/// Returns the name in `name (unit): meaning`.
fn field(text: &str) -> Option<String> {
    let (name, rest) = text.split_once(" (")?;
    let (unit, meaning) = rest.split_once("): ")?;
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let complete = !name.is_empty() && !unit.is_empty() && !meaning.is_empty();
    (complete && name.bytes().all(is_word)).then(|| name.to_owned())
}

/// Returns by how many brackets the text goes deeper after a letter.
fn deeper(letter: char) -> i32 {
    match letter {
        '[' | '(' | '{' => 1,
        ']' | ')' | '}' => -1,
        _ => 0,
    }
}

/// Returns the text up to the bracket that closes it.
fn inside(text: &str) -> String {
    let mut depth = 0;
    let is_open = |letter: &char| {
        depth += deeper(*letter);
        depth >= 0
    };
    text.chars().take_while(is_open).collect()
}

/// Splits at commas that are in no bracket.
fn split(text: &str) -> Vec<String> {
    let mut depth = 0;
    let at_comma = |letter: char| {
        depth += deeper(letter);
        depth == 0 && letter == ','
    };
    text.split(at_comma).map(|part| part.trim().to_owned()).collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn header_has_every_section_in_order() {
    for script in scripts() {
        let sections: Vec<_> =
            script.header.iter().filter_map(|line| Script::is_section(line)).collect();
        assert_eq!(sections, [0, 1, 2, 3, 4], "{:?}", script.path);
        script.ensure(script.header[0].starts_with("  "), "purpose first", &script.header[0]);
        for title in &SECTIONS[3..] {
            let line = script.header.iter().find(|line| line.trim_start().starts_with(title));
            script.ensure(line.unwrap().len() > title.len() + 3, "empty section", title);
        }
        for line in &script.header {
            script.ensure(line.is_empty() || line.starts_with("  "), "indent", line);
        }
    }
}

#[test]
fn header_documents_every_slot_in_order() {
    for script in scripts() {
        for (table, name) in TABLES.iter().enumerate() {
            let slots = script.slots(table);
            assert!(!slots.is_empty(), "{:?} has {name}", script.path);
            let numbers: Vec<_> = slots.iter().map_while(Slot::number).collect();
            assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "{:?}", script.path);
            for slot in &slots[numbers.len()..] {
                let is_list = slot.name.is_none()
                    && (slot.index == "i"
                        || slot.index.trim_end_matches("...").parse::<u8>().is_ok());
                let is_reply = slots.len() == 1 && *name == "REPLY" && slot.index.is_empty();
                script.ensure(is_list || is_reply, name, &slot.index);
            }
        }
    }
}

#[test]
fn header_names_what_the_code_reads() {
    for script in scripts() {
        let top = script.code.iter().take_while(|line| line.starts_with("local "));
        let top = Script::locals(top);
        for (table, name) in TABLES[..2].iter().enumerate() {
            let slots = script.slots(table);
            let used = script.used(name);
            let lists = slots.iter().any(|slot| slot.number().is_none());
            let computes = used.iter().any(|index| !is_number(index));
            assert_eq!(lists, computes, "{:?}: {name} has a list", script.path);
            for slot in slots.iter().filter(|slot| slot.number().is_some()) {
                let access = format!("{name}[{}]", slot.index);
                let local = slot.name.as_ref().unwrap();
                let is_bound = |it: &&(String, String)| it.0 == *local && it.1.contains(&access);
                script.ensure(top.iter().any(|it| is_bound(&it)), "not bound at the top", &access);
                let uses = used.iter().filter(|index| **index == slot.index).count();
                script.ensure(uses == 1, "read once, under its name", &access);
            }
            for index in used.iter().filter(|index| is_number(index)) {
                let is_documented = slots.iter().any(|slot| slot.index == *index);
                script.ensure(is_documented, "not documented", &format!("{name}[{index}]"));
            }
        }
    }
}

#[test]
fn header_counts_the_slots_of_the_reply() {
    for script in scripts() {
        let slots = script.slots(2);
        let fixed = slots.iter().filter(|slot| slot.number().is_some()).count();
        let arrays = script.code.iter().filter_map(|line| line.trim().strip_prefix("return {"));
        for array in arrays {
            let items = split(&inside(array)).into_iter();
            // What is unpacked at the end is a list.
            let items = items.filter(|item| !item.starts_with("unpack("));
            assert_eq!(items.count(), fixed, "{:?}: {array}", script.path);
        }
    }
}

#[test]
fn every_key_is_in_keys() {
    for script in scripts() {
        let locals = Script::locals(script.code.iter());
        for line in &script.code {
            for (at, _) in line.match_indices("call('") {
                let arguments = split(&inside(&line[at + "call(".len()..]));
                let (command, keys) = arguments.split_first().unwrap();
                let keys = match command.as_str() {
                    "'TIME'" => &keys[..0],
                    "'DEL'" => keys,
                    _ => &keys[..1],
                };
                for key in keys {
                    // `logs` is a table of keys.
                    let from_keys = |it: &str| it.starts_with("KEYS[") || it.starts_with("logs[");
                    let known = from_keys(key)
                        || locals.iter().any(|(name, value)| name == key && from_keys(value));
                    script.ensure(known, "not from KEYS", line);
                }
            }
        }
    }
}

#[test]
fn code_keeps_to_the_conventions() {
    for script in scripts() {
        let code = script.code.join("\n");
        let count = |text: &str| code.matches(text).count();
        let check = |holds: bool, what: &str| script.ensure(holds, what, "");
        check(count("'TIME'") <= 1, "one clock, read once");
        check(count("tostring") == 0, "tostring loses digits of a timestamp");
        check(count("..now_us") + count(".. now_us") == 0, "loses digits of a timestamp");
        check(count("math.random") == 0, "random numbers repeat after a restart");
    }
}

#[test]
fn every_script_is_included_by_the_code() {
    for folder in ["lua", "crates", "examples"] {
        let code = if folder == "lua" { "src" } else { folder };
        let code = files(&root().join(code), "rs");
        let code = code.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<String>();
        for path in files(&root().join(folder), "lua") {
            // `src/redis/scripts.rs` names a file below `lua/`, other code the file by its own name.
            let from =
                if folder == "lua" { root().join(folder) } else { path.parent().unwrap().into() };
            let name = path.strip_prefix(&from).unwrap().display().to_string();
            assert!(code.contains(&format!("{name}\"")), "{name} is not used");
        }
    }
}
