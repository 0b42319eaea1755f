//! [`Axis`]: where the ticks of an axis are, and what they say.

/// The most steps of an axis.
const MOST_STEPS: f64 = 8.0;

/// Steps of time in seconds that people count in, from a second up.
const TIME_STEPS: [f64; 19] = [
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
    10800.0, 21600.0, 43200.0, 86400.0, 172_800.0,
];

/// Units of time in seconds, the longest first.
const UNITS: [(f64, &str); 4] = [(86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];

/// An axis from 0 to an end.
pub(super) struct Axis {
    end: f64,
    step: f64,
    is_time: bool,
}

impl Axis {
    /// Returns an axis of a time in seconds. It ends with the data.
    pub(super) fn of_time(last: f64) -> Self {
        let end = if last > 0.0 { last } else { 1.0 };
        let enough = |step: &&f64| end / **step <= MOST_STEPS;
        let step = match TIME_STEPS.iter().find(enough) {
            Some(step) if end / MOST_STEPS > 0.5 => *step,
            _ if end < TIME_STEPS[0] * MOST_STEPS => round_step(end),
            _ => round_step(end / 86400.0) * 86400.0,
        };
        Self { end, step, is_time: true }
    }

    /// Returns an axis of numbers. It ends with a tick, at or above the data.
    pub(super) fn of_numbers(highest: f64) -> Self {
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let step = round_step(highest);
        Self { end: (highest / step).ceil() * step, step, is_time: false }
    }

    /// Returns the place of a value, as a share of the length of the axis.
    pub(super) fn share(&self, value: f64) -> f64 {
        (value / self.end).clamp(0.0, 1.0)
    }

    /// Returns each tick, with its label.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        // Division that rounds down just below a whole number still has that tick.
        let steps = (self.end / self.step + 1e-9) as u32;
        (0..=steps).map(|number| f64::from(number) * self.step).map(|at| (at, self.label(at)))
    }

    fn label(&self, at: f64) -> String {
        if !self.is_time {
            return number(at, self.step);
        }
        let (unit, name) =
            UNITS.into_iter().find(|(unit, _)| self.step >= *unit).unwrap_or((1.0, "s"));
        format!("{} {name}", number(at / unit, self.step / unit))
    }
}

/// Returns the smallest step of 1, 2 or 5 times a power of ten of which an axis to `end` has few enough.
fn round_step(end: f64) -> f64 {
    let power = 10_f64.powf((end / MOST_STEPS).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    // Multiplication can round an end that is eight whole steps up to a little more.
    let enough = |step: &f64| end / step <= MOST_STEPS * 1.000_001;
    steps.into_iter().find(enough).unwrap_or(10.0 * power)
}

/// Writes a number with as many decimals as its step has, and its thousands apart.
fn number(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut apart = String::new();
    for (place, digit) in whole.char_indices() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart + fraction
}

#[cfg(test)]
mod tests {
    use super::Axis;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().map(|(_, label)| label).collect()
    }

    #[test]
    fn time_is_labelled_in_the_unit_of_its_step() {
        let cases = [
            (0.35, "0.35 s is below", vec!["0.00 s", "0.05 s", "0.10 s", "0.15 s", "0.20 s"]),
            (3.0, "decimals", vec!["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s"]),
            (61.0, "seconds", vec!["0 s", "10 s", "20 s", "30 s", "40 s"]),
            (600.0, "minutes", vec!["0 min", "2 min", "4 min", "6 min", "8 min"]),
            (86400.0, "hours", vec!["0 h", "3 h", "6 h", "9 h", "12 h"]),
            (40.0 * 86400.0, "days", vec!["0 d", "5 d", "10 d", "15 d", "20 d"]),
        ];
        for (last, what, first) in cases {
            let labels = labels(&Axis::of_time(last));
            assert_eq!(labels[..5], first, "{what}");
            assert!(labels.len() <= 9, "{labels:?}");
        }
    }

    #[test]
    fn numbers_end_at_a_tick_above_the_data() {
        assert_eq!(labels(&Axis::of_numbers(0.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Axis::of_numbers(8.0)).last().unwrap(), "8");
        let thousands = labels(&Axis::of_numbers(12_345.0));
        assert_eq!(thousands.last().unwrap(), "14,000");
        let axis = Axis::of_numbers(1_234_567.0);
        assert_eq!(labels(&axis).last().unwrap(), "1,400,000");
        assert!(axis.share(1_234_567.0) < 1.0 && axis.share(0.0) == 0.0);
    }

    #[test]
    fn any_end_has_a_few_ticks() {
        for power in -9..12 {
            for digit in [1.0, 1.01, 3.7, 8.0, 9.99] {
                let end = digit * 10_f64.powi(power);
                for axis in [Axis::of_time(end), Axis::of_numbers(end)] {
                    let ticks = axis.ticks().count();
                    assert!((2..=9).contains(&ticks), "{end}: {ticks}");
                }
            }
        }
    }
}
