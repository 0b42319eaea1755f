//! [`Nodes`]: which node of a Cluster has which slot.

use std::collections::HashMap;

use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use redis::{RedisResult, Value, from_redis_value_ref};

use super::connection::Connection;

/// Which node of a Cluster has which slot, as the Cluster said when it was last asked.
///
/// The nodes are numbered from 0 in the order of their slots.
#[derive(Default)]
pub(super) struct Nodes(ArcSwap<HashMap<Slot, usize>>);

impl Nodes {
    /// Returns the number of the node that has a Redis key, if it is known.
    pub(super) fn of(&self, name: &[u8]) -> Option<usize> {
        self.0.load().get(&Slot::for_key(name)).copied()
    }

    /// Asks the Cluster.
    pub(super) async fn read(&self, connection: &mut Connection) -> RedisResult<()> {
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
        self.0.store(nodes.into());
        Ok(())
    }
}
