//! The pages as a person sees them, in a real browser.

mod chrome;
mod shop;

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");
