//! [`Nodes`]: which node of a Cluster has which slot.

use std::collections::HashMap;

use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use redis::{RedisResult, Value, from_redis_value_ref};

use super::connection::Connection;

/// Which node of a Cluster has which slot, as the Cluster said when it was last asked.
///
/// The nodes are numbered from 0 in the order of their slots. If a node does not refuse keys of another one, as it may be
/// with a proxy, none is known: a call that declares no keys could make logs in the wrong place.
#[derive(Default)]
pub(super) struct Nodes(ArcSwap<HashMap<Slot, usize>>);

impl Nodes {
    /// Returns the number of the node that has a Redis key, if it is known.
    pub(super) fn of(&self, name: &[u8]) -> Option<usize> {
        self.0.load().get(&Slot::for_key(name)).copied()
    }

    /// Asks the Cluster. `name` is the beginning of names that no key has.
    pub(super) async fn read(&self, connection: &mut Connection, name: &str) -> RedisResult<()> {
        let mut ranges: Vec<(u16, u16, Vec<u8>)> = Vec::new();
        let reply: Vec<Vec<Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await?;
        for range in &reply {
            // The first slot, the last one, the primary, and its replicas. A node is its address, port and identity.
            let [first, last, primary, ..] = &range[..] else { continue };
            let Value::Array(primary) = primary else { continue };
            let Some(id) = primary.get(2) else { continue };
            let (first, last) = (from_redis_value_ref(first)?, from_redis_value_ref(last)?);
            ranges.push((first, last, from_redis_value_ref(id)?));
        }
        ranges.sort_unstable();
        let (mut numbers, mut nodes) = (HashMap::new(), HashMap::new());
        for (first, last, id) in ranges {
            let next = numbers.len();
            let number = *numbers.entry(id).or_insert(next);
            nodes.extend((first..=last).filter_map(Slot::new).map(|slot| (slot, number)));
        }
        if !refuses_keys_of_others(&nodes, connection, name).await {
            nodes.clear();
        }
        self.0.store(nodes.into());
        Ok(())
    }
}

/// Returns whether a script meets an error if it uses a key of another node.
async fn refuses_keys_of_others(
    nodes: &HashMap<Slot, usize>,
    connection: &Connection,
    name: &str,
) -> bool {
    let node_of = |key: &String| nodes.get(&Slot::for_key(key));
    let mut keys = (0..1_000).map(|number| format!("{name}:{number}"));
    let Some(here) = keys.next() else { return false };
    let Some(elsewhere) = keys.find(|key| node_of(key) != node_of(&here)) else { return false };
    let mut probe = redis::cmd("EVAL");
    probe.arg("return redis.call('ZCARD', ARGV[1])").arg(0).arg(elsewhere);
    let mut node = connection.clone().at_node_of(here.as_bytes());
    let reply = probe.query_async::<Value>(&mut node).await;
    reply.is_err_and(|error| error.to_string().contains("non local key"))
}
