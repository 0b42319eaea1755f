//! Whether anything can be sold, and what an operator does if not.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use crate::routes::Shop;
use crate::stock::StockError;
use example_support::problem::Problem;

/// Why nothing is sold, of one SKU or at all.
#[derive(Serialize)]
pub(crate) struct Standstill {
    /// A sentence for an operator.
    reason: String,
    hint: String,
}

impl Standstill {
    /// Looks at what this server has last seen of its SKUs and of the opening. Asks nobody.
    pub(crate) fn of(shop: &Shop) -> Option<Self> {
        let Shop { stock, skus, terms, prefix, .. } = shop;
        let opening = terms.opening.trouble().map(|error| Self {
            reason: format!("Nothing is sold: the sale can't open. {error}."),
            hint: format!(
                "If the key {prefix}:opening holds no time, `redis-cli DEL {prefix}:opening` lets the servers \
                 write it again."
            ),
        });
        let failed: Vec<_> =
            skus.iter().filter_map(|sku| Some((sku, stock.trouble(sku)?))).collect();
        let what =
            |sku| if failed.len() == skus.len() { "Nothing".into() } else { format!("No {sku}") };
        let of_stock = failed.first().map(|(sku, error)| match error {
            StockError::Lost(_) => Self {
                reason: format!("{} is sold: Redis has lost the stock of {sku}.", what(sku)),
                hint: format!(
                    "Stop all servers. Restore the keys {prefix}:{{{sku}}}:* from a backup, or begin a new sale: \
                     `redis-cli --scan --pattern '{prefix}:{{{sku}}}:*' | xargs redis-cli DEL; redis-cli DEL \
                     {prefix}:opening`. Then start them."
                ),
            },
            error => Self {
                reason: format!("{} is sold: the stock can't be read or changed. {error}.", what(sku)),
                hint: "Is Redis up, reachable from this server, and ready for writes, with the replicas of \
                       --min-replicas? Once it is, the sale goes on by itself."
                    .into(),
            },
        });
        of_stock.or(opening)
    }
}

/// For a balancer. While nothing is sold here, other servers may be better off.
pub(crate) async fn readyz(State(shop): State<Arc<Shop>>) -> Result<&'static str, Problem> {
    let Some(Standstill { reason, hint }) = Standstill::of(&shop) else { return Ok("ready") };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Nothing is sold");
    Err(problem.detail(format!("{reason} {hint}")))
}
