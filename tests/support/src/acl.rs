//! The Redis user of SECURITY.md.

use std::collections::HashMap;

use redis::Value;

use crate::Redis;

/// The rules of SECURITY.md, one a command: for logs, for all else, for the programs, for a Cluster.
fn rules() -> Vec<String> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md")).unwrap();
    let block = page.split("```").find(|block| block.starts_with("text\nACL SETUSER")).unwrap();
    block.lines().skip(1).map(|rule| rule.replace(">PASSWORD", ">secret")).collect()
}

/// Which of the rules a user has.
#[derive(Clone, Copy)]
pub enum May {
    KeepLogs = 1,
    /// Do all that the crate does on one server.
    DoAll = 2,
    /// Do all that the programs in `examples/` do on one server.
    RunThePrograms = 3,
    /// Do all that the crate does on a Cluster.
    DoAllOnACluster = 4,
}

pub async fn make_user(redis: &Redis, may: May) -> String {
    let rules = rules();
    assert_eq!(rules.len(), 4);
    for rule in &rules[..may as usize] {
        redis.run::<()>(&rule.split_whitespace().collect::<Vec<_>>()).await;
    }
    redis.url().replace("redis://", "redis://limiter:secret@")
}

/// Checks that Redis has refused no command of its users.
pub async fn nothing_was_refused(redis: &Redis) {
    let log: Vec<HashMap<String, Value>> = redis.run(&["ACL", "LOG"]).await;
    let refused: Vec<_> = log.iter().map(|entry| (&entry["object"], &entry["context"])).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
