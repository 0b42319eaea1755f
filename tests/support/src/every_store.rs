//! Tests that hold on every store.

/// Makes tests of functions that take a store: in process under paused time, on Redis, and on Redis
/// behind the deny cache.
#[macro_export]
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(tower_sliding_window::MemoryStore::new()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let redis = $crate::Redis::start().await;
                super::$name(redis.store_without_deny_cache().await).await;
            })*
        }
        mod with_deny_cache {
            $(#[tokio::test]
            async fn $name() {
                let redis = $crate::Redis::start().await;
                super::$name(redis.store().await).await;
            })*
        }
    };
}
