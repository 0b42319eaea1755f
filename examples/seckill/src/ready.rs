//! Whether anything can be sold, and what an operator does if not.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use crate::names::Sku;
use crate::routes::Shop;
use crate::stock::{KEYS, StockError};
use example_support::problem::Problem;

/// Why nothing is sold, of one SKU or at all.
#[derive(Serialize)]
pub(crate) struct Standstill {
    /// A sentence for an operator.
    reason: String,
    hint: String,
    /// Whether it is of all SKUs.
    #[serde(skip)]
    is_whole: bool,
}

/// Says how to go on without some SKUs that are lost, or without `all` that there are. New sales have no opening of their own
/// if others go on: their draws would be closed again although the secrets are known. The refunds stay: they are owed.
pub(crate) fn new_sales(prefix: &str, skus: &[&Sku], all: bool) -> String {
    // With `-c` any node of a Cluster will do.
    let unlink = |sku: &&Sku| {
        let keys = KEYS.iter().filter(|what| **what != "refunds");
        let keys: String = keys.map(|what| format!(" '{prefix}:{{{sku}}}:{what}'")).collect();
        format!("redis-cli -c UNLINK{keys}")
    };
    let opening = all.then(|| format!("redis-cli -c DEL {prefix}:opening"));
    let commands = skus.iter().map(unlink).chain(opening).collect::<Vec<_>>().join("; ");
    format!(
        "Stop all servers. Restore the keys {prefix}:{{SKU}}:* from a backup, or save what {prefix}:{{SKU}}:orders and :paid \
         still hold, because the new sale does not know who has paid, and begin one: `{commands}`, with -h, -p and -n as in \
         --redis. Then start them."
    )
}

impl Standstill {
    /// Looks at what this server has last seen of its SKUs. Asks nobody.
    pub(crate) fn of(shop: &Shop) -> Option<Self> {
        let Shop { stock, prefix, .. } = shop;
        let failed: Vec<_> =
            stock.iter().filter_map(|(sku, it)| Some((sku, it.trouble()?))).collect();
        let is_lost = |it: &&(_, _)| matches!(it.1, StockError::Lost(_));
        let lost: Vec<&Sku> = failed.iter().filter(is_lost).map(|(sku, _)| *sku).collect();
        // What is lost does not come back by itself, as others may.
        let (sku, error) = failed.iter().find(is_lost).or(failed.first())?;
        let (why, hint) = match error {
            StockError::Lost(_) => (
                error.to_string(),
                new_sales(prefix, &lost, lost.len() == stock.len()),
            ),
            error => (
                format!("the stock can't be read or changed. {error}"),
                "Is Redis up, reachable from this server, and ready for writes, with the replicas of --min-replicas? \
                 Is the login of --redis right, there or at the Sentinels, and has its user the rights in SECURITY.md? \
                 The log says what is wrong. Once that is mended, the sale goes on by itself."
                    .into(),
            ),
        };
        let is_whole = failed.len() == stock.len();
        let what = if is_whole { "Nothing".into() } else { format!("No {sku}") };
        // Redis's own messages may end with a full stop.
        let reason = format!("{what} is sold: {}.", why.trim_end_matches('.'));
        Some(Self { reason, hint, is_whole })
    }
}

/// For a balancer. While nothing is sold here, other servers may be better off. If only some SKUs are not, all others are
/// needed.
pub(crate) async fn readyz(State(shop): State<Arc<Shop>>) -> Result<String, Problem> {
    let Some(Standstill { reason, hint, is_whole }) = Standstill::of(&shop) else {
        return Ok("ready".into());
    };
    let what = format!("{reason} {hint}");
    if !is_whole {
        return Ok(format!("ready. {what}"));
    }
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Nothing is sold");
    Err(problem.detail(what))
}
