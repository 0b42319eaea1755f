//! The storm detector.

mod alerts;
mod detector;
mod lost_replies;
mod wrong_designs;
