//! [`PageQuery`]: the page of a list that an operator asks for, and the page as a response.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::StoreError;

use crate::problem::Problem;

/// The query `?cursor=...&limit=...` of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

impl PageQuery {
    /// Returns where the page begins, and about how many rows it is to have: up to `most`, and a tenth
    /// of that unless the query says it.
    ///
    /// # Errors
    ///
    /// A [`Problem`] of status 400 if the query names no page.
    pub fn read<C>(
        query: Result<Query<Self>, QueryRejection>,
        most: usize,
    ) -> Result<(C, usize), Problem>
    where
        C: FromStr<Err: Display> + Default,
    {
        let malformed = |why: &dyn Display| {
            let title = "The query names no page of the list";
            Problem::new(StatusCode::BAD_REQUEST, "bad-page", title).detail(format!(
                "It may be `limit`, from 1 to {most}, and `cursor`, the `next` of the page before: \
                 {why}."
            ))
        };
        let Query(Self { cursor, limit }) = query.map_err(|why| malformed(&why.body_text()))?;
        let limit = limit.unwrap_or(most / 10);
        if !(1..=most).contains(&limit) {
            return Err(malformed(&"the limit is out of range"));
        }
        let cursor = cursor.map_or(Ok(C::default()), |cursor| cursor.parse());
        Ok((cursor.map_err(|why| malformed(&why))?, limit))
    }
}

/// Returns a page of the list `name`, with the cursor of the next page if there is one.
pub fn page(name: &str, rows: Vec<Value>, next: Option<impl Display>) -> Json<Value> {
    let mut page = json!({ name: rows });
    if let Some(next) = next {
        page["next"] = next.to_string().into();
    }
    Json(page)
}

/// Says that this store has no list, if that is the error. `instead` is the route for one user.
pub fn no_page(error: StoreError, instead: &str) -> Problem {
    if !matches!(error, StoreError::Unsupported { .. }) {
        return error.into();
    }
    let title = "A Redis Cluster has no list of all users";
    Problem::new(StatusCode::NOT_IMPLEMENTED, "no-list", title)
        .detail(format!("Ask for one user: GET {instead}."))
}
