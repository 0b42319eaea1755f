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

const FIVE_ADMISSIONS: &str = "MemoryStore, bytes a key beside the key's own, after 5 admissions";

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
fn sentences_have_the_figures_of_the_benchmarks() {
    let text = ENGLISH.split_whitespace().collect::<Vec<_>>().join(" ");
    let admit = |name, column| cell("### CPU a request, admit: bursts in turn", name, column);
    let flood = |name, column| cell("### CPU a request, flood: bursts in turn", name, column);
    let (redis, textbook) = ("ours, RedisStore", "textbook middleware (Redis)");
    let micro = table(BENCHMARKS, "### A check in process, in nanoseconds");
    let ratios = micro.iter().flat_map(|row| [row[2], row[5]]).map(|cell| cell.parse().unwrap());
    let (least, most) = ratios
        .fold((f64::MAX, 0_f64), |(least, most), ratio: f64| (least.min(ratio), most.max(ratio)));
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
        format!(
            "That is {} µs and {} µs a request",
            flood("ours, MemoryStore", 4),
            flood(redis, 4),
        ),
        format!("looks into a map adds {} µs", flood("the least layer", 4)),
        format!("a check costs {least:.1} to {most:.1} times governor's"),
        format!(
            "a key with five admissions takes {} bytes",
            cell("### Figures to reach", FIVE_ADMISSIONS, 1),
        ),
    ];
    for sentence in sentences {
        assert!(text.contains(&sentence), "the README should say {sentence:?}");
    }
}
