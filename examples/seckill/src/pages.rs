//! [`Asset`]: a file of a page, with the headers that keep other scripts out of it.

use axum::body::Bytes;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::json;

use crate::names::{Sku, UserFrom};

/// What a page may load: its own files. No other page may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// A file of a page. Clones share its text.
#[derive(Clone)]
pub(crate) struct Asset {
    content_type: &'static str,
    body: Bytes,
}

impl Asset {
    pub(crate) fn html(text: impl Into<Bytes>) -> Self {
        Self { content_type: "text/html; charset=utf-8", body: text.into() }
    }

    pub(crate) fn css(text: &'static str) -> Self {
        Self { content_type: "text/css; charset=utf-8", body: text.into() }
    }

    pub(crate) fn script(text: &'static str) -> Self {
        Self { content_type: "text/javascript; charset=utf-8", body: text.into() }
    }

    /// Returns what responds to a GET with this file.
    pub(crate) fn route<S: Clone + Send + Sync + 'static>(self) -> MethodRouter<S> {
        get(async || self)
    }
}

impl IntoResponse for Asset {
    fn into_response(self) -> Response {
        let headers = [
            (CONTENT_TYPE, self.content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            // A server of another version has other files.
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.body).into_response()
    }
}

/// Returns the page of the customers with the SKUs, and where a request carries the user id.
pub(crate) fn shop(skus: &[Sku], user_from: &UserFrom) -> Asset {
    // Neither a SKU nor a name holds a character that could end the script element.
    let sale = json!({
        "skus": skus,
        "userFrom": { "place": user_from.place, "name": user_from.name },
    });
    let page = include_str!("pages/shop.html").replace(">SALE<", &format!(">{sale}<"));
    Asset::html(page)
}
