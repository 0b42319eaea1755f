//! The draw: who comes when in a fair sale, the tickets of those whose turn it is, and what its users see.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::names::{Sku, UserId};
use crate::routes::{Answer, PathText, Shop, whole_milliseconds};
use crate::stock::{Call, OnSale, Outcome, Reply, StockError};
use example_support::problem::Problem;

/// What is kept in place of a seed if a SKU goes to who comes first.
pub(crate) const FIRST_COME: &str = "first-come";

const TICKET: &str = "x-seckill-ticket";
/// How long it may take, for each user in line, until all have asked who can have news at one time.
const RUSH: Duration = Duration::from_micros(100);

/// The secrets of the draw of one SKU. All servers have the same, from one seed.
pub(crate) struct Draw {
    /// Decides the places. Clients see its hash before the opening, and itself afterwards: nobody can have chosen
    /// it to suit the entries.
    secret: [u8; 32],
    ticket_key: [u8; 32],
}

impl Draw {
    /// Makes a seed of 244 random bits.
    pub(crate) fn seed() -> String {
        [(); 2].map(|()| Uuid::new_v4().simple().to_string()).concat()
    }

    /// Makes the draw of a seed, or none if the SKU goes to who comes first.
    pub(crate) fn of(kept: &str) -> Option<Self> {
        let key = |purpose| hmac(kept.as_bytes(), purpose);
        (kept != FIRST_COME).then(|| Self { secret: key("draw"), ticket_key: key("ticket") })
    }

    pub(crate) fn secret(&self) -> String {
        hex(self.secret)
    }

    pub(crate) fn commitment(&self) -> String {
        hex(Sha256::digest(self.secret))
    }

    /// Returns the place of a user who enters before the opening: the lowest comes first.
    pub(crate) fn score(&self, user: &UserId) -> u64 {
        let hash = hmac(&self.secret, user.as_str());
        hash[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte)) >> 12
    }

    /// Returns the ticket of a turn that ends then, in microseconds since 1970.
    pub(crate) fn ticket(&self, sku: &Sku, user: &UserId, end: u64) -> String {
        let hash = hmac(&self.ticket_key, &format!("{sku}|{}|{end}", user.as_str()));
        format!("{end}.{}", hex(hash))
    }

    /// Returns when the turn of a ticket ends, if it is a ticket of this user for this SKU.
    pub(crate) fn check(&self, sku: &Sku, user: &UserId, ticket: &str) -> Option<u64> {
        let end = ticket.split_once('.')?.0.parse().ok()?;
        let real = self.ticket(sku, user, end);
        bool::from(real.as_bytes().ct_eq(ticket.as_bytes())).then_some(end)
    }
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.chain_update(text).finalize().into_bytes().into()
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A ticket that is good until the turn ends, in microseconds since 1970.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(pub(crate) u64);

/// Turns away orders in a draw that have no ticket, before anything counts them or asks Redis.
pub(crate) async fn with_ticket(
    State(shop): State<Arc<Shop>>,
    path: PathText,
    user: Result<UserId, Problem>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    // The limit turns away who is nobody.
    if let (Ok(OnSale { sku, draw: Some(draw), .. }), Ok(user)) = (shop.sku(path), user) {
        let ticket = request.headers().get(TICKET).and_then(|it| it.to_str().ok());
        // Whether the turn has ended, the store decides.
        let end = ticket.and_then(|it| draw.check(sku, &user, it)).ok_or_else(|| {
            Problem::new(StatusCode::FORBIDDEN, "no-ticket", "It is not your turn").detail(format!(
                "Enter by POST /seckill/{sku}/entries, and send the ticket of your turn."
            ))
        })?;
        request.extensions_mut().insert(Ticket(end));
    }
    Ok(next.run(request).await)
}

pub(crate) async fn enter(
    State(shop): State<Arc<Shop>>,
    user: UserId,
    path: PathText,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let on_sale = known(&shop, path)?;
    let draw = on_sale.draw.as_ref().ok_or_else(|| {
        let title = "This SKU goes to who comes first";
        Problem::new(StatusCode::NOT_FOUND, "no-draw", title)
    })?;
    let call = Call::Enter { user: user.as_str(), place: draw.score(&user) };
    let reply = on_sale.call(call).await.map_err(StockError::of_a_change)?;
    Ok((StatusCode::ACCEPTED, Json(shown(&shop, on_sale, &user, &reply))))
}

pub(crate) async fn show(State(shop): State<Arc<Shop>>, user: UserId, path: PathText) -> Answer {
    let on_sale = known(&shop, path)?;
    let reply = on_sale.call(Call::Entry { user: user.as_str() }).await?;
    Ok(Json(shown(&shop, on_sale, &user, &reply)))
}

fn known(shop: &Shop, path: PathText) -> Result<&OnSale, Problem> {
    let found = shop.sku(path)?;
    // A seed that Redis has lost may be another one there now.
    found.level().map_err(StockError::of_a_change)?;
    Ok(found)
}

fn shown(shop: &Shop, on_sale: &OnSale, user: &UserId, reply: &Reply) -> Value {
    let left = reply.until(reply.number).map(whole_milliseconds);
    let (sku, draw) = (&on_sale.sku, on_sale.draw.as_ref());
    let level = on_sale.level().unwrap_or_default();
    let outcome = if reply.outcome == Outcome::Paid { Outcome::Ordered } else { reply.outcome };
    // Not all at once, and nobody sleeps through half a turn.
    let rush = (RUSH * level.entries).max(Duration::from_secs(2)).min(shop.terms.turn / 2);
    let mut shown = json!({
        "sku": sku,
        "state": outcome,
        "commitment": draw.map(Draw::commitment),
        "secret": shop.secret(draw),
        "again_in_ms": null,
    });
    match reply.outcome {
        Outcome::Entered => {
            shown["draws_in_ms"] = left.into();
            let wait = reply.until(reply.number).unwrap_or_default() + rush.mul_f64(chance());
            shown["again_in_ms"] = whole_milliseconds(wait).into();
        }
        Outcome::Turn => {
            shown["ticket"] = draw.map(|it| it.ticket(sku, user, reply.number)).into();
            shown["turn_ends_in_ms"] = left.into();
        }
        Outcome::Waiting => {
            // The pieces that can still come, and how long one user can hold each of them. The turn comes by then if
            // those before use all their time and leave a piece.
            let pieces = level.stock.saturating_sub(level.paid).max(1);
            let rounds = reply.number.div_ceil(pieces.into());
            let held = shop.terms.turn + shop.terms.pay_within;
            shown["place"] = reply.number.into();
            shown["estimate_ms"] = whole_milliseconds(held).saturating_mul(rounds).into();
            // There can be a turn for this user when one of those that run, or a time to pay, has ended for each
            // user until this one. Those that begin from now on, turns and orders, end later than this:
            let next = shop.terms.pay_within.min(shop.terms.turn);
            let wait = reply.until(reply.news_us).map_or(next, |news| news.min(next))
                + rush.mul_f64(chance());
            shown["again_in_ms"] = whole_milliseconds(wait.max(rush / 2)).into();
        }
        Outcome::Ordered | Outcome::Paid => {
            shown["order_id"] = format!("{sku}.{}", reply.order).into();
            shown["paid"] = (reply.outcome == Outcome::Paid).into();
            shown["pay_in_ms"] = left.into();
        }
        _ => {}
    }
    shown
}

/// Returns a random number from 0 to 1, so that users do not ask all at the same time.
fn chance() -> f64 {
    Uuid::new_v4().as_u128() as u32 as f64 / f64::from(u32::MAX)
}
