//! The README has the figures of the benchmarks, and its translation has the commands, the code and the
//! figures of the English one.

const ENGLISH: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
const CHINESE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.zh-CN.md"));

const BENCHMARKS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/BENCHMARKS.md"));

/// Returns the rows of the first table below a heading, cell by cell.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, below) = text.split_once(heading).expect(heading);
    let lines = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect()
}

/// Returns a cell of the row of a table that begins with a name.
fn cell(heading: &str, name: &str, column: usize) -> &'static str {
    table(BENCHMARKS, heading).into_iter().find(|row| row[0] == name).expect(name)[column]
}

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

#[test]
fn flood_is_that_of_the_benchmarks() {
    let rows = table(ENGLISH, "One user floods a server");
    assert!(rows.len() >= 5, "the table is found");
    for row in rows {
        let of = |column| cell("### Flood: one user", row[0], column);
        // Requests a second, p99, the server's time, and the calls.
        let expected = [1, 3, 4, 7].map(of);
        assert_eq!(row[1..], expected, "{}", row[0]);
    }
}

#[test]
fn figures_of_the_flagship_are_those_of_the_benchmarks() {
    let rows = table(ENGLISH, "The flash-sale server as its README starts it");
    let measured = ["### The flagship", "### A fleet"].map(|heading| table(BENCHMARKS, heading));
    let expected: Vec<_> =
        measured.iter().flatten().map(|row| vec![row[0], row[3], row[4]]).collect();
    assert!(expected.len() >= 8, "the tables are found");
    assert_eq!(rows, expected);
}

#[test]
fn sentences_have_the_figures_of_the_benchmarks() {
    let text = ENGLISH.split_whitespace().collect::<Vec<_>>().join(" ");
    let admit = |name, column| cell("### CPU a request, admit: bursts in turn", name, column);
    let flood = |name, column| cell("### CPU a request, flood: bursts in turn", name, column);
    let (redis, textbook) = ("ours, RedisStore", "textbook middleware (Redis)");
    let sentences = [
        format!(
            "costs the server {} of one `PING` (the textbook's {}), and Redis {} of a textbook script",
            admit(redis, 2),
            admit(textbook, 2),
            admit(redis, 6),
        ),
        format!(
            "a flood costs {} ± {} times (in process) or {} ± {} times (on Redis) a route",
            flood("ours, MemoryStore", 2),
            flood("ours, MemoryStore", 3),
            flood(redis, 2),
            flood(redis, 3),
        ),
    ];
    for sentence in sentences {
        assert!(text.contains(&sentence), "the README should say {sentence:?}");
    }
}
