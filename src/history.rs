//! Recorded decisions, and what other quotas would have decided about them.
//!
//! A [`Recorder`] writes each decision of a store as a line of JSON, in a thread of its own. [`read`] reads
//! the lines, and [`what_if`] replays them under another policy:
//!
//! ```
//! use tower_sliding_window::history::{KeyForm, Recorder, read, what_if};
//! use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("decisions.jsonl");
//! // In the service: File::options().append(true).create(true).open("decisions.jsonl")?
//! let recorder = Recorder::new(std::fs::File::create(&path)?, KeyForm::hashed())?;
//! let limiter = Limiter::new(Quota::per_minute(5), recorder.record(MemoryStore::new()));
//! for _ in 0..3 {
//!     assert!(limiter.check("alice").await?.is_admitted());
//! }
//! recorder.flush();
//!
//! // Later: how many would two a minute have denied?
//! let file = std::io::BufReader::new(std::fs::File::open(&path)?);
//! let history = read(file).collect::<Result<Vec<_>, _>>()?;
//! let replayed = what_if(&Policy::from(Quota::per_minute(2)), history);
//! assert_eq!((replayed.tally.requests, replayed.tally.newly_denied), (3, 1));
//! assert_eq!(replayed.denials[0].key, replayed.keys[0].key);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/what_if.rs` is a program that does this with a file. The lines have this form, of which
//! `policy` and `cost` may be left out. `time` is in seconds since the Unix epoch, to the microsecond:
//!
//! ```json
//! {"time":1790000000.123456,"policy":"user","key":"59c2d0e6b1f1f6c8e5b2f6d9a7c03e11","cost":1,"admitted":true}
//! ```

mod record;
mod recorder;
mod replay;

pub use self::record::{ReadError, Record, read};
pub use self::recorder::{KeyForm, Recorded, Recorder};
pub use self::replay::{KeyTally, ReplayedDenial, Tally, WhatIf, what_if};
