//! [`Table`]: single figures, printed as a Markdown table of their medians.

use std::fmt::{self, Write};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

/// A table with a heading. Each cell has the figures of all rounds, or none where there is nothing to measure.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    columns: &'static [&'static str],
    rows: Vec<(String, Vec<Vec<f64>>)>,
}

impl Table {
    pub(crate) fn new(title: &'static str, columns: &'static [&'static str]) -> Self {
        Self { title, columns, rows: Vec::new() }
    }

    /// A table of figures that have a goal.
    pub(crate) fn of_goals(title: &'static str) -> Self {
        Self::new(title, &["µs", "base µs", "measured", "goal"])
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, cells: impl Into<Vec<Vec<f64>>>) {
        self.rows.push((name.into(), cells.into()));
    }

    /// Adds a ratio that should not be above a goal.
    pub(crate) fn goal(&mut self, name: &str, of: &[f64], base: &[f64], at_most: f64) {
        self.row(name, [of.to_vec(), base.to_vec(), ratios(of, base), vec![at_most]]);
    }

    /// Writes the figures into a file, in place of the old ones of this table.
    pub(crate) fn write_into(&self, file: &Path) -> Result<()> {
        let old = match fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("can't read {}", file.display()))?,
        };
        let of_this = format!("{}\t", self.title);
        let mut lines: Vec<String> =
            old.lines().filter(|line| !line.starts_with(&of_this)).map(str::to_owned).collect();
        for (name, cells) in &self.rows {
            for (column, cell) in self.columns.iter().zip(cells).filter(|it| !it.1.is_empty()) {
                let figures = cell.iter().map(|it| ((it * 1e4).round() / 1e4).to_string());
                let figures: Vec<String> = figures.collect();
                lines.push(format!("{of_this}{name}\t{column}\t{}", figures.join(" ")));
            }
        }
        fs::write(file, lines.join("\n") + "\n")?;
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | {} |", self.columns.join(" | "))?;
        writeln!(f, "|---|{}", "---:|".repeat(self.columns.len()))?;
        for (name, cells) in &self.rows {
            let medians: Vec<_> = cells.iter().map(|cell| number(median(cell))).collect();
            writeln!(f, "| {name} | {} |", medians.join(" | "))?;
        }
        Ok(())
    }
}

/// Formats a whole number as it is, and another with three significant digits or more.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        _ if !value.is_finite() => return "-".to_owned(),
        it if it.fract() == 0.0 || it >= 100.0 => 0,
        it if it >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
            grouped.push(',');
        }
        let _ = grouped.write_char(digit);
    }
    grouped
}

/// Returns the ratio of each round.
pub(crate) fn ratios(of: &[f64], base: &[f64]) -> Vec<f64> {
    of.iter().zip(base).map(|(of, base)| of / base).collect()
}

/// Returns the median, or no number if there are none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let all = [0.0, 0.018, 1.0, 1.409, 22.04, 233.4, 49_500.4, 1_200_000.0, f64::NAN];
        let texts = ["0", "0.02", "1", "1.41", "22.0", "233", "49,500", "1,200,000", "-"];
        assert_eq!(all.map(number), texts);
    }

    #[test]
    fn table_is_printed_and_its_figures_replace_the_old_ones() {
        let file = std::env::temp_dir().join(format!("bench-peers-{}.tsv", std::process::id()));
        fs::write(&file, "First\tours\tµs\t1\nOther\tours\tµs\t1\n").unwrap();
        let mut table = Table::new("First", &["µs"]);
        table.row("ours", [vec![2.5, 2.5]]);
        assert_eq!(table.to_string(), "| | µs |\n|---|---:|\n| ours | 2.50 |\n");
        table.write_into(&file).unwrap();
        let expected = "Other\tours\tµs\t1\nFirst\tours\tµs\t2.5 2.5\n";
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        fs::remove_file(file).unwrap();
    }
}
