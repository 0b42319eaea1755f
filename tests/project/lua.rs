//! Each Lua script begins with a header like that of `lua/ban/ban.lua`: purpose, keys, arguments, reply, cost,
//! TTL. What the header says of the keys, the arguments and the reply is true.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::{files, root};

const SECTIONS: [&str; 5] = ["Keys:", "Arguments:", "Reply:", "Cost:", "TTL:"];

struct Script {
    path: PathBuf,
    header: String,
    /// Without comments.
    code: String,
}

/// A line of the header such as `KEYS[1] log (ZSET): ...`, or `ARGV[2...] for each quota:`.
struct Slot<'a> {
    /// None for a list.
    number: Option<usize>,
    name: &'a str,
}

fn scripts() -> Vec<Script> {
    let folders = ["lua", "crates", "examples"];
    let paths = folders.map(|folder| files(&root().join(folder), "lua")).concat();
    assert!(paths.len() >= 10, "the scripts are found");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let parts = text.strip_prefix("--[[\n").and_then(|it| it.split_once("\n]]\n"));
        let (header, code) = parts.unwrap_or_else(|| panic!("{path:?} has no header"));
        let code: Vec<_> = code.lines().filter(|it| !it.trim_start().starts_with("--")).collect();
        Script { header: header.to_owned(), code: code.join("\n"), path }
    };
    paths.into_iter().map(read).collect()
}

impl Script {
    fn documented(&self, table: &str) -> Vec<Slot<'_>> {
        let begin = format!("    {table}[");
        let slots = self.header.lines().filter_map(|line| line.strip_prefix(&begin));
        let slots = slots.filter_map(|slot| slot.split_once("] "));
        slots
            .map(|(index, text)| Slot {
                number: index.parse().ok(),
                name: text.split(" (").next().unwrap(),
            })
            .collect()
    }

    /// Returns the numbers with which the code reads a table, and whether it computes others.
    fn read(&self, table: &str) -> (BTreeSet<usize>, bool) {
        let begin = format!("{table}[");
        let reads = self.code.split(&begin).skip(1).map(|it| it.split(']').next().unwrap());
        let indices: Vec<_> = reads.map(|index| index.parse().ok()).collect();
        (indices.iter().copied().flatten().collect(), indices.contains(&None))
    }

    /// Returns the names that the code binds, each with its value.
    fn locals(&self) -> impl Iterator<Item = (&str, &str)> {
        let bindings =
            self.code.lines().filter_map(|line| line.trim_start().strip_prefix("local "));
        let bindings = bindings.filter_map(|line| line.split_once(" = "));
        bindings.flat_map(|(names, values)| names.split(", ").zip(values.split(", ")))
    }
}

#[test]
fn header_has_every_section_in_order() {
    for script in scripts() {
        let mut rest = script.header.as_str();
        for title in SECTIONS {
            let section = rest.split_once(&format!("  {title}"));
            let (before, after) = section.unwrap_or_else(|| panic!("{:?}: {title}", script.path));
            assert!(!before.trim().is_empty(), "{:?}: nothing before {title}", script.path);
            rest = after;
        }
        assert!(!rest.trim().is_empty(), "{:?}: nothing about the TTL", script.path);
    }
}

#[test]
fn header_names_what_the_code_reads() {
    for script in scripts() {
        for table in ["KEYS", "ARGV"] {
            let slots = script.documented(table);
            let (read, computes) = script.read(table);
            let numbers: BTreeSet<usize> = slots.iter().filter_map(|slot| slot.number).collect();
            assert_eq!(numbers, read, "{:?}: {table}", script.path);
            let has_list = slots.iter().any(|slot| slot.number.is_none());
            assert_eq!(has_list, computes, "{:?}: {table} has a list", script.path);
            for (number, name) in slots.iter().filter_map(|slot| Some((slot.number?, slot.name))) {
                let access = format!("{table}[{number}]");
                let bound = script.locals().find(|(_, value)| value.contains(&access));
                let is_named = bound.is_none_or(|(local, _)| local == name);
                assert!(is_named, "{:?}: {access}", script.path);
            }
        }
    }
}

#[test]
fn header_counts_what_the_script_returns() {
    for script in scripts() {
        let slots = script.documented("REPLY");
        let expected = slots.iter().filter(|slot| slot.number.is_some()).count();
        let arrays = script.code.lines().filter_map(|line| line.trim().strip_prefix("return {"));
        for array in arrays {
            // What is unpacked at the end is a list.
            let items = array.split(", ").filter(|item| !item.starts_with("unpack("));
            assert_eq!(items.count(), expected, "{:?}: {array}", script.path);
        }
    }
}

#[test]
fn a_script_reads_the_clock_once() {
    for script in scripts() {
        assert!(script.code.matches("'TIME'").count() <= 1, "{:?}", script.path);
    }
}
