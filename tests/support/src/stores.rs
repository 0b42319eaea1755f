//! The library's stores on the servers of a test.

use std::time::Duration;

use tower_sliding_window::store::{RedisServers, RedisStoreBuilder};
use tower_sliding_window::{RedisStore, StoreError};

use crate::{Cluster, MASTER, Redis, Sentinels};

impl Redis {
    /// Makes a store with a connection of its own.
    pub async fn store(&self) -> RedisStore {
        patient().connect(self.url()).await.unwrap()
    }

    /// Makes a store without the deny cache.
    pub async fn store_without_deny_cache(&self) -> RedisStore {
        patient().deny_cache(false).connect(self.url()).await.unwrap()
    }
}

impl Cluster {
    /// Returns what a store connects to.
    pub fn servers(&self) -> RedisServers {
        RedisServers::cluster(self.urls()).unwrap()
    }
}

impl Sentinels {
    /// Returns what a store connects to.
    pub fn servers(&self) -> RedisServers {
        RedisServers::sentinel(self.urls(), MASTER).unwrap()
    }
}

/// Connects a store that waits for replies as long as a busy machine may need.
pub async fn patient_store<T>(servers: T) -> RedisStore
where
    T: TryInto<RedisServers>,
    StoreError: From<T::Error>,
{
    patient().connect(servers).await.unwrap()
}

/// Begins a store that waits for replies as long as a busy machine may need.
pub fn patient() -> RedisStoreBuilder {
    RedisStore::builder().response_timeout(Duration::from_secs(10))
}
