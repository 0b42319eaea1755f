//! [`Cluster`]: a connection to each primary of a Redis Cluster, and which of them has which slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;
use uuid::Uuid;

use super::circuit_breaker::CircuitBreaker;
use super::connect::first_success;
use super::connection::Connection;
use super::reply;
use super::request::Request;
use super::servers::Kind;
use super::view::{Primary, View};
use super::{Health, Keys, RedisServers};
use crate::error::StoreError;
use crate::telemetry;
use crate::time::Pace;

/// How long the nodes are taken to be as they were, while none fails.
pub(super) const USUAL_PAUSE: Duration = Duration::from_secs(1);

/// A Redis Cluster, or another server as one node that has all keys.
///
/// Each primary has a connection with a circuit breaker of its own, just as a single server has. So a node that fails,
/// hangs or is slow concerns the keys of its slots alone.
///
/// - A connected node says who has which slot. At the start, and at most once a second if no known node replies, all servers
///   that the application has named are tried at once, and the first to reply is asked.
/// - A node that has no slots any more was replaced by another one, maybe without its last writes. That is a loss of data.
///   It is recorded before a call goes to the other node.
/// - A server that was named, or has the address of a node, may be one of another Cluster by now. At the address of a node it
///   gets no call, for it does not know the node. What it says is believed only if none of ours replies.
///
/// # Interleavings
///
/// - Many calls are refused at once. The first of them asks, under `question`, and the others find that `slots` has changed
///   since they were sent. They do not wait for the look in the background, which may ask a node that hangs.
/// - Two ask at once. Whose reply comes second finds that `slots` is not what it was, and changes nothing.
/// - A call has found its node, and another one takes its place. If the old one serves nobody, it refuses the call. If the call
///   goes to the new one before its logs are reconciled, `RedisStore::accept` finds a loss since the check was sent, and
///   looks whether the logs of this process have room. Test: `replaced_node_never_over_admits_and_keeps_bans`.
/// - A node is no longer used while calls wait on it. They keep its connection until they have their replies.
pub(crate) struct Cluster {
    /// The servers that the application has named.
    named: RedisServers,
    pub(super) response_timeout: Duration,
    health: Health,
    pub(super) keys: Keys,
    pub(super) slots: ArcSwap<Slots>,
    /// Whether a node refuses keys of another one, unlike some proxies. Otherwise a call that declares no keys could make
    /// logs in the wrong place.
    is_strict: AtomicBool,
    /// Held while a call asks who has which slot, so that one question serves all that wait.
    question: AsyncMutex<()>,
    /// Who is asked next. At first any of them, so that not all processes ask the same.
    turn: AtomicUsize,
    /// When a look was begun last.
    pub(super) pace: Pace,
    /// When the servers that the application has named were asked last.
    named_pace: Pace,
}

/// A primary of a Cluster, or the servers that the application has named.
pub(super) struct Node {
    /// Its address, and its identity in the Cluster if that is known.
    primary: Primary,
    pub(super) breaker: Arc<CircuitBreaker>,
    /// Whether a redirection has named it since the last look.
    is_named: AtomicBool,
}

/// Which node has which slot.
#[derive(Clone, Default)]
pub(super) struct Slots {
    view: View,
    /// Those that have slots, and those to which slots are on their way. Until they are known, the servers that the application
    /// has named.
    pub(super) nodes: Vec<Arc<Node>>,
    /// The number of the node of each slot.
    pub(super) numbers: HashMap<Slot, usize, RandomState>,
}

impl Cluster {
    /// Makes the connections to the servers that the application has named, which connect when they are needed.
    pub(super) fn new(
        named: RedisServers,
        response_timeout: Duration,
        health: Health,
        keys: Keys,
    ) -> Arc<Self> {
        let cluster = Self {
            named,
            response_timeout,
            health,
            keys,
            slots: ArcSwap::default(),
            is_strict: AtomicBool::new(false),
            question: AsyncMutex::default(),
            turn: AtomicUsize::new(usize::from(Uuid::new_v4().as_bytes()[0])),
            pace: Pace::done(),
            named_pace: Pace::new(),
        };
        let nodes = vec![cluster.named_servers()];
        cluster.slots.store(Arc::new(Slots { nodes, ..Slots::default() }));
        Arc::new(cluster)
    }

    /// Returns whether it is a Cluster.
    pub(super) fn has_slots(&self) -> bool {
        matches!(self.named.kind, Kind::Cluster)
    }

    /// Connects to one of the servers that the application has named, and then to one of the nodes that it knows: they may
    /// announce addresses that nobody reaches from here.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), StoreError> {
        let slots = self.slots.load_full();
        slots.nodes[0].breaker.connect().await?;
        if self.has_slots() {
            self.ask(&slots.nodes[0], &slots).await?;
        }
        let breakers = self.breakers();
        if breakers.iter().any(|breaker| breaker.is_connected()) {
            return Ok(());
        }
        let connect = |breaker: Arc<CircuitBreaker>| async move { breaker.connect().await };
        first_success(breakers.into_iter().map(connect).collect()).await
    }

    /// Returns the circuit breaker of each node.
    pub(super) fn breakers(&self) -> Vec<Arc<CircuitBreaker>> {
        self.slots.load().nodes.iter().map(|node| node.breaker.clone()).collect()
    }

    /// Returns the circuit breaker of the node that has a Redis key, or of any node.
    pub(super) fn breaker_of(&self, name: Option<&[u8]>) -> Arc<CircuitBreaker> {
        let slots = self.slots.load();
        name.and_then(|name| slots.node_of(name)).unwrap_or(&slots.nodes[0]).breaker.clone()
    }

    /// Looks who has which slot, as a known node says to which there is a connection, or one of those that were named.
    pub(super) async fn look(&self) {
        let slots = self.slots.load_full();
        let nodes = slots.nodes.iter().filter(|node| node.breaker.is_connected());
        let nodes: Vec<_> = nodes.collect();
        let turn = self.turn.load(Ordering::Relaxed) % (nodes.len() + 1);
        let is_of_use = match nodes.get(turn) {
            Some(node) => self.ask(node, &slots).await.unwrap_or(false),
            None => {
                if self.named_pace.is_due(USUAL_PAUSE) {
                    let named = self.named_servers();
                    if named.breaker.connect().await.is_ok() {
                        let _ = self.ask(&named, &slots).await;
                    }
                }
                // The next time a known one: of those that were named one may be gone for good.
                false
            }
        };
        self.turn.store(turn + usize::from(!is_of_use), Ordering::Relaxed);
    }

    /// Returns the number of the node that has a Redis key, if it is known: it may be the number of another one when slots move.
    pub(super) fn number_of(&self, name: &[u8]) -> Option<usize> {
        self.slots.load().number_of(name)
    }

    /// Returns whether a call may have keys of several slots of one node, without declaring them.
    pub(super) fn shares_calls(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed) || self.slots.load().nodes.len() == 1
    }

    /// Asks a node who has which slot, unless somebody has asked since.
    pub(super) async fn ask_once(&self, node: &Node, seen: &Arc<Slots>) {
        let _turn = timeout(self.response_timeout, self.question.lock()).await;
        if Arc::ptr_eq(seen, &self.slots.load()) {
            // Boxed to keep the future of every call small.
            let _ = Box::pin(self.ask(node, seen)).await;
        }
    }

    /// Returns the node that a redirection names. `is_asking` says whether the other node has a part of its slot still.
    pub(super) fn node_at(
        &self,
        message: &str,
        is_asking: bool,
        from: &Node,
    ) -> Result<Arc<Node>, StoreError> {
        let named = message.rsplit(' ').next().unwrap_or_default().rsplit_once(':');
        let port = named.and_then(|(_, port)| port.parse().ok());
        let (Some((host, _)), Some(port)) = (named, port) else {
            return Err(reply::malformed("expected the address of a node"));
        };
        let host = if host.is_empty() { &from.primary.0.0 } else { host };
        let address = (host.to_owned(), port);
        let slots = self.slots.load_full();
        if let Some(node) = slots.nodes.iter().find(|node| node.primary.0 == address) {
            node.is_named.store(true, Ordering::Relaxed);
            return Ok(node.clone());
        }
        let node = self.make_node((address, None), self.keys.mark());
        let mut all = Slots::clone(&slots);
        all.nodes.push(node.clone());
        if !is_asking {
            // It may have replaced another one, and nobody has said so.
            self.health.record_loss();
        }
        if !Arc::ptr_eq(&slots, &self.slots.compare_and_swap(&slots, Arc::new(all))) {
            // Another call may have made it meanwhile.
            return self.node_at(message, is_asking, from);
        }
        Ok(node)
    }

    fn make_node(&self, primary: Primary, mark: String) -> Arc<Node> {
        let servers = self.named.node(primary.clone());
        self.node(primary, servers, mark)
    }

    /// Makes one node of the servers that the application has named.
    fn named_servers(&self) -> Arc<Node> {
        self.node(Primary::default(), self.named.clone(), self.keys.mark())
    }

    fn node(&self, primary: Primary, servers: RedisServers, mark: String) -> Arc<Node> {
        let health = self.health.clone();
        let breaker = CircuitBreaker::new(servers, self.response_timeout, health, mark);
        Arc::new(Node { primary, breaker, is_named: AtomicBool::new(true) })
    }

    /// Asks a node who has which slot. Returns whether what it says was of use. It is of none if the node serves nobody: the
    /// others may have left it behind.
    async fn ask(&self, node: &Node, known: &Arc<Slots>) -> Result<bool, StoreError> {
        let view = node.view().await?;
        if view.ranges.is_empty() || self.is_of_others(&view, known).await {
            return Ok(false);
        }
        // A connection that was lost may have been to a node that nobody needs any more.
        self.health.find_connection();
        // A node to which slots were on their way is forgotten when nobody needs it any more. If it is named again, nobody
        // knows whether it still has what it got.
        let is_needed = |node: &Arc<Node>| {
            let has_slots = view.ranges.iter().any(|(.., primary)| *primary == node.primary);
            has_slots || node.is_named.swap(false, Ordering::Relaxed) || node.breaker.is_connected()
        };
        let slots = match view == known.view && known.nodes.iter().all(is_needed) {
            true => known.clone(),
            false => Arc::new(self.slots_of(view, known)),
        };
        if !self.is_strict.load(Ordering::Relaxed) {
            let is_strict = node.refuses_keys_of_others(&slots).await;
            self.is_strict.store(is_strict, Ordering::Relaxed);
        }
        // Nobody knows whether a node that is new here still has what it got from another one.
        let are_of = |some: &[Arc<Node>], others: &Slots| some.iter().all(|node| others.has(node));
        if !(known.numbers.is_empty()
            || are_of(&known.nodes, &slots) && are_of(&slots.nodes, known))
        {
            self.health.record_loss();
        }
        self.slots.compare_and_swap(known, slots);
        Ok(true)
    }

    /// Returns whether a view is that of another Cluster, while a known node still has one of its own.
    async fn is_of_others(&self, view: &View, known: &Slots) -> bool {
        let is_of_another =
            |view: &View| !view.ids.is_empty() && view.ids.is_disjoint(&known.view.ids);
        if known.view.ids.is_empty() || !is_of_another(view) {
            return false;
        }
        for node in &known.nodes {
            if node.view().await.is_ok_and(|view| !is_of_another(&view)) {
                telemetry::other_cluster();
                return true;
            }
        }
        false
    }

    fn slots_of(&self, view: View, known: &Slots) -> Slots {
        let (mut primaries, mut numbers) = (Vec::new(), HashMap::default());
        for (first, last, primary) in &view.ranges {
            let number = primaries.iter().position(|it| it == primary).unwrap_or(primaries.len());
            if number == primaries.len() {
                primaries.push(primary.clone());
            }
            numbers.extend((*first..=*last).filter_map(Slot::new).map(|slot| (slot, number)));
        }
        let node = |(number, primary): (usize, Primary)| {
            let has = |mark: &str| numbers.get(&Slot::for_key(mark)) == Some(&number);
            // Another one if the slot of its mark has moved.
            let is_it = |node: &&Arc<Node>| node.primary == primary && has(&node.breaker.mark);
            if let Some(node) = known.nodes.iter().find(is_it) {
                return node.clone();
            }
            let mark = (0..100_000).map(|it| self.keys.node_mark(it)).find(|mark| has(mark));
            let node = self.make_node(primary, mark.unwrap_or_else(|| self.keys.mark()));
            node.breaker.connect_if_idle();
            node
        };
        let nodes = primaries.into_iter().enumerate().map(node).collect();
        Slots { view, nodes, numbers }
    }
}

impl Slots {
    /// Returns the number of the node that has a Redis key.
    fn number_of(&self, name: &[u8]) -> Option<usize> {
        self.numbers.get(&Slot::for_key(name)).copied()
    }

    pub(super) fn node_of(&self, name: &[u8]) -> Option<&Arc<Node>> {
        self.number_of(name).map(|number| &self.nodes[number])
    }

    fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.iter().any(|it| Arc::ptr_eq(it, node))
    }
}

impl Node {
    /// Asks the node who has which slot.
    async fn view(&self) -> Result<View, StoreError> {
        let ask = async |mut it: Connection| View::ask(&mut it).await.map_err(reply::error);
        self.breaker.call(ask).await
    }

    /// Returns whether a script meets an error if it uses a key of another node.
    async fn refuses_keys_of_others(&self, slots: &Slots) -> bool {
        // At least one of two nodes is another one.
        for node_of_key in slots.nodes.iter().take(2) {
            let mut script = redis::cmd("EVAL");
            script.arg("return redis.call('GET', ARGV[1])").arg(0).arg(&node_of_key.breaker.mark);
            let request = Request::Command(script);
            let reply = self.breaker.call(async |it| request.send(it).await).await;
            if reply.is_err_and(|error| error.to_string().contains("non local key")) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use test_support::Redis;
    use tokio::time::{Instant, sleep};

    use super::*;

    fn cluster(named: &[String]) -> Arc<Cluster> {
        let (named, keys) = (RedisServers::cluster(named).unwrap(), Keys::new("tsw".to_owned()));
        Cluster::new(named, Duration::from_secs(1), Health::default(), keys)
    }

    /// Makes nodes at these ports known, of which the first one has the slot of a key.
    fn know(cluster: &Cluster, ports: impl IntoIterator<Item = u16>, key: &[u8]) {
        let node = |(number, port)| {
            let primary = (("127.0.0.1".to_owned(), port), None);
            cluster.make_node(primary, cluster.keys.node_mark(number))
        };
        let nodes = (0..).zip(ports).map(node).collect();
        let numbers = [(Slot::for_key(key), 0)].into_iter().collect();
        cluster.slots.store(Arc::new(Slots { nodes, numbers, ..Slots::default() }));
    }

    /// As behind some proxies. A call that declares no keys would make a log on the wrong server.
    #[tokio::test]
    async fn keys_of_servers_that_take_all_share_no_call() {
        let servers = [Redis::start().await, Redis::start().await];
        let cluster = cluster(&servers.each_ref().map(Redis::url));
        let name = b"tsw:{=alice}:user:1h";
        know(&cluster, servers.each_ref().map(Redis::port), name);
        let slots = cluster.slots.load_full();
        assert!(!slots.nodes[0].refuses_keys_of_others(&slots).await);
        assert!(!cluster.shares_calls());
    }

    /// All but one of many nodes have other addresses at once, or all have.
    #[tokio::test]
    async fn new_addresses_of_many_nodes_are_found_at_once() {
        let real = test_support::Cluster::start().await;
        for is_one_there in [true, false] {
            let nowhere = "redis://127.0.0.1:1".to_owned();
            let cluster = cluster(&[if is_one_there { nowhere } else { real.nodes[0].url() }]);
            let there = |number| is_one_there && number == 20;
            let port = |number| if there(number) { real.nodes[0].port() } else { 1 };
            know(&cluster, (0..30).map(port), b"alice");
            for breaker in cluster.breakers() {
                let _ = breaker.connect().await;
            }
            cluster.turn.store(0, Ordering::Relaxed);
            let began = Instant::now();
            while cluster.slots.load().nodes.len() != 3 {
                assert!(began.elapsed() < Duration::from_secs(2), "{is_one_there}");
                cluster.look().await;
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Such as one whose slots did not come after all.
    #[tokio::test]
    async fn node_that_is_named_no_more_is_forgotten() {
        let real = test_support::Cluster::start().await;
        let cluster = cluster(&[real.nodes[0].url()]);
        cluster.connect().await.unwrap();
        let first = cluster.slots.load().nodes[0].clone();
        cluster.node_at("ASK 1 127.0.0.1:1", true, &first).unwrap();
        for nodes in [4, 3, 3] {
            let slots = cluster.slots.load_full();
            assert!(cluster.ask(&first, &slots).await.unwrap());
            assert_eq!(cluster.slots.load().nodes.len(), nodes);
        }
    }
}
