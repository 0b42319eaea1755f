//! The files of the pages, with the headers that keep other scripts out of them.

use axum::Router;
use axum::body::Bytes;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::routing::get;
use serde_json::json;

use crate::names::Sku;

/// What a page may load: its own files. No other page may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Returns the live page, which holds no data, so that it needs no token.
pub(crate) fn live() -> Router {
    let script = include_str!("pages/live.js");
    page(include_str!("pages/live.html"), include_str!("pages/live.css"), "/live.js", script)
}

/// Returns the page of the customers, with the SKUs.
pub(crate) fn shop(skus: &[&Sku]) -> Router {
    // No SKU holds a character that could end the script element.
    let sale = json!({ "skus": skus });
    let html = include_str!("pages/shop.html").replace(">SALE<", &format!(">{sale}<"));
    page(html, include_str!("pages/shop.css"), "/shop.js", include_str!("pages/shop.js"))
}

fn page(html: impl Into<Bytes>, css: &'static str, name: &str, script: &'static str) -> Router {
    let file = |content_type: &'static str, body: Bytes| {
        let headers = [
            (CONTENT_TYPE, content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            // A server of another version has other files.
            (CACHE_CONTROL, "no-cache"),
        ];
        get(async move || (headers, body))
    };
    Router::new()
        .route("/", file("text/html; charset=utf-8", html.into()))
        .route(&name.replace(".js", ".css"), file("text/css; charset=utf-8", css.into()))
        .route(name, file("text/javascript; charset=utf-8", script.into()))
}
