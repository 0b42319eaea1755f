//! The Redis user of the README.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use crate::redis_process::RedisProcess;

/// The rules of the README, one a command: for windows, for all else, for a Cluster.
fn rules() -> Vec<String> {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let block = readme.split("```").find(|block| block.starts_with("text\nACL SETUSER")).unwrap();
    let lines = block.lines().skip(1).filter(|line| !line.starts_with('#'));
    let rules: String = lines.collect::<Vec<_>>().join(" ").replace(">PASSWORD", ">secret");
    rules.split("ACL").skip(1).map(|rule| format!("ACL{rule}")).collect()
}

/// Which of the rules a user has.
#[derive(Clone, Copy)]
pub enum May {
    KeepWindows = 1,
    DoAll = 2,
    DoAllOnACluster = 3,
}

/// Makes the user, and returns the URL for them.
pub async fn make_user(redis: &RedisProcess, may: May) -> String {
    let rules = rules();
    assert_eq!(rules.len(), 3);
    for rule in &rules[..may as usize] {
        redis.run::<()>(&rule.split_whitespace().collect::<Vec<_>>()).await;
    }
    redis.url().replace("redis://", "redis://limiter:secret@")
}
