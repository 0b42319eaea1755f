//! [`Limits`]: the policies of users and addresses, from the flags or from a file that is read again.
//! [`Fleet`]: what an operator changes about them on every server.

mod fleet;
mod thresholds;

use std::error::Error;

use serde::Deserialize;
use tower_sliding_window::{Penalty, Policies, Policy, PolicyChange, PolicyError, PolicyHandle};

pub(crate) use self::fleet::{ChangeError, Fleet};
pub(crate) use self::thresholds::Entry;
use crate::args::Args;

/// The policy of users.
pub(crate) const USER: &str = "user";
const IP: &str = "ip";

/// The file of `--policies`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    policies: Policies,
}

/// The policies in front of the order route.
#[derive(Clone)]
pub(crate) struct Limits {
    policies: Policies,
    /// Whether users can be banned by hand, which needs a penalty.
    by_hand: bool,
}

/// Why policies of a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitsError {
    #[error("there is no policy {USER:?}, which is needed")]
    NoUser,
    #[error("the policy {0:?} is unknown: there are {USER} and {IP}")]
    Unknown(String),
    #[error("the policy {0:?} is new: restart the server, because none of its rules uses it")]
    New(String),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Limits {
    /// Takes the policies of the flags or of the file.
    ///
    /// # Errors
    ///
    /// A text that says what to do if the file can't be used.
    pub(crate) fn new(args: &Args) -> Result<Self, Box<dyn Error>> {
        let by_hand = args.admin.admin.is_some();
        let policies = match &args.policies {
            Some(file) => {
                let Document { policies } = file.read().map_err(|error| file.unusable(error))?;
                check_names(&policies).map_err(|error| file.unusable(error))?;
                policies
            }
            None => {
                let user = args.quota.clone().named(USER);
                let user = args.ban.iter().cloned().fold(user, Policy::penalty);
                Policies::try_new([user].into_iter().chain(args.ip_quota().map(|it| it.named(IP))))?
            }
        };
        let limits = Self { policies: with_penalty(&policies, by_hand)?, by_hand };
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

    pub(crate) fn names(&self) -> Vec<String> {
        self.policies.all().iter().map(|policy| policy.name().to_owned()).collect()
    }

    /// Returns the policies as they are now.
    fn present(&self) -> Policies {
        Policies::new(self.policies.all().iter().map(|policy| Policy::clone(policy)))
    }

    /// Reads the policies of a file that is read again.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] if one is missing or new.
    fn checked(&self, Document { policies }: Document) -> Result<Policies, LimitsError> {
        check_names(&policies)?;
        if let Some(new) = policies.all().iter().find(|it| self.policies.get(it.name()).is_none()) {
            return Err(LimitsError::New(new.name().to_owned()));
        }
        Ok(with_penalty(&policies, self.by_hand)?)
    }

    /// Replaces all policies, and returns what has changed.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] if one is missing. Then nothing has changed.
    fn replace(&self, policies: Policies) -> Result<Vec<String>, LimitsError> {
        let changes = self.policies.reload(policies)?;
        Ok(changes.iter().map(PolicyChange::to_string).collect())
    }
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
