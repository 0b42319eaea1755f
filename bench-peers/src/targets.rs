//! [`Figure`]: a target, and whether this run reached it.

use crate::table::{Table, number};

/// A measured value and the most that it should be.
pub(crate) struct Figure {
    name: String,
    measured: f64,
    at_most: f64,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, measured: f64, at_most: f64) -> Self {
        Self { name: name.into(), measured, at_most }
    }

    fn reached(&self) -> bool {
        self.measured <= self.at_most
    }
}

/// Returns the table of all figures measured in this run.
pub(crate) fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new("Figures to reach", &["figure", "measured", "at most", ""]);
    for figure in figures {
        let result = if figure.reached() { "ok" } else { "missed" };
        table.row([
            figure.name.clone(),
            number(figure.measured),
            number(figure.at_most),
            result.to_owned(),
        ]);
    }
    table
}

/// Lists the figures that were not reached.
pub(crate) fn missed(figures: &[Figure]) -> String {
    let missed = figures.iter().filter(|figure| !figure.reached());
    let line = |figure: &Figure| {
        let Figure { name, measured, at_most } = figure;
        format!("- {name}: {} instead of at most {}\n", number(*measured), number(*at_most))
    };
    let lines: String = missed.map(line).collect();
    if lines.is_empty() { "None in this run.\n".to_owned() } else { lines }
}
