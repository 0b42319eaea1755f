//! [`View`]: who has which slot of a Cluster, as a node says.

use std::collections::BTreeSet;

use redis::{Cmd, Value};

use super::connection::Address;
use super::reply::read;
use crate::error::StoreError;

/// What a node says about the Cluster.
#[derive(Default, PartialEq)]
pub(super) struct View {
    /// The first and the last slot of each range, and its primary.
    pub(super) ranges: Vec<(u16, u16, Primary)>,
    /// The identities of all nodes, also of the replicas.
    pub(super) ids: BTreeSet<String>,
}

/// The address of a node, and its identity.
pub(super) type Primary = (Address, Option<String>);

impl View {
    /// Returns the command that asks a node.
    pub(super) fn command() -> Cmd {
        redis::cmd("CLUSTER").arg("SLOTS").clone()
    }

    /// Reads the reply of a node to `CLUSTER SLOTS`. `host` is its own.
    pub(super) fn of(reply: &Value, host: &str) -> Result<Self, StoreError> {
        let reply: Vec<Vec<Value>> = read(reply)?;
        let mut all = Self::default();
        let id = |node: &[Value]| node.get(2).and_then(|id| read::<String>(id).ok());
        for range in &reply {
            for node in range.iter().skip(2) {
                all.ids.extend(node.as_sequence().and_then(id));
            }
            // The first slot, the last one, the primary, and its replicas.
            let [first, last, Value::Array(primary), ..] = &range[..] else { continue };
            let [named, port, ..] = &primary[..] else { continue };
            let named: Option<String> = read(named)?;
            let address = match named.as_deref() {
                // A node whose address is not known.
                Some("?") => continue,
                None | Some("") => host.to_owned(),
                Some(named) => named.to_owned(),
            };
            let primary = ((address, read(port)?), id(primary));
            all.ranges.push((read(first)?, read(last)?, primary));
        }
        all.ranges.sort();
        Ok(all)
    }
}
