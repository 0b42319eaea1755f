//! The sale page, `index.html`, filled in once at the start.

use axum::response::Html;
use serde_json::json;

use crate::order::Sku;
use crate::user::UserFrom;

/// What `index.html` has in place of the sale's data.
const SLOT: &str = "\"SALE\"";

/// Tells the page the SKUs, and where a request carries the user id.
pub(crate) fn page<'a>(skus: impl Iterator<Item = &'a Sku>, user_from: &UserFrom) -> Html<String> {
    // Neither a SKU nor a name holds a character that could end the script element.
    let sale = json!({
        "skus": skus.collect::<Vec<_>>(),
        "userFrom": { "place": user_from.place, "name": user_from.name },
    });
    Html(include_str!("index.html").replace(SLOT, &sale.to_string()))
}
