//! [`Check`]: a request for a decision.

use std::borrow::Cow;
use std::num::NonZeroU32;

use smallvec::SmallVec;
use uuid::Uuid;

use super::log_id::{LogCost, LogId};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::policy::Counts;

/// A request for a decision, sent to a [`Store`](crate::store::Store): does the request fit into all
/// of these logs?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The identity of the request. A request counts once under one identity.
    pub id: Uuid,
    /// Whether the outcome must have [`QuotaState::reset`](super::QuotaState::reset). Defaults to
    /// `false`.
    pub wants_reset: bool,
    /// What happens to the request if the store can't decide. Defaults to `Local` with one instance.
    pub on_failure: FailurePolicy,
    pub(crate) logs: SmallVec<[LogId; 2]>,
    /// What the request takes of each log that is a budget. If they differ, the highest. In every other log it is one place, or
    /// none at a cost of 0.
    pub(crate) cost: u32,
    /// The cost of each log if they differ, else empty.
    costs: Box<[u32]>,
}

impl Check {
    /// Creates the check of a new request.
    ///
    /// If a log is given twice, it is checked once, under the quotas of both policies.
    pub fn new(logs: impl IntoIterator<Item = LogId>) -> Self {
        Self::with_costs(logs.into_iter().map(|log| LogCost::new(log, 1)))
    }

    /// Creates the check of a new request that has another cost in each log.
    ///
    /// If a log is given twice, it is checked once, at the higher cost and under the quotas of both
    /// policies.
    pub fn with_costs<L: Into<LogCost>>(logs: impl IntoIterator<Item = L>) -> Self {
        let (mut distinct, mut costs) = (SmallVec::new(), SmallVec::<[u32; 4]>::new());
        for LogCost { log, cost } in logs.into_iter().map(L::into) {
            match add_or_merge(&mut distinct, log) {
                Some(index) => costs[index] = costs[index].max(cost),
                None => costs.push(cost),
            }
        }
        let mut check = Self::of_unique_logs(distinct);
        check.set_costs(&costs);
        check
    }

    /// Creates the check of a new request in logs of which none is given twice.
    pub(crate) fn of_unique_logs(logs: SmallVec<[LogId; 2]>) -> Self {
        // After a fork, both processes draw the same random numbers.
        let id = Uuid::new_v4().as_u128() ^ u128::from(std::process::id());
        Self {
            id: Uuid::from_u128(id),
            cost: 1,
            wants_reset: false,
            on_failure: FailurePolicy::default(),
            logs,
            costs: Box::default(),
        }
    }

    /// Sets the cost of each log. Without logs it stays 1.
    fn set_costs(&mut self, costs: &[u32]) {
        self.cost = costs.iter().copied().max().unwrap_or(1);
        let is_same = costs.iter().all(|cost| *cost == self.cost);
        self.costs = if is_same { Box::default() } else { costs.into() };
    }

    /// Sets what the request takes of each budget. In every other log it is one place.
    pub(crate) fn set_cost_of_budgets(&mut self, cost: u32) {
        let cost = |log: &LogId| if log.is_budget() { cost } else { 1 };
        let costs: SmallVec<[u32; 4]> = self.logs.iter().map(cost).collect();
        self.set_costs(&costs);
    }

    /// Returns the logs. No log occurs twice.
    pub fn logs(&self) -> &[LogId] {
        &self.logs
    }

    /// Returns each log with how many places the request takes in it.
    pub fn costs(&self) -> impl Iterator<Item = (&LogId, u32)> {
        self.logs.iter().enumerate().map(|(index, log)| (log, self.cost_in(index)))
    }

    /// Returns how many places the request takes in the log of an index.
    pub(crate) fn cost_in(&self, index: usize) -> u32 {
        let cost = self.costs.get(index).copied().unwrap_or(self.cost);
        // Elsewhere than in a budget a request is one place, whatever it costs.
        if self.logs[index].is_budget() { cost } else { cost.min(1) }
    }

    /// Returns the check with the same cost in each log.
    pub(crate) fn at_cost(&self, cost: u32) -> Self {
        Self { cost, costs: Box::default(), ..self.clone() }
    }

    /// Returns the check of the same request in some of its logs.
    pub(crate) fn part(&self, has: impl Fn(usize) -> bool) -> Self {
        let part = self.costs().enumerate().filter(|(index, _)| has(*index));
        let (logs, costs): (SmallVec<_>, SmallVec<[u32; 4]>) =
            part.map(|(_, (log, cost))| (log.clone(), cost)).unzip();
        let mut part = Self { logs, costs: Box::default(), ..*self };
        part.set_costs(&costs);
        part
    }

    /// Returns the check with the limits of one of several `instances` that decide independently, or
    /// `None` if the cost is above such a limit.
    pub(crate) fn shared_among(&self, instances: NonZeroU32) -> Option<Cow<'_, Self>> {
        if instances == NonZeroU32::MIN {
            return Some(Cow::Borrowed(self));
        }
        let mut check = self.clone();
        for log in &mut check.logs {
            log.policy = log.policy.shared_among(instances);
        }
        check.ensure_cost_fits().is_ok().then_some(Cow::Owned(check))
    }

    /// Returns an error if no store could ever admit the request, or if it lacks the value of a log.
    pub(crate) fn ensure_admissible(&self) -> Result<(), StoreError> {
        let has_value =
            |log: &&LogId| log.policy.counts() != Counts::Distinct || log.value.is_some();
        if let Some(log) = self.logs.iter().find(|log| !has_value(log)) {
            return Err(StoreError::NoValue { policy: log.policy.name().to_owned() });
        }
        self.ensure_cost_fits()
    }

    /// Returns an error if no store could ever admit the request.
    pub(crate) fn ensure_cost_fits(&self) -> Result<(), StoreError> {
        if self.cost > 1 && !self.logs.iter().any(LogId::is_budget) {
            return Err(StoreError::NoBudget { cost: self.cost });
        }
        let limits = self.costs().flat_map(|(log, cost)| {
            log.policy.quotas().iter().map(move |quota| (quota.limit(), cost))
        });
        match limits.filter(|(limit, cost)| cost > limit).min() {
            Some((limit, cost)) => Err(StoreError::CostAboveLimit { cost, limit }),
            None => Ok(()),
        }
    }
}

/// Adds a log, or its quotas if the log is there. Returns the index of a log that was there.
pub(crate) fn add_or_merge(logs: &mut SmallVec<[LogId; 2]>, log: LogId) -> Option<usize> {
    let index = logs.iter().position(|other| *other == log);
    match index {
        Some(index) => logs[index].policy = logs[index].policy.merged(&log.policy),
        None => logs.push(log),
    }
    index
}
