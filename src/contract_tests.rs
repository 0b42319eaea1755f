//! [`contract_tests`]: runs tests on both stores, in process under paused time and on Redis.

/// Makes two tests of each function. The function takes a `World`, which the calling module defines.
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
