//! The README has the figures of the benchmarks, and its translation has the commands, the code and the
//! figures of the English one.

const ENGLISH: &str = include_str!("../../README.md");
const CHINESE: &str = include_str!("../../README.zh-CN.md");
const BENCHMARKS: &str = include_str!("../../BENCHMARKS.md");

/// Returns the cells of each row of all tables.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::trim).collect()).collect()
}

/// Returns the text of each fenced block.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).collect()
}

/// Returns the text outside of the blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns each text between backticks outside of the blocks, sorted: a translation may move it.
fn code(text: &str) -> Vec<String> {
    let prose = prose(text);
    let mut code: Vec<_> = prose.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    code.sort_unstable();
    code
}

/// Returns the numbers with a fraction or of several digits outside of code, sorted.
fn figures(text: &str) -> Vec<String> {
    let prose = prose(text).split('`').step_by(2).collect::<String>();
    let is_figure = |it: char| it.is_ascii_digit() || it == '.' || it == ',';
    let figures = prose.split(|it| !is_figure(it)).map(|it| it.trim_matches(['.', ',']));
    let mut figures: Vec<String> = figures.filter(|it| it.len() > 1).map(str::to_owned).collect();
    figures.sort_unstable();
    figures
}

#[test]
fn translation_has_the_same_blocks_code_and_figures() {
    assert!(blocks(ENGLISH).len() >= 4 && figures(ENGLISH).len() >= 50, "they are found");
    assert_eq!(blocks(CHINESE), blocks(ENGLISH));
    assert_eq!(code(CHINESE), code(ENGLISH));
    assert_eq!(figures(CHINESE), figures(ENGLISH));
}

#[test]
fn measured_figures_are_those_of_the_benchmarks() {
    let (_, measured) = ENGLISH.split_once("\n## Measured\n").expect("the section");
    let (measured, _) = measured.split_once("\n## ").expect("the next section");
    let benchmarks = rows(BENCHMARKS);
    let tables: Vec<_> = rows(measured).into_iter().filter(|row| !row[0].is_empty()).collect();
    assert!(tables.len() >= 11, "the tables are found");
    for row in tables {
        let is_there = |it: &Vec<_>| it[0] == row[0] && row.iter().all(|cell| it.contains(cell));
        assert!(benchmarks.iter().any(is_there), "no such row in BENCHMARKS.md: {row:?}");
    }
    let sentences = measured.lines().filter(|line| !line.starts_with('|')).collect::<Vec<_>>();
    for figure in figures(&sentences.join("\n")).iter().filter(|it| it.contains('.')) {
        let is_there = benchmarks.iter().flatten().any(|cell| cell == figure);
        assert!(is_there, "no such figure in BENCHMARKS.md: {figure}");
    }
}

#[test]
fn sales_are_those_of_the_flagship() {
    let sales = rows(include_str!("../../examples/seckill/README.md"));
    let block = blocks(ENGLISH).into_iter().find(|it| it.contains("bots' share"));
    let lines: Vec<&str> = block.expect("the sales").lines().skip(2).collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for line in lines {
        let cells = line.split("  ").map(str::trim).filter(|it| !it.is_empty());
        let [sale, addresses, stock, entries, sold, turned_away] = cells.collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let row = [sale, "one-shot", addresses, "0 %", stock, entries, sold, turned_away];
        assert!(sales.iter().any(|it| it.starts_with(&row)), "no such row: {row:?}");
    }
}
