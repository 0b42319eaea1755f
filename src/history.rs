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
//! A request has a line for each of its logs, that is one for each rule of a layer, and
//! [`admitted`](Record::admitted) is the decision of all rules together. So with several rules, replay one
//! policy at a time: filter by [`policy`](Record::policy) first. A request that another rule has denied is
//! a request of this policy too, and may be admitted in the replay.
//!
//! Each check of a request that waits is a line, so that six messages through
//! [`Limiter::until_admitted`](crate::Limiter::until_admitted) can be twelve lines: the denied checks and
//! the admissions. Filter by [`admitted`](Record::admitted) to have one line for each request, at the time
//! when it was admitted. The same is true of [`max_wait`](crate::SlidingWindowLayer::max_wait).
//!
//! [`examples/what_if.rs`] is a program that does this with a file. The lines have this form, of which
//! `policy` and `cost` may be left out. `time` is in seconds since the Unix epoch, to the microsecond:
//!
//! ```json
//! {"time":1790000000.123456,"policy":"user","key":"59c2d0e6b1f1f6c8e5b2f6d9a7c03e11","cost":1,"admitted":true}
//! ```
//!
//! [`examples/what_if.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/what_if.rs

mod record;
mod recorder;
mod replay;

pub use self::record::{ReadError, Record, read};
pub use self::recorder::{KeyForm, Recorded, Recorder};
pub use self::replay::{KeyTally, ReplayedDenial, Tally, WhatIf, what_if};
