//! The committed figures: a text file with a line for each path.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

const HEAD: &str = "\
# What taking a path once costs. A path with `+features` has metrics and tracing on.
# .ci/instructions compares, .ci/instructions --update writes this file anew.
";

/// What taking a path once costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
}

/// The costs of all paths by name, and what compiled the program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) toolchain: String,
    pub(crate) costs: BTreeMap<String, Cost>,
}

/// Returns the name of a path that is measured with `metrics` and `tracing`.
pub(crate) fn with_features(path: &str) -> String {
    format!("{path}+features")
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}made on {}", self.toolchain)?;
        writeln!(f, "{:32}{:>12}{:>13}", "path", "instructions", "allocations")?;
        for (path, Cost { instructions, allocations }) in &self.costs {
            writeln!(f, "{path:32}{instructions:>12.1}{allocations:>13.2}")?;
        }
        Ok(())
    }
}

impl FromStr for Figures {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let toolchain = lines.next().and_then(|line| line.strip_prefix("made on "));
        let toolchain = toolchain.context("the first line does not begin with `made on`")?;
        let costs = lines.skip(1).map(cost).collect::<Result<_>>()?;
        Ok(Self { toolchain: toolchain.to_owned(), costs })
    }
}

fn cost(line: &str) -> Result<(String, Cost)> {
    let [path, instructions, allocations] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("expected a path and two numbers: {line:?}");
    };
    let number = |text: &str| text.parse().with_context(|| format!("not a number: {line:?}"));
    let cost = Cost { instructions: number(instructions)?, allocations: number(allocations)? };
    Ok((path.to_owned(), cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_figures_are_read_again() {
        let cost = Cost { instructions: 1234.5, allocations: 2.25 };
        let costs = [("layer-denial".to_owned(), cost), (with_features("layer-denial"), cost)];
        let toolchain = "x86_64-unknown-linux-gnu: rustc 1.95.0, glibc 2.36".to_owned();
        let figures = Figures { toolchain, costs: costs.into() };
        assert_eq!(figures.to_string().parse::<Figures>().unwrap(), figures);
    }

    #[test]
    fn damaged_figures_are_refused() {
        for text in ["", "path 1 2\n", "made on x\nhead\npath 1\n", "made on x\nhead\npath 1 two\n"]
        {
            assert!(text.parse::<Figures>().is_err(), "{text:?}");
        }
    }
}
