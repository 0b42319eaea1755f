//! [`Limits`]: the policies of users and addresses. Those of the flags hold until an operator changes their
//! quotas, on every server.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tower_sliding_window::{Penalty, Policy, PolicyError, PolicyHandle};

use crate::args::Args;
use example_support::policies::{PolicySet, SharedPolicies};

/// The policy of users.
pub(crate) const USER: &str = "user";
const IP: &str = "ip";
/// How long a log keeps its entries at least. It makes the log of a policy depend on the present quotas alone,
/// so that servers that were started before and after a change share it.
const KEPT: Duration = Duration::from_secs(60);

/// The quotas that operators have set, as in the flags: `2/1s,5/60s`. By the names of the policies. All
/// servers share them.
pub(crate) type Changes = BTreeMap<String, String>;

/// The policies in front of the order route, on every server.
pub(crate) type Fleet = SharedPolicies<Limits>;

/// The policies in front of the order route: those of the flags, and what is in force.
pub(crate) struct Limits {
    user: (Policy, PolicyHandle),
    ip: Option<(Policy, PolicyHandle)>,
}

impl Limits {
    /// Takes the policies of the flags.
    pub(crate) fn new(args: &Args) -> Result<Self, PolicyError> {
        let mut user = args.quota.clone().named(USER).keep_for(KEPT);
        if let Some(penalty) = &args.ban {
            tracing::info!(%penalty, "users that are denied again and again are banned");
            user = user.penalty(penalty.clone());
        } else if args.admin.admin.is_some() {
            // Without a penalty no ban is enforced.
            user = user.penalty(Penalty::manual());
        }
        let limit = |policy: Policy| Ok((policy.clone(), PolicyHandle::try_new(policy)?));
        let ip = args.ip_quota.clone().map(|policy| limit(policy.named(IP).keep_for(KEPT)));
        Ok(Self { user: limit(user)?, ip: ip.transpose()? })
    }

    pub(crate) fn user(&self) -> PolicyHandle {
        self.user.1.clone()
    }

    pub(crate) fn ip(&self) -> Option<PolicyHandle> {
        self.ip.as_ref().map(|(_, handle)| handle.clone())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.all().any(|(policy, _)| policy.name() == name)
    }

    fn all(&self) -> impl Iterator<Item = &(Policy, PolicyHandle)> {
        [&self.user].into_iter().chain(&self.ip)
    }

    /// Returns what each policy is set to. What operators have set for a policy that this server does not
    /// have may be for another server.
    fn with(&self, changes: &Changes) -> Result<Vec<Policy>, PolicyError> {
        let set = |(base, _): &(Policy, PolicyHandle)| match changes.get(base.name()) {
            // Without a name it replaces the quotas only: the penalty stays.
            Some(quotas) => Ok(quotas.parse::<Policy>()?.keep_for(KEPT)),
            None => Ok(base.clone()),
        };
        self.all().map(set).collect()
    }
}

impl PolicySet for Limits {
    type Document = Changes;
    type Error = PolicyError;

    fn check(&self, changes: &Changes) -> Result<(), PolicyError> {
        self.with(changes).map(drop)
    }

    fn apply(&self, changes: &Changes) -> Result<(), PolicyError> {
        for ((_, handle), policy) in self.all().zip(self.with(changes)?) {
            handle.set(policy)?;
        }
        Ok(())
    }
}

/// Shows the policies in force, and the version of what operators have set.
pub(crate) async fn shown(fleet: &Fleet) -> Value {
    let policies = fleet.set().all().map(|(_, handle)| {
        let policy = handle.get();
        let quotas: Vec<String> = policy.quotas().iter().map(ToString::to_string).collect();
        let penalty = policy.get_penalty().map(ToString::to_string);
        json!({ "name": policy.name(), "quotas": quotas.join(","), "penalty": penalty })
    });
    let policies: Vec<Value> = policies.collect();
    let present = fleet.present().await;
    json!({ "policies": policies, "version": present.version, "stale": present.is_stale })
}
