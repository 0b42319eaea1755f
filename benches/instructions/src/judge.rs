//! Judges measured figures by committed ones.

use crate::figures::{Cost, Figures, with_features};

/// Instructions may rise by so much: the figures vary by less than a third of it.
const MOST: f64 = 1.03;
/// With another compiler or C library. Their own changes are smaller.
const MOST_ELSEWHERE: f64 = 1.15;
/// Allocations may vary by so much, because a path may allocate only now and then.
const ALLOCATIONS: f64 = 0.02;
/// With `metrics` and `tracing` a flood may cost so much more than without them.
const MOST_WITH_FEATURES: f64 = 1.03;
const UPDATE: &str = "if it should: .ci/instructions --update, and say why in the commit";

/// What the comparison found.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Each of these fails the comparison.
    pub(crate) failures: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Compares what was measured here with the committed figures. The flooded paths must cost hardly
/// more with `metrics` and `tracing` than without.
pub(crate) fn judge(committed: &Figures, here: &Figures, flooded: &[&str]) -> Judgement {
    let mut judgement = Judgement::default();
    let most = judgement.most(committed, here);
    for (path, cost) in &here.costs {
        match committed.costs.get(path) {
            Some(before) => judgement.compare(path, before, cost, most),
            None => judgement.failures.push(format!("{path} has no committed figures: {UPDATE}")),
        }
    }
    for path in committed.costs.keys().filter(|path| !here.costs.contains_key(*path)) {
        judgement.failures.push(format!("{path} is not measured any more: {UPDATE}"));
    }
    for path in flooded {
        judgement.compare_features(path, here);
    }
    judgement
}

impl Judgement {
    /// Returns by how much instructions may rise. Those of another processor can't be compared.
    fn most(&mut self, committed: &Figures, here: &Figures) -> Option<f64> {
        if committed.toolchain == here.toolchain {
            return Some(MOST);
        }
        let host = |figures: &Figures| figures.toolchain.split(':').next().map(str::to_owned);
        let most = (host(committed) == host(here)).then_some(MOST_ELSEWHERE);
        let rule = match most {
            Some(_) => "instructions may rise by 15 % instead of 3 %",
            None => "instructions are NOT COMPARED",
        };
        self.notes.push(format!(
            "the figures were made on {}, this is {}: {rule}. After an update of CI's toolchain: \
             .ci/instructions --update",
            committed.toolchain, here.toolchain
        ));
        most
    }

    fn compare(&mut self, path: &str, before: &Cost, now: &Cost, most: Option<f64>) {
        let ratio = now.instructions / before.instructions;
        let change = format!(
            "{path}: {:.1} instructions, committed {:.1} ({:+.1} %)",
            now.instructions,
            before.instructions,
            (ratio - 1.0) * 100.0
        );
        match most {
            Some(most) if ratio > most => self.failures.push(format!("{change}; {UPDATE}")),
            Some(most) if ratio < 2.0 - most => {
                self.notes.push(format!("{change}: commit it with .ci/instructions --update"));
            }
            _ => {}
        }
        let change = format!(
            "{path}: {:.2} allocations, committed {:.2}",
            now.allocations, before.allocations
        );
        if now.allocations > before.allocations + ALLOCATIONS {
            self.failures.push(format!("{change}; {UPDATE}"));
        } else if now.allocations < before.allocations - ALLOCATIONS {
            self.notes.push(format!("{change}: commit it with .ci/instructions --update"));
        }
    }

    fn compare_features(&mut self, path: &str, here: &Figures) {
        let cost = |path: &str| here.costs.get(path);
        let (Some(off), Some(on)) = (cost(path), cost(&with_features(path))) else {
            return self.failures.push(format!("{path} is not measured with and without features"));
        };
        let ratio = on.instructions / off.instructions;
        let change = format!(
            "{path}: {:.1} instructions with metrics and tracing, {:.1} without ({ratio:.3})",
            on.instructions, off.instructions
        );
        if ratio > MOST_WITH_FEATURES || on.allocations > off.allocations + ALLOCATIONS {
            self.failures.push(format!("{change}, allocations {:.2} and {:.2}: at most {MOST_WITH_FEATURES} and no allocation more", on.allocations, off.allocations));
        } else {
            self.notes.push(change);
        }
    }
}
