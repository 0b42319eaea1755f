//! [`View`]: who has which slot of a Cluster, as a node says.

use std::collections::BTreeSet;

use redis::{RedisResult, Value};

use super::connection::{Address, Connection};
use super::reply::read;

/// What a node says about the Cluster.
#[derive(Clone, Default, PartialEq)]
pub(super) struct View {
    /// The first and the last slot of each range, and its primary. None if the node serves nobody: the others may have left
    /// it behind.
    pub(super) ranges: Vec<(u16, u16, Primary)>,
    /// The identities of all nodes, also of the replicas.
    pub(super) ids: BTreeSet<String>,
}

/// The address of a node, and its identity.
pub(super) type Primary = (Address, Option<String>);

impl View {
    /// Asks a node.
    pub(super) async fn ask(connection: &mut Connection) -> RedisResult<Self> {
        let mut commands = redis::pipe();
        commands.cmd("CLUSTER").arg("SLOTS");
        // A proxy may not know it.
        commands.cmd("CLUSTER").arg("INFO").ignore_errors();
        let (slots, info): (RedisResult<Vec<Vec<Value>>>, RedisResult<String>) =
            commands.query_async(connection).await?;
        let mut view = Self::of(&slots?, &connection.address.0);
        if info.is_ok_and(|info| info.contains("cluster_state:fail")) {
            view.ranges.clear();
        }
        Ok(view)
    }

    /// Reads the reply of a node to `CLUSTER SLOTS`. `host` is its own.
    fn of(ranges: &[Vec<Value>], host: &str) -> Self {
        let mut all = Self::default();
        for range in ranges {
            for node in range.iter().skip(2) {
                all.ids.extend(node.as_sequence().and_then(id));
            }
            all.ranges.extend(Self::range_of(range, host));
        }
        all.ranges.sort();
        all
    }

    /// Reads a range, unless the address of its node is not known.
    fn range_of(range: &[Value], host: &str) -> Option<(u16, u16, Primary)> {
        // The first slot, the last one, the primary, and its replicas.
        let [first, last, Value::Array(primary), ..] = range else { return None };
        let [named, port, ..] = &primary[..] else { return None };
        let named: Option<String> = read(named).ok()?;
        let host = named.filter(|it| !it.is_empty()).unwrap_or_else(|| host.to_owned());
        let address = (host, read(port).ok()?);
        let is_known = address.0 != "?";
        is_known.then_some((read(first).ok()?, read(last).ok()?, (address, id(primary))))
    }
}

/// Returns the identity of a node of a range.
fn id(node: &[Value]) -> Option<String> {
    node.get(2).and_then(|id| read(id).ok())
}
