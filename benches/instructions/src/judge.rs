//! Judges measured figures by committed ones.

use std::collections::BTreeSet;

use crate::figures::{Cost, Figures, with_features};

/// Instructions may rise by so much: the figures vary by less than a third of it.
const MOST: f64 = 1.03;
/// With another compiler or C library. Their own changes are smaller.
const MOST_ELSEWHERE: f64 = 1.15;
/// Allocations may vary by so much: some happen once a second, and a busy machine takes longer.
const ALLOCATIONS: f64 = 0.05;
/// With `metrics` and `tracing` a flood may cost so much more than without them.
const MOST_WITH_FEATURES: f64 = 1.03;
/// The response of a flooded path without the library. In a larger program the compiler inlines axum and
/// hyper otherwise, which this path shows.
const CONSTANT: &str = "axum-constant-429";
const UPDATE: &str = "if it should: .ci/instructions --update, and say why in the commit";

/// What the comparison found.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Each of these fails the comparison.
    pub(crate) failures: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Compares what was measured here with the committed figures. A flooded path must cost hardly more
/// with `metrics` and `tracing` than without.
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
    let reported = here.costs.keys().filter(|path| here.costs.contains_key(&with_features(path)));
    let reported: BTreeSet<&str> =
        reported.map(String::as_str).chain(flooded.iter().copied()).collect();
    for path in reported {
        judgement.compare_features(path, here, flooded.contains(&path));
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

    /// Compares a path with and without `metrics` and `tracing`. Fails only on a flooded path.
    fn compare_features(&mut self, path: &str, here: &Figures, is_flooded: bool) {
        let cost = |path: &str| here.costs.get(path);
        let (Some(off), Some(on)) = (cost(path), cost(&with_features(path))) else {
            return self.failures.push(format!("{path} is not measured with and without features"));
        };
        let constant =
            if is_flooded { cost(CONSTANT).zip(cost(&with_features(CONSTANT))) } else { None };
        let inlining = constant.map_or(0.0, |(off, on)| on.instructions - off.instructions);
        let ratio = (on.instructions - inlining) / off.instructions;
        let change = format!(
            "{path}: with metrics and tracing {ratio:.3} times the instructions and {:+.2} allocations",
            on.allocations - off.allocations
        );
        let is_dear = ratio > MOST_WITH_FEATURES || on.allocations > off.allocations + ALLOCATIONS;
        if is_flooded && is_dear {
            let rule = format!("at most {MOST_WITH_FEATURES} and no allocation");
            self.failures.push(format!("{change}, but {rule}, see src/telemetry.rs"));
        } else {
            self.notes.push(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "x86_64-unknown-linux-gnu: rustc 1.95.0, glibc 2.36";

    fn figures(toolchain: &str, costs: &[(&str, f64, f64)]) -> Figures {
        let cost = |(path, instructions, allocations): &(&str, f64, f64)| {
            ((*path).to_owned(), Cost { instructions: *instructions, allocations: *allocations })
        };
        Figures { toolchain: toolchain.to_owned(), costs: costs.iter().map(cost).collect() }
    }

    /// Judges one path by 1000 instructions and 5 allocations, made on this toolchain.
    fn judge_one(made_on: &str, instructions: f64, allocations: f64) -> Judgement {
        let committed = figures(made_on, &[("path", 1000.0, 5.0)]);
        judge(&committed, &figures(HERE, &[("path", instructions, allocations)]), &[])
    }

    #[test]
    fn three_percent_more_instructions_fail() {
        assert!(judge_one(HERE, 1030.0, 5.0).failures.is_empty());
        let failures = judge_one(HERE, 1050.0, 5.0).failures;
        let text = "path: 1050.0 instructions, committed 1000.0 (+5.0 %)";
        assert!(failures.len() == 1 && failures[0].contains(text), "{failures:?}");
        assert!(failures[0].contains(".ci/instructions --update"), "{failures:?}");
    }

    #[test]
    fn fewer_instructions_are_to_be_committed() {
        let judgement = judge_one(HERE, 950.0, 5.0);
        assert!(judgement.failures.is_empty());
        assert!(judgement.notes[0].contains("(-5.0 %)") && judgement.notes[0].contains("--update"));
        assert!(judge_one(HERE, 980.0, 5.0).notes.is_empty());
    }

    #[test]
    fn any_more_allocations_fail() {
        assert!(judge_one(HERE, 1000.0, 5.04).failures.is_empty());
        let failures = judge_one(HERE, 1000.0, 5.25).failures;
        let text = "path: 5.25 allocations, committed 5.00";
        assert!(failures.len() == 1 && failures[0].contains(text), "{failures:?}");
        let judgement = judge_one(HERE, 1000.0, 4.0);
        assert!(judgement.failures.is_empty() && judgement.notes[0].contains("4.00 allocations"));
    }

    #[test]
    fn another_compiler_may_cost_more() {
        let other = "x86_64-unknown-linux-gnu: rustc 1.96.0, glibc 2.36";
        let judgement = judge_one(other, 1140.0, 5.0);
        assert!(judgement.failures.is_empty() && judgement.notes[0].contains("1.96.0"));
        assert_eq!(judge_one(other, 1160.0, 5.0).failures.len(), 1);
        assert_eq!(judge_one(other, 1000.0, 6.0).failures.len(), 1);
    }

    #[test]
    fn another_processor_is_not_compared() {
        let other = "aarch64-unknown-linux-gnu: rustc 1.95.0, glibc 2.36";
        let judgement = judge_one(other, 5000.0, 5.0);
        assert!(judgement.failures.is_empty());
        assert!(judgement.notes[0].contains("NOT COMPARED"));
    }

    #[test]
    fn lists_of_paths_must_agree() {
        let (one, other) = (("one", 1.0, 0.0), ("other", 1.0, 0.0));
        let judgement = judge(&figures(HERE, &[one]), &figures(HERE, &[other]), &[]);
        assert_eq!(judgement.failures.len(), 2, "{judgement:?}");
    }

    #[test]
    fn features_may_cost_three_percent() {
        let judge_features = |path: &str, instructions, allocations| {
            let on = with_features(path);
            let here = figures(HERE, &[(path, 1000.0, 5.0), (&on, instructions, allocations)]);
            judge(&here, &here, &["flood"]).failures.len()
        };
        assert_eq!(judge_features("flood", 1029.0, 5.0), 0);
        assert_eq!(judge_features("flood", 1031.0, 5.0), 1);
        assert_eq!(judge_features("flood", 1000.0, 6.0), 1);
        // The program without the library costs more, too.
        let constant = with_features(CONSTANT);
        let costs = [("flood", 1000.0, 0.0), ("flood+features", 1050.0, 0.0)];
        let constants = [(CONSTANT, 800.0, 0.0), (&*constant, 830.0, 0.0)];
        let here = figures(HERE, &[costs, constants].concat());
        assert!(judge(&here, &here, &["flood"]).failures.is_empty());
        // Not flooded, but the flood is missing.
        assert_eq!(judge_features("other", 1100.0, 5.0), 1);
    }
}
