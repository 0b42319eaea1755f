//! [`Nodes`]: which node of a Cluster has which slot.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use redis::{ErrorKind, RedisResult, Value, from_redis_value_ref};

use super::connection::Connection;
use super::health::Health;
use super::node::Node;

/// Which node of a Cluster has which slot, as the Cluster said when it was last asked.
///
/// The nodes are numbered from 0. If a node does not refuse keys of another one, as it may be with a proxy, none is known:
/// a call that declares no keys could make logs in the wrong place.
#[derive(Default)]
pub(super) struct Nodes(ArcSwap<Slots>);

#[derive(Default)]
struct Slots {
    nodes: Vec<Arc<Node>>,
    nodes_of: HashMap<Slot, Arc<Node>, RandomState>,
}

impl Slots {
    fn node_of(&self, name: &[u8]) -> Option<&Arc<Node>> {
        self.nodes_of.get(&Slot::for_key(name))
    }

    fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.iter().any(|it| Arc::ptr_eq(it, node))
    }
}

impl Nodes {
    /// Returns the node that has a Redis key, if it is known.
    pub(super) fn of(&self, name: &[u8]) -> Option<Arc<Node>> {
        self.0.load().node_of(name).cloned()
    }

    /// Returns whether a node has slots.
    pub(super) fn has(&self, node: &Arc<Node>) -> bool {
        self.0.load().has(node)
    }

    /// Returns whether a node is silent.
    pub(super) fn is_one_silent(&self) -> bool {
        self.0.load().nodes.iter().any(|node| node.is_silent())
    }

    /// Asks the Cluster. `name` is the beginning of names that no key has.
    ///
    /// Returns whether a node has no slots any more. Another one has taken its place, maybe without the last writes, and no
    /// connection need have broken. So that is a loss of data, of which `health` knows before any call is for the other
    /// node.
    pub(super) async fn read(
        &self,
        connection: &mut Connection,
        name: &str,
        health: &Health,
    ) -> RedisResult<bool> {
        let reply: Vec<Vec<Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await?;
        let known = self.0.load_full();
        let mut nodes = known.nodes.clone();
        let mut slots = Slots::default();
        for range in &reply {
            // The first slot, the last one, the primary, and its replicas. A node is its address, port and identity.
            let [first, last, primary, ..] = &range[..] else { continue };
            let Value::Array(primary) = primary else { continue };
            let Some(id) = primary.get(2) else { continue };
            let (first, last): (u16, u16) =
                (from_redis_value_ref(first)?, from_redis_value_ref(last)?);
            let id: Vec<u8> = from_redis_value_ref(id)?;
            let node = nodes.iter().find(|node| node.id == id).cloned().unwrap_or_else(|| {
                let is_free = |number: &usize| nodes.iter().all(|node| node.number != *number);
                let node = Arc::new(Node::new((0..).find(is_free).unwrap_or_default(), id));
                nodes.push(node.clone());
                node
            });
            if !slots.has(&node) {
                slots.nodes.push(node.clone());
            }
            let range = (first..=last).filter_map(Slot::new);
            slots.nodes_of.extend(range.map(|slot| (slot, node.clone())));
        }
        if known.nodes.is_empty() && !refuses_keys_of_others(&slots, connection, name).await {
            slots = Slots::default();
        }
        let is_one_gone = known.nodes.iter().any(|node| !slots.has(node));
        if is_one_gone {
            health.record_loss();
        }
        self.0.store(slots.into());
        Ok(is_one_gone)
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
    let number = |key: &String| slots.node_of(key.as_bytes()).map(|node| node.number);
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
