//! Imports between folders run one way: no layer uses a higher one.

use std::fs;

use crate::{files, root};

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

fn layer(name: &str) -> usize {
    let layer = LAYERS.iter().position(|layer| layer.contains(&name));
    layer.unwrap_or_else(|| panic!("`{name}` has no layer: give it one in LAYERS"))
}

/// Returns the code of a file without its comments, its tests and their imports.
fn product_code(text: &str) -> String {
    let text = text.split("\nmod tests {").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut is_for_tests = false;
    let is_kept = |line: &&str| {
        let was_for_tests = is_for_tests;
        is_for_tests = line.starts_with("#[cfg(") && line.contains("(test");
        !was_for_tests && !is_for_tests
    };
    lines.filter(is_kept).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_layer_uses_a_higher_one() {
    let source = root().join("src");
    let (mut wrong, mut imports) = (Vec::new(), 0);
    for path in files(&source, "rs") {
        let module = path.strip_prefix(&source).unwrap().with_extension("");
        let parts: Vec<_> = module.iter().map(|part| part.to_str().unwrap()).collect();
        if matches!(parts[0], "lib" | "docs") || parts.contains(&"tests") {
            continue;
        }
        let code = product_code(&fs::read_to_string(&path).unwrap());
        for used in code.split("crate::").skip(1) {
            let end = used.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap();
            // Some names are taken from the root of the crate.
            let used = match &used[..end] {
                "MemoryStore" | "RedisStore" => "store",
                used => used,
            };
            imports += 1;
            if used != parts[0] && layer(used) >= layer(parts[0]) {
                wrong.push(format!("{} uses {used}", module.display()));
            }
        }
    }
    assert!(imports > 200, "{imports} imports are found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
