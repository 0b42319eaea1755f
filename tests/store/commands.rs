//! The application's own commands on the connection of the store.

use crate::*;

const TIMEOUT: Duration = Duration::from_millis(300);

async fn commands(servers: RedisServers) -> RedisCommands {
    patient_store(servers).await.commands()
}

async fn get(commands: &RedisCommands, key: &str) -> Result<Option<u32>, StoreError> {
    commands.query(::redis::cmd("GET").arg(key)).await
}

#[tokio::test]
async fn commands_pipelines_and_scripts_reply() {
    let (redis, cluster) = (Redis::start().await, Cluster::start().await);
    let add = RedisScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1]) + ARGV[2]");
    for servers in [RedisServers::one(redis.url()).unwrap(), cluster.servers()] {
        let commands = commands(servers).await;
        // On a Cluster the first key routes: these are on all nodes.
        for number in 0..10 {
            let key = format!("{{tag-{number}}}:count");
            assert_eq!(get(&commands, &key).await.unwrap(), None);
            let mut both = ::redis::pipe();
            both.set(&key, 7).ignore().get(&key).exists(&key);
            let reply: (u32, bool) = commands.pipeline(&both).await.unwrap();
            assert_eq!(reply, (7, true));
            for expected in [10, 12] {
                let reply: u32 = commands.script(&add, &[&key], &[2, 1]).await.unwrap();
                assert_eq!(reply, expected);
                redis.run::<()>(&["SCRIPT", "FLUSH"]).await;
            }
        }
    }
    let commands = commands(RedisServers::one(redis.url()).unwrap()).await;
    let none = RedisScript::new("return #KEYS + #ARGV");
    let (keys, arguments): ([&str; 0], [&str; 0]) = ([], []);
    assert_eq!(commands.script::<u32>(&none, &keys, &arguments).await.unwrap(), 0);
}

#[tokio::test]
async fn commands_follow_a_slot_that_moves() {
    let cluster = Cluster::start().await;
    let commands = commands(cluster.servers()).await;
    let add = RedisScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    for from in 0..3 {
        let mut names = (0..).map(|name| format!("{{tag-{name}}}:count"));
        let key = names.find(|key| Cluster::owner(key) == from).unwrap();
        let (slot, to) = (Cluster::slot(&key), Cluster::next(&key));
        let mut change = ::redis::pipe();
        change.incr(&key, 1).get(&key);
        // On either node, by the new one or by the old one.
        cluster.begin_to_move(&key, to).await;
        assert_eq!(commands.script::<u32>(&add, &[&key], &[1]).await.unwrap(), 1);
        assert_eq!(get(&commands, &key).await.unwrap(), Some(1));
        assert_eq!(commands.pipeline::<(u32, u32)>(&change).await.unwrap(), (2, 2));
        cluster.move_slot(slot, from, to).await;
        let change = change.atomic();
        assert_eq!(commands.pipeline::<(u32, u32)>(change).await.unwrap(), (3, 3));
        cluster.move_slot(slot, to, from).await;
        assert_eq!(get(&commands, &key).await.unwrap(), Some(3));
    }
}

/// The key may be anywhere, or nowhere.
#[tokio::test]
async fn any_command_finds_a_node_that_is_well() {
    let mut cluster = Cluster::start().await;
    let commands = commands(cluster.servers()).await;
    for number in 0..6 {
        let key = format!("{{tag-{number}}}:x");
        let mut add = ::redis::cmd("XADD");
        commands.query::<()>(add.arg(&key).arg("*").arg("f").arg("v")).await.unwrap();
        let mut read = ::redis::cmd("XREAD");
        read.arg("COUNT").arg(1).arg("STREAMS").arg(&key).arg(0);
        commands.query::<::redis::Value>(&read).await.unwrap();
    }
    cluster.nodes[0].kill();
    eventually("another node replies", async || {
        commands.query::<::redis::Value>(&::redis::cmd("TIME")).await.is_ok()
    })
    .await;
    for _ in 0..5 {
        commands.query::<::redis::Value>(&::redis::cmd("TIME")).await.unwrap();
    }
}

/// Of two keys the node has one, and the other one is new.
#[tokio::test]
async fn pipeline_is_executed_once_while_its_slot_moves() {
    let cluster = Cluster::start().await;
    let commands = commands(cluster.servers()).await;
    let mut both = ::redis::pipe();
    both.incr("{tag}:a", 1).incr("{tag}:b", 1);
    commands.query::<()>(::redis::cmd("SET").arg("{tag}:a").arg(0)).await.unwrap();
    cluster.begin_to_move("{tag}:a", Cluster::next("{tag}:a")).await;
    let split = commands.pipeline::<(u32, u32)>(&both).await.unwrap_err();
    assert!(split.may_have_counted(), "{split:?}");
    assert_eq!(get(&commands, "{tag}:a").await.unwrap(), Some(1));
}

#[tokio::test]
async fn a_wrong_reply_is_an_error() {
    let redis = Redis::start().await;
    let commands = commands(RedisServers::one(redis.url()).unwrap()).await;
    redis.run::<()>(&["RPUSH", "list", "x"]).await;
    let refused = get(&commands, "list").await;
    assert!(matches!(refused, Err(StoreError::Refused { code, .. }) if code == "WRONGTYPE"));
    redis.run::<()>(&["SET", "text", "x"]).await;
    assert!(matches!(get(&commands, "text").await, Err(StoreError::Protocol { .. })));
    let mut both = ::redis::pipe();
    both.get("text").get("list");
    let refused = commands.pipeline::<(String, String)>(&both).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn no_command_waits_for_a_dead_redis() {
    let mut redis = Redis::start().await;
    let store = RedisStore::builder().response_timeout(TIMEOUT).connect(redis.url()).await.unwrap();
    let commands = store.commands();
    redis.signal("STOP");
    let asked = Instant::now();
    let late = get(&commands, "a").await.unwrap_err();
    assert!(matches!(late, StoreError::Timeout) && late.may_have_counted(), "{late:?}");
    assert!((TIMEOUT..10 * TIMEOUT).contains(&asked.elapsed()), "{:?}", asked.elapsed());

    redis.kill();
    while !matches!(get(&commands, "a").await, Err(StoreError::Unavailable)) {}
    let asked = Instant::now();
    for _ in 0..100 {
        let refused = get(&commands, "a").await;
        assert!(matches!(refused, Err(StoreError::Unavailable)), "{refused:?}");
    }
    assert!(asked.elapsed() < TIMEOUT, "the circuit breaker refuses at once");

    redis.restart().await;
    eventually("the store finds it again", async || get(&commands, "a").await.is_ok()).await;
}

/// A command waits for no more than a second for its turn, and is not sent then.
#[tokio::test]
async fn command_whose_turn_does_not_come_is_refused() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let commands = commands(RedisServers::one(proxy.url()).unwrap()).await;
    // 64 at a time.
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let mut increment = ::redis::cmd("INCR");
    increment.arg("runs");
    let calls = join_all((0..2_000).map(|_| commands.query::<u32>(&increment))).await;
    let made = calls.iter().filter(|it| it.is_ok()).count();
    let refused = calls.iter().filter(|it| matches!(it, Err(StoreError::Overloaded))).count();
    assert!(made >= 64 && refused > 0 && made + refused == 2_000, "{made}, {refused}");
    assert_eq!(get(&commands, "runs").await.unwrap(), Some(made as u32));
}

/// Its place is for those who still wait.
#[tokio::test]
async fn command_of_a_caller_that_has_gone_is_not_sent() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let commands = commands(RedisServers::one(proxy.url()).unwrap()).await;
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let others = join_all((0..64).map(|_| get(&commands, "others")));
    let gone = async {
        sleep(Duration::from_millis(20)).await;
        let mut increment = ::redis::cmd("INCR");
        let gone = commands.query::<u32>(increment.arg("runs"));
        assert!(timeout(Duration::from_millis(20), gone).await.is_err(), "it waits for its turn");
    };
    tokio::join!(others, gone);
    get(&commands, "others").await.unwrap();
    assert_eq!(redis.run::<Option<u32>>(&["GET", "runs"]).await, None);
}
