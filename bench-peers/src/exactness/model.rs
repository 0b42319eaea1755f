//! What a limiter did wrong, found from its own admissions and from nothing else.

use std::time::Duration;

/// Forgiven everywhere: some limiters count milliseconds, and clocks run a little apart.
const ALLOWANCE: Duration = Duration::from_millis(1);

/// A request and its reply. The limiter read its clock at some instant of the call.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// Just before and just after the call.
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    pub(crate) is_admitted: bool,
    pub(crate) retry_after: Option<Duration>,
}

/// What is wrong at every instant at which the limiter can have read its clock.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) admitted: usize,
    /// Admissions that had `limit` others in the window before them.
    pub(crate) above: usize,
    /// The most admissions in a window.
    pub(crate) most: usize,
    pub(crate) denied: usize,
    /// Denials although fewer than `limit` admissions were in the window.
    pub(crate) needless: usize,
    /// How much longer than necessary a `Retry-After` was.
    pub(crate) longest_wait: Option<Duration>,
    /// Denials whose `Retry-After` ends while `limit` admissions are still in the window.
    pub(crate) short: usize,
    /// How much too short a `Retry-After` was.
    pub(crate) largest_shortfall: Option<Duration>,
}

impl Faults {
    /// Judges the requests of one key.
    pub(crate) fn of(mut requests: Vec<Request>, limit: usize, window: Duration) -> Self {
        requests.sort_by_key(|request| request.after);
        let admissions: Vec<Request> =
            requests.iter().copied().filter(|request| request.is_admitted).collect();
        let mut faults = Self { admitted: admissions.len(), ..Self::default() };
        for (index, last) in admissions.iter().enumerate() {
            // All of these are in one window, whenever in their calls they were counted.
            let surely = admissions[..index]
                .iter()
                .filter(|earlier| last.after < earlier.before + window.saturating_sub(ALLOWANCE))
                .count();
            faults.above += usize::from(surely >= limit);
            faults.most = faults.most.max(surely + 1);
        }
        for denial in requests.iter().filter(|request| !request.is_admitted) {
            faults.judge_denial(denial, &admissions, limit, window);
        }
        faults
    }

    fn judge_denial(
        &mut self,
        denial: &Request,
        admissions: &[Request],
        limit: usize,
        window: Duration,
    ) {
        self.denied += 1;
        // When each admission that may have been in the window left it at the latest, newest first.
        let mut ends: Vec<Duration> = admissions
            .iter()
            .filter(|admission| admission.before < denial.after)
            .map(|admission| admission.after + window + ALLOWANCE)
            .filter(|end| *end > denial.before)
            .collect();
        ends.sort_by(|a, b| b.cmp(a));
        self.needless += usize::from(ends.len() < limit);
        let Some(retry_after) = denial.retry_after else { return };

        let fits = ends.get(limit - 1).copied().unwrap_or(denial.before);
        let needless_wait = (denial.before + retry_after).saturating_sub(fits);
        self.longest_wait = self.longest_wait.max(Some(needless_wait));

        // When each admission that was counted before the denial left the window at the earliest.
        let mut ends: Vec<Duration> = admissions
            .iter()
            .filter(|admission| admission.after <= denial.before)
            .map(|admission| (admission.before + window).saturating_sub(ALLOWANCE))
            .collect();
        ends.sort_by(|a, b| b.cmp(a));
        let fits = ends.get(limit - 1).copied().unwrap_or_default();
        let shortfall = fits.saturating_sub(denial.after + retry_after);
        self.short += usize::from(!shortfall.is_zero());
        self.largest_shortfall = self.largest_shortfall.max(Some(shortfall));
    }

    /// Adds the faults of another key.
    pub(crate) fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.above += other.above;
        self.most = self.most.max(other.most);
        self.denied += other.denied;
        self.needless += other.needless;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.short += other.short;
        self.largest_shortfall = self.largest_shortfall.max(other.largest_shortfall);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(1);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A request whose call took from one millisecond to another.
    fn request(before: u64, after: u64, is_admitted: bool, retry_after: Option<u64>) -> Request {
        let retry_after = retry_after.map(ms);
        Request { before: ms(before), after: ms(after), is_admitted, retry_after }
    }

    fn admitted(at: u64) -> Request {
        request(at, at, true, None)
    }

    fn denied(at: u64, retry_after: u64) -> Request {
        request(at, at, false, Some(retry_after))
    }

    fn faults(requests: &[Request]) -> Faults {
        Faults::of(requests.to_vec(), 2, WINDOW)
    }

    #[test]
    fn exact_limiter_has_no_faults() {
        let exact =
            [admitted(0), admitted(400), denied(500, 500), admitted(1000), denied(1100, 300)];
        let faults = faults(&exact);
        assert_eq!((faults.admitted, faults.above, faults.most), (3, 0, 2));
        assert_eq!((faults.denied, faults.needless, faults.short), (2, 0, 0));
        assert_eq!(faults.longest_wait, Some(Duration::ZERO));
        assert_eq!(faults.largest_shortfall, Some(Duration::ZERO));
    }

    #[test]
    fn admissions_above_the_limit_count() {
        let faults = faults(&[admitted(0), admitted(100), admitted(900), admitted(950)]);
        assert_eq!((faults.above, faults.most), (2, 4));
    }

    #[test]
    fn slow_call_gets_the_benefit_of_the_doubt() {
        // The third may have been counted at 1,000 ms, and then the first has left.
        let slow = [admitted(0), admitted(400), request(900, 1000, true, None)];
        assert_eq!(faults(&slow).above, 0);
        // The denial may have been decided at 900 ms.
        let slow = [admitted(0), admitted(400), request(900, 1000, false, None)];
        assert_eq!(faults(&slow).needless, 0);
    }

    #[test]
    fn needless_denials_and_waits_count() {
        let faults = faults(&[admitted(0), denied(100, 400), admitted(200), denied(300, 1000)]);
        assert_eq!(faults.needless, 1);
        // The last could go at 1,000 ms, and a millisecond is forgiven.
        assert_eq!(faults.longest_wait, Some(ms(400)));
    }

    #[test]
    fn short_waits_count() {
        let faults = faults(&[admitted(0), admitted(100), denied(200, 700)]);
        assert_eq!((faults.needless, faults.short), (0, 1));
        assert_eq!(faults.largest_shortfall, Some(ms(99)));
    }
}
