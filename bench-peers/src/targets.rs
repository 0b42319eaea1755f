//! [`Figure`] and [`Goal`]: targets, and whether this run reached them.

use crate::table::{Table, median, number};

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

/// A figure of a table that has its goals beside it.
pub(crate) struct Goal {
    name: String,
    /// Microseconds a request, and those of what it is compared with.
    times: [Option<f64>; 2],
    measured: f64,
    at_most: Option<f64>,
}

impl Goal {
    /// The median of the ratios of the rounds.
    pub(crate) fn ratio(name: &str, of: &[f64], base: &[f64], at_most: f64) -> Self {
        let median_of = |values: &[f64]| Some(median(values.iter().copied()));
        Self {
            name: name.to_owned(),
            times: [median_of(of), median_of(base)],
            measured: median(of.iter().zip(base).map(|(of, base)| of / base)),
            at_most: Some(at_most),
        }
    }

    /// The median of the rounds.
    pub(crate) fn value(name: &str, values: &[f64], at_most: Option<f64>) -> Self {
        let measured = median(values.iter().copied());
        Self { name: name.to_owned(), times: [None; 2], measured, at_most }
    }
}

/// Returns a table of figures with their goals.
pub(crate) fn goals(title: &str, goals: &[Goal]) -> Table {
    let mut table = Table::new(title, &["", "µs", "of µs", "measured", "at most", ""]);
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    for Goal { name, times, measured, at_most } in goals {
        let result = match at_most {
            Some(at_most) if measured <= at_most => "ok",
            Some(_) => "missed",
            None => "",
        };
        let [of, base] = times.map(optional);
        let (measured, at_most) = (number(*measured), optional(*at_most));
        table.row([name.clone(), of, base, measured, at_most, result.to_owned()]);
    }
    table
}
