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
    /// Returns the number, none for a list, and the name of each line of the header such as `KEYS[1] log (ZSET): ...` or
    /// `ARGV[2...] for each quota:`.
    fn documented(&self, table: &str) -> Vec<(Option<usize>, &str)> {
        let begin = format!("    {table}[");
        let slots = self.header.lines().filter_map(|line| line.strip_prefix(&begin));
        let slots = slots.filter_map(|slot| slot.split_once("] "));
        let name = |text| str::split(text, " (").next().unwrap();
        slots.map(|(index, text)| (index.parse().ok(), name(text))).collect()
    }

    /// Returns the numbers with which the code reads a table, none for one that it computes.
    fn read(&self, table: &str) -> BTreeSet<Option<usize>> {
        let begin = format!("{table}[");
        let reads = self.code.split(&begin).skip(1).map(|it| it.split(']').next().unwrap());
        reads.map(|index| index.parse().ok()).collect()
    }

    /// Returns the names that the code binds, each with its value.
    fn locals(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.code.lines().filter_map(|line| line.trim_start().strip_prefix("local "));
        let bindings = lines.filter_map(|line| line.split_once(" = "));
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
            let numbers: BTreeSet<_> = slots.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, script.read(table), "{:?}: {table}", script.path);
            for (number, name) in slots.iter().filter_map(|(number, name)| Some(((*number)?, name)))
            {
                let access = format!("{table}[{number}]");
                let bound = script.locals().find(|(_, value)| value.contains(&access));
                let is_named = bound.is_none_or(|(local, _)| local == *name);
                assert!(is_named, "{:?}: {access}", script.path);
            }
        }
    }
}

#[test]
fn header_counts_what_the_script_returns() {
    for script in scripts() {
        let slots = script.documented("REPLY");
        let expected = slots.iter().filter(|(number, _)| number.is_some()).count();
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
