//! Imports between folders run one way: no layer uses a higher one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Item, ItemUse, UseTree, Visibility};

use crate::root;

/// The folders and files of `src`, each of which may use those of an earlier row.
const LAYERS: &[&[&str]] = &[
    &["time", "telemetry", "quota", "failure"],
    &["error"],
    &["key", "policy"],
    &["window"],
    &["redis"],
    &["store", "offenders"],
    &["waiting"],
    &["limiter", "bans", "http", "overrides"],
    &["text_form"],
];

/// A source file by its module path, such as `store::memory`, with what it imports.
struct File {
    imports: Vec<Vec<String>>,
    /// The names that the file re-exports, each with the full path that it takes them from.
    re_exports: BTreeMap<String, Vec<String>>,
}

type Files = BTreeMap<String, File>;

fn files() -> Files {
    let source = root().join("src");
    let mut files = Files::new();
    for path in crate::files(&source, "rs") {
        let module = path.strip_prefix(&source).unwrap().with_extension("");
        let module: Vec<String> = module.iter().map(|it| it.to_str().unwrap().to_owned()).collect();
        if !matches!(module.last().unwrap().as_str(), "lib" | "tests") {
            files.insert(module.join("::"), parse(&path, &module));
        }
    }
    assert!(files.len() > 80, "the files are found");
    files
}

fn parse(path: &Path, module: &[String]) -> File {
    let syntax = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap();
    let mut file = File { imports: Vec::new(), re_exports: BTreeMap::new() };
    for item in &syntax.items {
        let Item::Use(item) = item else { continue };
        if is_for_tests(item) {
            continue;
        }
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        for path in paths.iter().filter_map(|path| absolute(path, module)) {
            if matches!(item.vis, Visibility::Inherited) {
                file.imports.push(path);
            } else {
                file.re_exports.insert(path.last().unwrap().clone(), path);
            }
        }
    }
    file
}

fn is_for_tests(item: &ItemUse) -> bool {
    item.attrs.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            let tokens = list.tokens.to_string();
            list.path.is_ident("cfg") && tokens.contains("test") && !tokens.contains("not (test)")
        }
        _ => false,
    })
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, paths);
            before.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|item| flatten(item, before, paths));
        }
        UseTree::Name(name) if name.ident == "self" => paths.push(before.clone()),
        UseTree::Name(name) => paths.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => paths.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => paths.push(before.clone()),
    }
}

/// Returns a path from the crate's root, or none if it leads into another crate.
fn absolute(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([&module[..module.len() - ups], &path[ups..]].concat()),
        _ => None,
    }
}

/// Returns the file that defines what a path names, through all re-exports.
fn defined_in(path: &[String], files: &Files) -> Option<String> {
    let depth =
        (1..=path.len()).rev().find(|depth| files.contains_key(&path[..*depth].join("::")))?;
    let module = path[..depth].join("::");
    match path.get(depth).and_then(|name| files[&module].re_exports.get(name)) {
        Some(further) => defined_in(further, files),
        None => Some(module),
    }
}

/// Returns the files that each file uses.
fn uses(files: &Files) -> BTreeMap<String, BTreeSet<String>> {
    let used = |name: &String, file: &File| {
        let used = file.imports.iter().filter_map(|path| defined_in(path, files));
        used.filter(|used| used != name).collect()
    };
    files.iter().map(|(name, file)| (name.clone(), used(name, file))).collect()
}

fn layer(module: &str) -> usize {
    let top = module.split("::").next().unwrap();
    let layer = LAYERS.iter().position(|layer| layer.contains(&top));
    layer.unwrap_or_else(|| panic!("`{top}` has no layer: give it one in LAYERS"))
}

#[test]
fn no_layer_uses_a_higher_one() {
    let mut wrong = Vec::new();
    for (name, used) in uses(&files()) {
        for used in used {
            let same = name.split("::").next() == used.split("::").next();
            if !same && layer(&used) >= layer(&name) {
                wrong.push(format!("{name} uses {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn telemetry_takes_names_and_numbers_only() {
    let files = files();
    assert!(files["telemetry"].imports.is_empty(), "{:?}", files["telemetry"].imports);
}

#[test]
fn stores_name_no_feature_above_them() {
    // Also in paths within the code, which are no imports.
    let below = ["src/store", "src/redis", "src/window"].map(|it| root().join(it));
    for path in crate::files(&root().join("src"), "rs") {
        if !below.iter().any(|it| path.starts_with(it) || path == it.with_extension("rs")) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for above in LAYERS.last().unwrap().iter() {
                assert!(!line.contains(&format!("crate::{above}::")), "{path:?}: {line}");
            }
        }
    }
}
