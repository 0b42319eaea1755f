//! What the tests of tower-sliding-window and of its applications share.
//!
//! Everything runs on loopback. Each process that a value starts is killed when the value is
//! dropped, and its files go with it.

pub mod acl;
mod checks;
pub mod clock;
mod cluster;
mod eventually;
mod every_store;
pub mod fault;
pub mod load;
pub mod policy_file;
mod process;
pub mod program;
pub mod proxy;
pub mod raw_client;
pub mod recorder;
mod redis_server;
pub mod requests;
mod sentinel;
pub mod server_process;
mod stores;
pub mod strikes;
mod stub_store;
pub mod tls;
pub mod warnings;
mod worker;

pub use checks::{admit, retry_after};
pub use cluster::Cluster;
pub use eventually::eventually;
pub use process::Process;
pub use redis_server::{Redis, free_port};
pub use sentinel::{MASTER, Sentinel, Sentinels};
pub use stores::{patient, patient_store};
pub use stub_store::StubStore;
pub use worker::Worker;
