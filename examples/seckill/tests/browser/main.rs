//! The pages as a person sees them, in a real browser.

mod chrome;
mod live;
mod offenders;
mod policies;
mod screenshots;
mod shop;

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");

/// The token of the admin listener.
const TOKEN: &str = "0123456789abcdef-the-token";
/// The flags of the admin listener.
const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
