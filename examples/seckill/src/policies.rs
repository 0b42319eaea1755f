//! [`Limits`]: the policies of users and addresses, from the flags or from a file that is read again, and
//! what an operator changes about them on every server.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_sliding_window::{Penalty, Policies, Policy, PolicyChange, PolicyError, PolicyHandle};

use crate::args::Args;
use example_support::lock;
use example_support::policies::{PolicySet, Reloads, SharedPolicies, report};

/// The policy of users.
pub(crate) const USER: &str = "user";
const IP: &str = "ip";

/// The file of `--policies`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    policies: Policies,
}

/// What operators have set, by the names of the policies. All servers share it. Where it says nothing,
/// the flags or the file hold.
pub(crate) type Changes = BTreeMap<String, Thresholds>;

/// The policies in front of the order route, on every server.
pub(crate) type Fleet = SharedPolicies<Limits>;

/// The policies in front of the order route.
pub(crate) struct Limits {
    /// Those in force.
    policies: Policies,
    /// Whether users can be banned by hand, which needs a penalty.
    by_hand: bool,
    state: Mutex<State>,
}

struct State {
    configured: Policies,
    changes: Changes,
}

impl Limits {
    /// Takes the policies of the flags or of the file.
    ///
    /// # Errors
    ///
    /// A text that says what to do if the file can't be used.
    pub(crate) fn new(args: &Args) -> Result<Self, Box<dyn Error>> {
        let by_hand = args.admin.admin.is_some();
        let configured = match &args.policies {
            Some(file) => {
                let File { policies } = file.read().map_err(|error| file.unusable(error))?;
                check_names(&policies).map_err(|error| file.unusable(error))?;
                policies
            }
            None => {
                let user = args.quota.clone().named(USER);
                let user = args.ban.iter().cloned().fold(user, Policy::penalty);
                Policies::try_new(
                    [user].into_iter().chain(args.ip_quota.clone().map(|it| it.named(IP))),
                )?
            }
        };
        let configured = with_penalty(&configured, by_hand)?;
        // A set of its own: a change of one does not show in the other.
        let policies = with_changes(&configured, &Changes::new())?;
        let state = Mutex::new(State { configured, changes: Changes::new() });
        let limits = Self { policies, by_hand, state };
        if let Some(penalty) = args.ban.as_ref().or(limits.user()?.get().get_penalty()) {
            tracing::info!(%penalty, "users that are denied again and again are banned");
        }
        Ok(limits)
    }

    pub(crate) fn user(&self) -> Result<PolicyHandle, LimitsError> {
        self.policies.get(USER).ok_or(LimitsError::NoUser)
    }

    pub(crate) fn ip(&self) -> Option<PolicyHandle> {
        self.policies.get(IP)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Policy>> {
        self.policies.all()
    }

    /// Replaces what is configured, and returns what has changed.
    fn configure(&self, File { policies }: File) -> Result<String, LimitsError> {
        check_names(&policies)?;
        if let Some(new) = policies.all().iter().find(|it| self.policies.get(it.name()).is_none()) {
            return Err(LimitsError::New(new.name().to_owned()));
        }
        let configured = with_penalty(&policies, self.by_hand)?;
        let mut state = lock(&self.state);
        let changed = self.policies.reload(with_changes(&configured, &state.changes)?)?;
        let overruled = state.changes.keys().filter(|name| configured.get(name).is_some());
        let overruled = overruled.map(|name| format!("{name}: stays as an operator has set it"));
        let shown = changed.iter().map(PolicyChange::to_string).chain(overruled);
        let shown = shown.collect::<Vec<_>>().join("; ");
        state.configured = configured;
        Ok(shown)
    }
}

impl PolicySet for Limits {
    type Document = Changes;
    type Error = LimitsError;

    fn check(&self, changes: &Changes) -> Result<(), LimitsError> {
        with_changes(&lock(&self.state).configured, changes).map(drop)
    }

    fn apply(&self, changes: &Changes) -> Result<(), LimitsError> {
        let mut state = lock(&self.state);
        self.policies.reload(with_changes(&state.configured, changes)?)?;
        state.changes = changes.clone();
        Ok(())
    }
}

/// Takes over the file of `--policies` whenever it is to be read again.
pub(crate) async fn follow_file(fleet: Arc<Fleet>, mut reloads: Reloads) {
    while let Some(file) = reloads.next().await {
        report(fleet.set().configure(file));
    }
}

/// Shows the policies in force, and the version of what operators have set.
pub(crate) fn shown(fleet: &Fleet) -> Value {
    let policies = fleet.set().all().into_iter().map(|policy| {
        let mut shown = json!(Thresholds::of(&policy));
        shown["name"] = policy.name().into();
        shown["penalty"] = policy.get_penalty().map(ToString::to_string).into();
        shown
    });
    let policies: Vec<Value> = policies.collect();
    json!({ "policies": policies, "version": fleet.present().0, "stale": fleet.is_stale() })
}

fn check_names(policies: &Policies) -> Result<(), LimitsError> {
    policies.get(USER).ok_or(LimitsError::NoUser)?;
    match policies.all().iter().find(|policy| ![USER, IP].contains(&policy.name())) {
        Some(unknown) => Err(LimitsError::Unknown(unknown.name().to_owned())),
        None => Ok(()),
    }
}

/// Gives users a penalty if they can be banned by hand: without one no ban is enforced.
fn with_penalty(policies: &Policies, by_hand: bool) -> Result<Policies, PolicyError> {
    let policy = |policy: &Policy| match policy.get_penalty() {
        None if by_hand && policy.name() == USER => policy.clone().penalty(Penalty::manual()),
        _ => policy.clone(),
    };
    Policies::try_new(policies.all().iter().map(|it| policy(it)))
}

/// Returns the configured policies with what operators have set. A policy that this server does not
/// have may be one of another server.
fn with_changes(configured: &Policies, changes: &Changes) -> Result<Policies, LimitsError> {
    let policies = configured.all().into_iter().map(|base| match changes.get(base.name()) {
        Some(thresholds) => thresholds.applied_to(&base),
        None => Ok(Policy::clone(&base)),
    });
    Ok(Policies::try_new(policies.collect::<Result<Vec<_>, _>>()?)?)
}

/// The quotas of a policy, and candidates that are counted and not enforced. The penalty stays the one
/// of the flags or of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct Thresholds {
    /// As in the flags: `2/1s,5/60s`.
    pub(crate) quotas: String,
    /// In the same form; empty for none.
    #[serde(default)]
    pub(crate) candidates: String,
}

impl Thresholds {
    /// Returns those of a policy.
    pub(crate) fn of(policy: &Policy) -> Self {
        let candidates: Vec<String> = policy.candidates().iter().map(ToString::to_string).collect();
        let quotas: Vec<String> = policy.quotas().iter().map(ToString::to_string).collect();
        Self { quotas: quotas.join(","), candidates: candidates.join(",") }
    }

    /// Returns a policy with these thresholds, and with the name and the penalty of `base`.
    fn applied_to(&self, base: &Policy) -> Result<Policy, LimitsError> {
        let quotas: Policy = self.quotas.trim().parse().map_err(LimitsError::Quotas)?;
        let mut policy = Policy::new(base.name());
        for quota in quotas.quotas() {
            policy = policy.quota(*quota);
        }
        if !self.candidates.trim().is_empty() {
            let candidates = self.candidates.trim().parse::<Policy>();
            for candidate in candidates.map_err(LimitsError::Candidates)?.quotas() {
                policy = policy.candidate(*candidate);
            }
        }
        Ok(base.get_penalty().cloned().into_iter().fold(policy, Policy::penalty))
    }
}

/// Why policies can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitsError {
    #[error("there is no policy {USER:?}, which is needed")]
    NoUser,
    #[error("the policy {0:?} is unknown: there are {USER} and {IP}")]
    Unknown(String),
    #[error("the policy {0:?} is new: restart the server, because none of its rules uses it")]
    New(String),
    #[error("`quotas`: {0}")]
    Quotas(#[source] PolicyError),
    #[error("`candidates`: {0}")]
    Candidates(#[source] PolicyError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}
