//! What a part of the crate promises on both stores: each promise is a test in process, under paused
//! time, and one on Redis.

/// Runs promises, functions of a `World` beside them, on both stores.
macro_rules! contract_tests {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::World::in_process()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::World::on_redis().await).await;
            })*
        }
    };
}
pub(crate) use contract_tests;
