//! The live page of the admin listener: what the server decides, as it decides.

mod facts;
mod meter;
mod routes;
mod sampler;

pub(crate) use self::facts::{Source, StoreKind};
pub(crate) use self::meter::{Meter, count, mark_passed};
pub(crate) use self::routes::{pages, routes};
pub(crate) use self::sampler::Sampler;
