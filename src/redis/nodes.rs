//! [`Nodes`]: which node of a Cluster has which slot.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use redis::{ErrorKind, RedisResult, Value, from_redis_value_ref};

use super::connection::Connection;
use super::node::Node;

/// Which node of a Cluster has which slot, as the Cluster said when it was last asked.
///
/// The nodes are numbered from 0. If a node does not refuse keys of another one, as it may be with a proxy, none is known:
/// a call that declares no keys could make logs in the wrong place.
#[derive(Default)]
pub(super) struct Nodes(ArcSwap<Slots>);

type Slots = HashMap<Slot, Arc<Node>>;

impl Nodes {
    /// Returns the node that has a Redis key, if it is known.
    pub(super) fn of(&self, name: &[u8]) -> Option<Arc<Node>> {
        self.0.load().get(&Slot::for_key(name)).cloned()
    }

    /// Returns whether a node has slots.
    pub(super) fn has(&self, node: &Arc<Node>) -> bool {
        self.0.load().values().any(|it| Arc::ptr_eq(it, node))
    }

    /// Returns whether a node is silent.
    pub(super) fn is_one_silent(&self) -> bool {
        self.0.load().values().any(|node| node.is_silent())
    }

    /// Asks the Cluster. `name` is the beginning of names that no key has.
    pub(super) async fn read(&self, connection: &mut Connection, name: &str) -> RedisResult<()> {
        let reply: Vec<Vec<Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await?;
        let known = self.0.load_full();
        let mut nodes: HashMap<Vec<u8>, Arc<Node>> =
            known.values().map(|node| (node.id.clone(), node.clone())).collect();
        let mut slots = Slots::new();
        for range in &reply {
            // The first slot, the last one, the primary, and its replicas. A node is its address, port and identity.
            let [first, last, primary, ..] = &range[..] else { continue };
            let Value::Array(primary) = primary else { continue };
            let Some(id) = primary.get(2) else { continue };
            let (first, last): (u16, u16) =
                (from_redis_value_ref(first)?, from_redis_value_ref(last)?);
            let id: Vec<u8> = from_redis_value_ref(id)?;
            let is_free = |number: &usize| nodes.values().all(|node| node.number != *number);
            let number = (0..).find(is_free).unwrap_or_default();
            let node =
                nodes.entry(id).or_insert_with_key(|id| Node::new(number, id.clone()).into());
            slots.extend((first..=last).filter_map(Slot::new).map(|slot| (slot, node.clone())));
        }
        if known.is_empty() && !refuses_keys_of_others(&slots, connection, name).await {
            slots.clear();
        }
        self.0.store(slots.into());
        Ok(())
    }

    /// Waits for a reply of a node.
    ///
    /// # Errors
    ///
    /// If it has no slots any more, or another node replies in its place, because there is no connection to it.
    pub(super) async fn reply_of(
        &self,
        node: &Node,
        connection: &Connection,
        name: &str,
    ) -> RedisResult<()> {
        let is_there =
            |key: &String| self.of(key.as_bytes()).is_some_and(|it| it.number == node.number);
        match names(name).take(100_000).find(is_there) {
            Some(key) => read_key(connection, &key, &key).await.map(|_| ()),
            None => Err((ErrorKind::Client, "the node has no slots").into()),
        }
    }
}

/// Returns whether a script meets an error if it uses a key of another node.
async fn refuses_keys_of_others(slots: &Slots, connection: &Connection, name: &str) -> bool {
    let number = |key: &String| slots.get(&Slot::for_key(key)).map(|node| node.number);
    let mut keys = names(name);
    let Some(here) = keys.next() else { return false };
    let elsewhere = keys.take(1_000).find(|key| number(key) != number(&here));
    let Some(elsewhere) = elsewhere else { return false };
    let reply = read_key(connection, &here, &elsewhere).await;
    reply.is_err_and(|error| error.to_string().contains("non local key"))
}

/// Returns names that no key has, in all slots.
fn names(name: &str) -> impl Iterator<Item = String> {
    (0u32..).map(move |number| format!("{name}:{number}"))
}

/// Has a script read a key at the node that has a key `here`.
async fn read_key(connection: &Connection, here: &str, key: &str) -> RedisResult<Value> {
    let mut script = redis::cmd("EVAL");
    script.arg("return redis.call('ZCARD', ARGV[1])").arg(0).arg(key);
    script.query_async(&mut connection.clone().at_node_of(here.as_bytes())).await
}
