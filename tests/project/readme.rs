//! The translated README has the commands, the code and the figures of the English one.

const ENGLISH: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
const CHINESE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.zh-CN.md"));

/// Returns the text of each fenced block.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).collect()
}

/// Returns each text between backticks outside of the blocks, sorted: a translation may move it.
fn code(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let mut code: Vec<&str> = prose.flat_map(|prose| prose.split('`').skip(1).step_by(2)).collect();
    code.sort_unstable();
    code
}

/// Returns the numbers with a fraction or of several digits outside of code, sorted.
fn figures(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let prose = prose.split('`').step_by(2).collect::<String>();
    let is_figure = |it: char| it.is_ascii_digit() || it == '.' || it == ',';
    let figures = prose.split(|it| !is_figure(it)).map(|it| it.trim_matches(['.', ',']));
    let mut figures: Vec<String> = figures.filter(|it| it.len() > 1).map(str::to_owned).collect();
    figures.sort_unstable();
    figures
}

#[test]
fn translation_has_the_same_blocks() {
    assert!(blocks(ENGLISH).len() >= 4);
    assert_eq!(blocks(CHINESE), blocks(ENGLISH));
}

#[test]
fn translation_has_the_same_code() {
    assert_eq!(code(CHINESE), code(ENGLISH));
}

#[test]
fn translation_has_the_same_figures() {
    assert!(figures(ENGLISH).len() >= 50, "the tables are found");
    assert_eq!(figures(CHINESE), figures(ENGLISH));
}
