//! A Redis Cluster of real processes.

use std::ops::Range;

use crate::{Redis, eventually};

const SLOTS: usize = 16384;
const PRIMARIES: usize = 3;

pub struct Cluster {
    /// The primaries first, then their replicas in the same order.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts a cluster of primaries alone. They take a silent one for failed as late as by default, after 15 seconds.
    pub async fn start() -> Self {
        let cluster = Self::with_replicas(0).await;
        for node in &cluster.nodes {
            node.command("CONFIG SET cluster-node-timeout 15000").await;
        }
        cluster
    }

    /// Starts a cluster, each primary with so many replicas. A silent node is taken for failed after a second.
    pub async fn with_replicas(replicas: usize) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..PRIMARIES * (1 + replicas) {
            let enabled = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            nodes.push(Redis::start_with(&enabled).await);
        }
        let cluster = Self { nodes };
        cluster.form(replicas).await;
        cluster
    }

    async fn form(&self, replicas: usize) {
        for (number, node) in self.nodes.iter().enumerate() {
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await;
            if number < PRIMARIES {
                let (from, to) = (SLOTS * number / PRIMARIES, SLOTS * (number + 1) / PRIMARIES);
                add_slots(node, from..to).await;
            }
            node.command(&format!("CLUSTER MEET 127.0.0.1 {}", self.nodes[0].port())).await;
        }
        self.nodes_know_each_other().await;
        for number in 0..PRIMARIES * replicas {
            let id = self.id(number % PRIMARIES).await;
            self.nodes[PRIMARIES + number].run::<()>(&["CLUSTER", "REPLICATE", &id]).await;
        }
        for replica in &self.nodes[PRIMARIES..] {
            replica.says("replication", "master_link_status:up").await;
        }
        self.serves_every_slot(&Vec::from_iter(0..self.nodes.len())).await;
    }

    /// Adds a primary without slots. Returns its number.
    pub async fn add_primary(&mut self) -> usize {
        let node = Redis::start_with(&["--cluster-enabled", "yes"]).await;
        node.command(&format!("CLUSTER MEET 127.0.0.1 {}", self.nodes[0].port())).await;
        self.nodes.push(node);
        self.nodes_know_each_other().await;
        let number = self.nodes.len() - 1;
        self.serves_every_slot(&[number]).await;
        number
    }

    /// Waits until these nodes see a server for every slot.
    pub async fn serves_every_slot(&self, nodes: &[usize]) {
        for number in nodes {
            let info = async || self.nodes[*number].run::<String>(&["CLUSTER", "INFO"]).await;
            eventually("every slot is served", async || info().await.contains("cluster_state:ok"))
                .await;
        }
    }

    async fn id(&self, number: usize) -> String {
        self.nodes[number].run(&["CLUSTER", "MYID"]).await
    }

    async fn nodes_know_each_other(&self) {
        for node in &self.nodes {
            eventually("the nodes know each other", async || {
                let known: String = node.run(&["CLUSTER", "NODES"]).await;
                known.lines().count() >= self.nodes.len() && !known.contains("handshake")
            })
            .await;
        }
    }

    pub async fn call_count(&self, command: &str) -> u64 {
        let mut calls = 0;
        for node in &self.nodes {
            calls += node.call_count(command).await;
        }
        calls
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// Moves a slot with its keys from one primary to another, as `redis-cli --cluster reshard`
    /// does, a key at a time.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move_slot(slot, from, to).await;
        let to_id = self.id(to).await;
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let (slot, port) = (slot.to_string(), to.port().to_string());
        loop {
            let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).await;
            let Some(key) = keys.first() else { break };
            let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
            from.run::<redis::Value>(&migrate).await;
        }
        for node in [to, from].into_iter().chain(&self.nodes[..PRIMARIES]) {
            node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
        }
    }

    /// Moves the slot of a key from the primary that has had it from the start to another one.
    pub async fn move_key(&self, key: &str, to: usize) {
        self.move_slot(Self::slot(key), Self::owner(key), to).await;
    }

    /// Begins to do so. From now on new keys of the slot are on the other node.
    pub async fn begin_to_move(&self, key: &str, to: usize) {
        self.begin_to_move_slot(Self::slot(key), Self::owner(key), to).await;
    }

    async fn begin_to_move_slot(&self, slot: u16, from: usize, to: usize) {
        for (node, state, other) in [(to, "IMPORTING", from), (from, "MIGRATING", to)] {
            let set = format!("CLUSTER SETSLOT {slot} {state} {}", self.id(other).await);
            self.nodes[node].command(&set).await;
        }
    }

    /// Has clients reach a node by another port, and waits until another node says so. It is started again: Redis 6.2
    /// says of itself what it was started with.
    pub async fn announce(&mut self, number: usize, port: u16) {
        let (bus, port) = (self.nodes[number].port() + 10_000, port.to_string());
        let announced =
            ["--cluster-announce-bus-port", &bus.to_string(), "--cluster-announce-port", &port];
        self.nodes[number].restart_with(&announced).await;
        let other = &self.nodes[usize::from(number == 0)];
        let known = async || other.run::<String>(&["CLUSTER", "NODES"]).await;
        eventually("the port is known", async || known().await.contains(&port)).await;
        self.serves_every_slot(&[number]).await;
    }

    pub fn signal(&self, name: &str) {
        self.nodes.iter().for_each(|node| node.signal(name));
    }

    pub fn slot(key: &str) -> u16 {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let tag = tag.map_or(key, |(tag, _)| tag);
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        let crc = tag.bytes().fold(0, |crc, it| (0..8).fold(crc ^ (u16::from(it) << 8), shift));
        crc % SLOTS as u16
    }

    /// Returns the number of the primary that has had a key from the start.
    pub fn owner(key: &str) -> usize {
        let slot = usize::from(Self::slot(key));
        (0..PRIMARIES).rfind(|it| slot >= SLOTS * it / PRIMARIES).unwrap()
    }

    /// Returns the number of the primary that comes after that one.
    pub fn next(key: &str) -> usize {
        (Self::owner(key) + 1) % PRIMARIES
    }

    /// Returns the primary that has had a key from the start.
    pub fn node_of(&self, key: &str) -> &Redis {
        &self.nodes[Self::owner(key)]
    }
}

pub async fn add_all_slots(node: &Redis) {
    add_slots(node, 0..SLOTS).await;
}

async fn add_slots(node: &Redis, slots: Range<usize>) {
    let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
    let command = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    node.run::<()>(&Vec::from_iter(command)).await;
}
