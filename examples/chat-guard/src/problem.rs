//! The problems that are this server's own.

use axum::http::StatusCode;

use example_support::problem::Problem;

pub(crate) fn no_user() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "/problems/no-user", "The request names no user")
        .detail("The header x-user-id is missing or empty.")
}

pub(crate) fn bad_user() -> Problem {
    let title = "The request does not name its user clearly";
    Problem::new(StatusCode::BAD_REQUEST, "/problems/bad-user", title)
        .detail("The header x-user-id must be there once, in UTF-8, and be at most 128 bytes long.")
}

pub(crate) fn bad_name() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "/problems/bad-name", "The path has no proper name")
        .detail("The name of a room or a user is 1 to 128 bytes of UTF-8.")
}

pub(crate) fn bad_message(why: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "/problems/bad-message", "The message is malformed")
        .detail(format!("The body must be {{\"text\": \"...\"}}, in UTF-8: {why}."))
}

pub(crate) fn too_long() -> Problem {
    let title = "The message is too long";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "/problems/message-too-long", title)
        .detail("The body may have 256 KiB.")
}

pub(crate) fn not_muted() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "/problems/not-muted", "The user is not muted")
}
