//! The documentation lists the features that Cargo.toml has.

use std::collections::BTreeMap;

const MANIFEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
const CRATE_DOCS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs"));

/// Returns each feature of Cargo.toml, and whether it is on by default.
fn features() -> BTreeMap<&'static str, bool> {
    let section = MANIFEST.split("\n[features]\n").nth(1).expect("features");
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let features: BTreeMap<_, _> = lines.filter_map(|line| line.split_once(" = ")).collect();
    let default = features["default"];
    let is_default = |name: &str| default.contains(&format!("\"{name}\""));
    let names = features.keys().filter(|name| **name != "default");
    names.map(|name| (*name, is_default(name))).collect()
}

/// Returns each feature of the table in the crate's documentation, and whether it is on by default.
fn documented() -> BTreeMap<&'static str, bool> {
    let table = CRATE_DOCS.split("//! # Features\n").nth(1).expect("a section");
    let lines = table.lines().take_while(|line| !line.starts_with("//! # "));
    let rows = lines.filter_map(|line| line.strip_prefix("//! | `"));
    let cells = rows.filter_map(|row| row.split_once("` | "));
    cells.map(|(name, rest)| (name, rest.starts_with("yes "))).collect()
}

#[test]
fn crate_docs_list_every_feature() {
    assert_eq!(documented(), features());
}
