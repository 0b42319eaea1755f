//! [`Limits`]: the policies of users and addresses. Those of the flags hold until an operator changes their
//! quotas, on every server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use ipnet::IpNet;
use serde_json::{Value, json};
use tower_sliding_window::key::{client_ip, peer_ip};
use tower_sliding_window::{
    Key, KeyError, KeyExtractor, Penalty, Policy, PolicyError, PolicyHandle, Quota,
    SlidingWindowLayer,
};

use crate::args::Args;
use crate::draw::Ticket;
use example_support::policies::{PolicySet, SharedPolicies};

/// The policy of users.
pub(crate) const USER: &str = "user";
const IP: &str = "ip";
const ACCOUNTS: &str = "accounts";
/// How often an address may look up orders and entries on each server.
const READS_OF_ADDRESS: Quota = Quota::per_minute(1000);
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
    /// Those that an operator can change: of users, and of addresses that are in none of the networks.
    changing: Vec<(Policy, PolicyHandle)>,
    /// The networks of `--nat`.
    nets: Arc<[IpNet]>,
    /// Those of addresses that are in none of these networks, and then those of each network.
    networks: Vec<Network>,
}

/// The policies of the addresses of a network.
pub(crate) struct Network {
    /// Finds an address that is here.
    here: Arc<dyn KeyExtractor>,
    pub(crate) ip: Option<PolicyHandle>,
    accounts: Option<PolicyHandle>,
    /// Kept in this process.
    pub(crate) reads: Option<PolicyHandle>,
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
        let user = PolicyHandle::try_new(user)?;
        let nets: Arc<[IpNet]> = args.nat.iter().map(|(net, _)| *net).collect();
        let address = args.trust_proxy.clone().map_or_else(peer_ip, client_ip);
        let of_network = |(number, users): (usize, Option<u32>)| {
            let (nets, address) = (Arc::clone(&nets), address.clone());
            // A request with a ticket passes: it has entered once.
            let here = move |parts: &Parts| {
                if parts.extensions.get::<Ticket>().is_some() {
                    return Err(KeyError::NotApplicable);
                }
                let key = address.extract(parts)?;
                let is_here = network_of(&nets, &key) == number;
                if is_here { Ok(key) } else { Err(KeyError::NotApplicable) }
            };
            let (users, usual) =
                users.zip(args.accounts).map_or((1, 1), |(users, usual)| (users, usual.limit()));
            let more = |quota: &Quota| {
                Quota::new(quota.limit().saturating_mul(users).div_ceil(usual), quota.window())
            };
            let ip = args.ip_quota.as_ref().map(|usual| {
                let quotas = usual.quotas().iter().map(more);
                PolicyHandle::try_new(quotas.fold(Policy::new(IP), Policy::quota).keep_for(KEPT))
            });
            let reads = Policy::new("read-ip").quota(more(&READS_OF_ADDRESS));
            let reads = ip.as_ref().map(|_| PolicyHandle::new(reads));
            let accounts = args.accounts.as_ref().map(|usual| {
                PolicyHandle::new(Policy::new(ACCOUNTS).quota(more(usual)).distinct())
            });
            Ok(Network { here: Arc::new(here), ip: ip.transpose()?, accounts, reads })
        };
        let users = args.nat.iter().map(|(_, users)| Some(*users));
        let networks = [None].into_iter().chain(users).enumerate().map(of_network);
        let networks = networks.collect::<Result<Vec<_>, PolicyError>>()?;
        let changing = [&user].into_iter().chain(&networks[0].ip);
        let changing = changing.map(|it| (Policy::clone(&it.get()), it.clone())).collect();
        Ok(Self { changing, nets, networks })
    }

    /// Adds rules of addresses, with some policies of their networks.
    pub(crate) fn of_addresses(
        &self,
        layer: SlidingWindowLayer,
        policy: impl Fn(&Network) -> &Option<PolicyHandle>,
    ) -> SlidingWindowLayer {
        self.networks.iter().fold(layer, |layer, network| match policy(network) {
            Some(policy) => layer.rule(policy, network.here.clone()),
            None => layer,
        })
    }

    /// Adds the rules about how many users of an address may enter.
    pub(crate) fn of_accounts(
        &self,
        layer: SlidingWindowLayer,
        user: &Arc<dyn KeyExtractor>,
    ) -> SlidingWindowLayer {
        self.networks.iter().fold(layer, |layer, network| match &network.accounts {
            Some(accounts) => layer.rule_distinct(accounts, network.here.clone(), user.clone()),
            None => layer,
        })
    }

    /// Returns the policy of that name that holds for a user or an address.
    pub(crate) fn of(&self, name: &str, key: &Key) -> Option<PolicyHandle> {
        let Network { ip, accounts, .. } = &self.networks[network_of(&self.nets, key)];
        match name {
            USER => Some(self.user()),
            IP => ip.clone(),
            ACCOUNTS => accounts.clone(),
            _ => None,
        }
    }

    pub(crate) fn user(&self) -> PolicyHandle {
        self.changing[0].1.clone()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.changing.iter().any(|(policy, _)| policy.name() == name)
    }

    /// Returns what each policy is set to. What operators have set for a policy that this server does not
    /// have may be for another server.
    fn with(&self, changes: &Changes) -> Result<Vec<Policy>, PolicyError> {
        let set = |(base, _): &(Policy, PolicyHandle)| match changes.get(base.name()) {
            // Without a name it replaces the quotas only: the penalty stays.
            Some(quotas) => Ok(quotas.parse::<Policy>()?.keep_for(KEPT)),
            None => Ok(base.clone()),
        };
        self.changing.iter().map(set).collect()
    }
}

impl PolicySet for Limits {
    type Document = Changes;
    type Error = PolicyError;

    fn check(&self, changes: &Changes) -> Result<(), PolicyError> {
        self.with(changes).map(drop)
    }

    fn apply(&self, changes: &Changes) -> Result<(), PolicyError> {
        for ((_, handle), policy) in self.changing.iter().zip(self.with(changes)?) {
            let change = handle.set(policy)?;
            if change.to_string() != change.name() {
                tracing::info!(%change, "quotas have changed");
            }
        }
        Ok(())
    }
}

/// Returns the number of the first network that has this address, counted from 1, or 0.
fn network_of(nets: &[IpNet], address: &Key) -> usize {
    // The text is an IPv4 address or an IPv6 network.
    let text = str::from_utf8(address.as_bytes()).unwrap_or_default();
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let holds = |it: &IpNet| net.as_ref().is_ok_and(|net| it.contains(net));
    nets.iter().position(holds).map_or(0, |at| at + 1)
}

/// Shows the policies in force, and the version of what operators have set.
pub(crate) async fn shown(fleet: &Fleet) -> Value {
    let policies = fleet.set().changing.iter().map(|(_, handle)| {
        let policy = handle.get();
        let penalty = policy.get_penalty().map(ToString::to_string);
        json!({ "name": policy.name(), "quotas": policy.to_string(), "penalty": penalty })
    });
    let policies: Vec<Value> = policies.collect();
    let present = fleet.present().await;
    json!({ "policies": policies, "version": present.version, "stale": present.is_stale })
}
