//! [`Cluster`]: a connection to each primary of a Redis Cluster, and which of them has which slot.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwap;
use redis::cluster_routing::Slot;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::circuit_breaker::CircuitBreaker;
use super::connection::{Address, Certificates, Connection, at};
use super::connector::Connector;
use super::reply::{self, read};
use super::request::{Request, is_redirection};
use super::view::{Primary, View};
use super::{Health, Keys};
use crate::error::StoreError;
use crate::telemetry;
use crate::time::{Pace, pause_after};

/// How long the nodes are taken to be as they were, while none fails.
pub(super) const USUAL_PAUSE: Duration = Duration::from_secs(1);
/// The same after a call has failed.
const SHORT_PAUSE: Duration = Duration::from_millis(200);
/// How long a call follows redirections at most, and waits for a slot of which each node has a part.
const LONGEST_DETOUR: Duration = Duration::from_millis(200);
/// The pauses before a call is made again whose slot is on its way to another node.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A Redis Cluster.
///
/// Each primary has a connection with a circuit breaker of its own, just as a single server has. So a node that fails,
/// hangs or is slow concerns the keys of its slots alone.
///
/// - The nodes are asked who has which slot when one says that a slot has moved, once a second while the store is in use,
///   and more often after a call has failed. One is asked that replies. At first, and at most once a second if no known node
///   replies, the servers are asked that the application has named.
/// - A node that refuses a call because its slot is elsewhere has executed nothing. The call goes to the node that it
///   names, for at most 0.2 s.
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
///   goes to the new one before its logs are reconciled, `RedisStore::accept` finds a failure since the call began, and
///   looks whether the logs of this process have room. Test: `replaced_node_never_over_admits_and_keeps_bans`.
/// - A node is no longer used while calls wait on it. They keep its connection until they have their replies.
pub(crate) struct Cluster {
    /// The servers that the application has named. All nodes have the credentials of the first one.
    seeds: Vec<ConnectionInfo>,
    certificates: Certificates,
    response_timeout: Duration,
    health: Health,
    keys: Keys,
    slots: ArcSwap<Slots>,
    /// Whether a node refuses keys of another one, unlike some proxies. Otherwise a call that declares no keys could make
    /// logs in the wrong place.
    is_strict: AtomicBool,
    /// Held while a call asks who has which slot, so that one question serves all that wait. When nobody knew last, while no
    /// node is known.
    question: AsyncMutex<Option<Instant>>,
    /// Who is asked next. At first any of them, so that not all processes ask the same.
    turn: AtomicUsize,
    pace: Pace,
    /// When the servers that the application has named were asked last.
    named: Pace,
    /// These servers while none of them, and no known node, replies: one that is gone is so once, and not each time.
    unreachable: Mutex<Vec<Arc<Node>>>,
    /// The nodes without slots to which slots are on their way.
    newcomers: Mutex<Vec<Arc<Node>>>,
}

/// A primary of a Cluster.
struct Node {
    /// Its identity in the Cluster, if it is known.
    id: Option<String>,
    mark: String,
    /// The least number from 0 that no other known node has.
    number: usize,
    address: Address,
    breaker: Arc<CircuitBreaker>,
    /// Whether a call went to it as a newcomer since the last look.
    is_used: AtomicBool,
}

/// Which node has which slot.
#[derive(Default)]
struct Slots {
    view: View,
    /// Those that have slots. Until they are known, the servers that the application has named.
    nodes: Vec<Arc<Node>>,
    nodes_of: HashMap<Slot, Arc<Node>, RandomState>,
}

impl Cluster {
    /// `seeds` are the servers that the application has named, at least one.
    pub(super) fn new(
        seeds: Vec<ConnectionInfo>,
        certificates: Certificates,
        response_timeout: Duration,
        health: Health,
        keys: Keys,
    ) -> RedisResult<Arc<Self>> {
        let cluster = Self {
            seeds,
            certificates,
            response_timeout,
            health,
            keys,
            slots: ArcSwap::default(),
            is_strict: AtomicBool::new(false),
            question: AsyncMutex::default(),
            turn: AtomicUsize::new(usize::from(Uuid::new_v4().as_bytes()[0])),
            pace: Pace::done(),
            named: Pace::new(),
            unreachable: Mutex::default(),
            newcomers: Mutex::default(),
        };
        let nodes = cluster.named_nodes()?;
        cluster.slots.store(Arc::new(Slots { nodes, ..Slots::default() }));
        Ok(Arc::new(cluster))
    }

    /// Connects to one of the servers that the application has named, and then to one of the nodes that it knows: they may
    /// announce addresses that nobody reaches from here.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), StoreError> {
        let named = self.slots.load_full();
        self.ask_any(named.nodes.clone(), &named, true).await?;
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

    /// Looks in the background who has which slot, unless the last look was less than a pause ago.
    pub(super) fn refresh_slots(self: &Arc<Self>, pause: Duration) {
        if self.pace.is_due(pause)
            && let Ok(runtime) = Handle::try_current()
        {
            let cluster = self.clone();
            runtime.spawn(async move {
                let slots = cluster.slots.load_full();
                // A known node to which there is a connection, or those that were named.
                let nodes = &slots.nodes;
                let turn = cluster.turn.load(Ordering::Relaxed) % (nodes.len() + 1);
                let next = nodes[turn..].iter().position(|node| node.breaker.is_connected());
                let turn = next.map_or(nodes.len(), |next| turn + next);
                let is_of_use = match nodes.get(turn) {
                    Some(node) => {
                        cluster.unreachable().clear();
                        cluster.ask(node, &slots).await.unwrap_or(false)
                    }
                    None => {
                        if cluster.named.is_due(USUAL_PAUSE) {
                            let _ = cluster.ask_named(&slots).await;
                        }
                        // The next time a known one: of those that were named one may be gone for good.
                        false
                    }
                };
                cluster.turn.store(turn + usize::from(!is_of_use), Ordering::Relaxed);
            });
        }
    }

    /// Returns the number of the node that has a Redis key, if it is known and refuses the keys of others.
    pub(super) fn number_of(self: &Arc<Self>, name: &[u8]) -> Option<usize> {
        let slots = self.slots.load();
        let number = slots.node_of(name).map(|node| node.number);
        if number.is_none() {
            self.refresh_slots(SHORT_PAUSE);
        }
        number.filter(|_| slots.nodes.len() == 1 || self.is_strict.load(Ordering::Relaxed))
    }

    /// Returns the number of the node that has a Redis key, or of any node.
    pub(super) fn number_of_server(&self, name: Option<&[u8]>) -> usize {
        let slots = self.slots.load();
        name.and_then(|name| slots.node_of(name)).map_or(0, |node| node.number)
    }

    /// Waits for a connection to the node of a Redis key as a call does.
    pub(super) async fn connected(self: &Arc<Self>, name: &[u8]) -> Result<(), StoreError> {
        let node = self.node_of(Some(name)).await?;
        let connected = node.breaker.connected().await;
        if connected.is_err() {
            self.refresh_slots(SHORT_PAUSE);
        }
        connected
    }

    /// Sends a request to the node of its first key, or to any node if it has none, and waits for the reply.
    pub(super) async fn call(self: &Arc<Self>, request: &Request) -> Result<Value, StoreError> {
        let name = request.key();
        let (mut end, mut refusals) = (None, 0);
        let mut node = self.node_of(name).await?;
        let mut is_asking = false;
        loop {
            let slots = self.slots.load_full();
            let call = async |it: Connection| request.send(it.asking(is_asking)).await;
            let result = node.breaker.call(call).await;
            let Err(error) = &result else { return result };
            let (code, message) = match error {
                StoreError::Refused { code, message } => (code.as_str(), message.as_str()),
                _ => ("", ""),
            };
            // From the first refusal on: the way to the node may take longer than that.
            let now = Instant::now();
            if !is_redirection(code) || now >= *end.get_or_insert(now + LONGEST_DETOUR) {
                self.refresh_slots(SHORT_PAUSE);
                return result;
            }
            is_asking = code == "ASK";
            if code == "MOVED" {
                // Whoever refuses it knows who has the slots.
                let _turn = timeout(self.response_timeout, self.question.lock()).await;
                if self.knows_no_more_than(&slots) {
                    let _ = self.ask(&node, &slots).await;
                }
            }
            if !is_asking {
                sleep(pause_after(refusals, FIRST_PAUSE, LONGEST_PAUSE)).await;
                refusals += 1;
            }
            node = match code {
                "TRYAGAIN" => self.node_of(name).await?,
                _ => self.node_at(message, is_asking, &node)?,
            };
        }
    }

    /// Returns the node of a Redis key, or any node.
    async fn node_of(self: &Arc<Self>, name: Option<&[u8]>) -> Result<Arc<Node>, StoreError> {
        let find = || {
            let slots = self.slots.load();
            let node = match name {
                Some(name) => slots.node_of(name),
                None => {
                    let is_there = |node: &&Arc<Node>| node.breaker.is_connected();
                    slots.nodes.iter().find(is_there).or(slots.nodes.first())
                }
            };
            node.cloned()
        };
        if let Some(node) = find() {
            return Ok(node);
        }
        let slots = self.slots.load_full();
        if !slots.nodes_of.is_empty() {
            // Nobody has the slot.
            self.refresh_slots(SHORT_PAUSE);
            return Err(StoreError::Unavailable);
        }
        let failed = timeout(self.response_timeout, self.question.lock()).await;
        let mut failed = failed.map_err(|_| StoreError::Unavailable)?;
        if self.knows_no_more_than(&slots)
            && failed.is_none_or(|failed| failed.elapsed() >= SHORT_PAUSE)
        {
            let asked = self.ask_any(slots.nodes.clone(), &slots, false).await;
            *failed = asked.is_err().then(Instant::now);
        }
        find().ok_or(StoreError::Unavailable)
    }

    fn knows_no_more_than(&self, slots: &Arc<Slots>) -> bool {
        Arc::ptr_eq(slots, &self.slots.load_full())
    }

    /// Returns the node that a redirection names. `is_asking` says whether the other node has a part of its slot still.
    fn node_at(
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
        let host = if host.is_empty() { &from.address.0 } else { host };
        let address = (host.to_owned(), port);
        let slots = self.slots.load();
        let mut newcomers = self.newcomers();
        let is_it = |node: &&Arc<Node>| node.address == address;
        if let Some(node) = slots.nodes.iter().find(is_it) {
            return Ok(node.clone());
        }
        let node = match newcomers.iter().find(is_it) {
            Some(node) => node.clone(),
            None => {
                let node = self.make_node(&slots.nodes, (address, None), self.keys.mark());
                let node = Arc::new(node.map_err(reply::error)?);
                newcomers.push(node.clone());
                if !is_asking {
                    // It may have replaced another one, and nobody has said so.
                    self.health.record_loss();
                }
                node
            }
        };
        node.is_used.store(true, Ordering::Relaxed);
        Ok(node)
    }

    fn unreachable(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newcomers(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_node(
        &self,
        others: &[Arc<Node>],
        (address, id): Primary,
        mark: String,
    ) -> RedisResult<Node> {
        let client = self.certificates.open(at(&self.seeds[0], address.clone()))?;
        let connector = Connector::One(Box::new(client), id.clone());
        let health = self.health.clone();
        let (timeout, name) = (self.response_timeout, mark.clone());
        let breaker = CircuitBreaker::new(connector, timeout, health, name);
        let is_free = |number: &usize| others.iter().all(|node| node.number != *number);
        let number = (0..).find(is_free).unwrap_or_default();
        Ok(Node { id, mark, number, address, breaker, is_used: AtomicBool::new(false) })
    }

    /// Makes nodes of the servers that the application has named.
    fn named_nodes(&self) -> RedisResult<Vec<Arc<Node>>> {
        let address = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => Err((ErrorKind::InvalidClientConfig, "a node of a Cluster has a host and a port")),
        };
        let make =
            |info| Ok(Arc::new(self.make_node(&[], (address(info)?, None), self.keys.mark())?));
        self.seeds.iter().map(make).collect()
    }

    /// Asks the servers that the application has named, on new connections.
    async fn ask_named(self: &Arc<Self>, known: &Arc<Slots>) -> Result<(), StoreError> {
        let mut nodes = std::mem::take(&mut *self.unreachable());
        if nodes.is_empty() {
            nodes = self.named_nodes().map_err(reply::error)?;
        }
        let asked = self.ask_any(nodes.clone(), known, false).await;
        if asked.is_err() {
            *self.unreachable() = nodes;
        }
        asked
    }

    /// Asks several nodes at once, until one says something of use. If `connects` is set, each has one attempt to connect,
    /// however long that takes.
    async fn ask_any(
        self: &Arc<Self>,
        nodes: Vec<Arc<Node>>,
        known: &Arc<Slots>,
        connects: bool,
    ) -> Result<(), StoreError> {
        let mut questions = JoinSet::new();
        for node in nodes {
            let (cluster, known) = (self.clone(), known.clone());
            questions.spawn(async move {
                let asked = async {
                    if connects && !node.breaker.is_connected() {
                        node.breaker.connect().await?;
                    }
                    cluster.ask(&node, &known).await
                };
                let error = match asked.await {
                    Ok(true) => return Ok(()),
                    Ok(false) => "the node serves nobody, or knows no slots".to_owned(),
                    Err(error @ StoreError::Unreachable { .. }) => return Err(error),
                    Err(error) => error.to_string(),
                };
                let message = format!("{}:{}: {error}", node.address.0, node.address.1);
                Err(StoreError::Unreachable { message })
            });
        }
        first_success(questions).await
    }

    /// Asks a node who has which slot. Returns whether what it says was of use. It is of none if the node serves nobody: the
    /// others may have left it behind.
    async fn ask(&self, node: &Node, known: &Arc<Slots>) -> Result<bool, StoreError> {
        // A proxy may not know it.
        let info = send(node, redis::cmd("CLUSTER").arg("INFO").clone()).await;
        let info: String = read(&info.unwrap_or(Value::Nil)).unwrap_or_default();
        if info.contains("cluster_state:fail") {
            return Ok(false);
        }
        let view = View::of(&send(node, View::command()).await?, &node.address.0)?;
        if view.ranges.is_empty() || self.is_of_others(&view, known).await {
            return Ok(false);
        }
        self.newcomers().retain(|node| {
            let is_needed =
                node.is_used.swap(false, Ordering::Relaxed) || node.breaker.is_connected();
            let has_slots = view.ranges.iter().any(|(.., (address, _))| *address == node.address);
            if !is_needed && !has_slots {
                // If it is used again, nobody knows whether it still has what it got.
                self.health.record_loss();
            }
            is_needed && !has_slots
        });
        // A connection that was lost may have been to a node that nobody needs any more.
        self.health.find_connection();
        let is_same = view == known.view;
        let slots = if is_same { None } else { Some(self.slots_of(view, known)) };
        let slots = slots.transpose().map_err(reply::error)?;
        if !self.is_strict.load(Ordering::Relaxed) {
            let is_strict = refuses_keys_of_others(node, slots.as_ref().unwrap_or(known)).await;
            self.is_strict.store(is_strict, Ordering::Relaxed);
        }
        let Some(slots) = slots else { return Ok(true) };
        // Nobody knows whether a node that is new here still has what it got from another one.
        let are_of = |some: &[Arc<Node>], others: &Slots| some.iter().all(|node| others.has(node));
        if !(known.nodes_of.is_empty()
            || are_of(&known.nodes, &slots) && are_of(&slots.nodes, known))
        {
            self.health.record_loss();
        }
        self.slots.compare_and_swap(known, slots.into());
        Ok(true)
    }

    /// Returns whether a view is that of another Cluster, while a known node still has one of its own.
    async fn is_of_others(&self, view: &View, known: &Slots) -> bool {
        let is_of_another = |view: &View| view.ids.is_disjoint(&known.view.ids);
        if known.view.ids.is_empty() || view.ids.is_empty() || !is_of_another(view) {
            return false;
        }
        for node in &known.nodes {
            let reply = send(node, View::command()).await;
            let view = reply.and_then(|reply| View::of(&reply, ""));
            if view.is_ok_and(|view| !is_of_another(&view)) {
                telemetry::other_cluster();
                return true;
            }
        }
        false
    }

    fn slots_of(&self, view: View, known: &Slots) -> RedisResult<Slots> {
        let mut slots_of: Vec<(Primary, HashSet<Slot, RandomState>)> = Vec::new();
        for (first, last, primary) in &view.ranges {
            let range = (*first..=*last).filter_map(Slot::new);
            match slots_of.iter_mut().find(|(of, _)| of == primary) {
                Some((_, slots)) => slots.extend(range),
                None => slots_of.push((primary.clone(), range.collect())),
            }
        }
        // The servers that the application has named have no marks, and maybe other addresses.
        let is_first = known.nodes_of.is_empty();
        let mut nodes = if is_first { Vec::new() } else { known.nodes.clone() };
        let mut all = Slots { view, ..Slots::default() };
        for (primary, slots) in slots_of {
            let is_it = |node: &&Arc<Node>| {
                (&node.address, &node.id) == (&primary.0, &primary.1)
                    && slots.contains(&Slot::for_key(&node.mark))
            };
            let node = match nodes.iter().find(is_it) {
                Some(node) => node.clone(),
                // Also if the slot of its mark has moved.
                None => {
                    let mut marks = (0..100_000).map(|number| self.keys.node_mark(number));
                    let mark = marks.find(|mark| slots.contains(&Slot::for_key(mark)));
                    let mark = mark.unwrap_or_else(|| self.keys.mark());
                    let node = Arc::new(self.make_node(&nodes, primary, mark)?);
                    node.breaker.connect_if_idle();
                    nodes.push(node.clone());
                    node
                }
            };
            all.nodes_of.extend(slots.into_iter().map(|slot| (slot, node.clone())));
            all.nodes.push(node);
        }
        Ok(all)
    }
}

impl Slots {
    fn node_of(&self, name: &[u8]) -> Option<&Arc<Node>> {
        self.nodes_of.get(&Slot::for_key(name))
    }

    fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.iter().any(|it| Arc::ptr_eq(it, node))
    }
}

/// Sends a command to a node, whatever keys it has.
async fn send(node: &Node, command: Cmd) -> Result<Value, StoreError> {
    let request = Request::Command(command);
    node.breaker.call(async |connection| request.send(connection).await).await
}

/// Returns whether a script meets an error if it uses a key of another node.
async fn refuses_keys_of_others(node: &Node, slots: &Slots) -> bool {
    // At least one of two nodes is another one.
    for node_of_key in slots.nodes.iter().take(2) {
        let mut script = redis::cmd("EVAL");
        script.arg("return redis.call('GET', ARGV[1])").arg(0).arg(&node_of_key.mark);
        let reply = send(node, script).await;
        if reply.is_err_and(|error| error.to_string().contains("non local key")) {
            return true;
        }
    }
    false
}

/// Waits until one of some attempts has succeeded, or all have failed. Each error names its node.
async fn first_success(mut attempts: JoinSet<Result<(), StoreError>>) -> Result<(), StoreError> {
    let mut errors = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(StoreError::Unreachable { message })) => errors.push(message),
            Ok(Err(error)) => errors.push(error.to_string()),
            // Its runtime ends.
            Err(_) => {}
        }
    }
    errors.sort();
    Err(StoreError::Unreachable { message: errors.join(", ") })
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;
    use test_support::Redis;

    use super::*;

    /// As behind some proxies. A call that declares no keys would make a log on the wrong server.
    #[tokio::test]
    async fn keys_of_servers_that_take_all_share_no_call() {
        let servers = [Redis::start().await, Redis::start().await];
        let seeds = servers.iter().map(|it| it.url().into_connection_info().unwrap()).collect();
        let (timeout, keys) = (Duration::from_secs(5), Keys::new("tsw".to_owned()));
        let cluster =
            Cluster::new(seeds, Certificates::default(), timeout, Health::default(), keys);
        let (cluster, name) = (cluster.unwrap(), b"tsw:{=alice}:user:1h");
        let nodes = cluster.slots.load().nodes.clone();
        let nodes_of = [(Slot::for_key(name), nodes[0].clone())].into_iter().collect();
        cluster.slots.store(Arc::new(Slots { nodes, nodes_of, ..Slots::default() }));
        let slots = cluster.slots.load_full();
        assert!(!refuses_keys_of_others(&slots.nodes[0], &slots).await);
        assert_eq!(cluster.number_of(name), None);
    }

    /// All but one of many nodes have other addresses at once, or all have.
    #[tokio::test]
    async fn new_addresses_of_many_nodes_are_found_at_once() {
        let real = test_support::Cluster::start().await;
        for is_one_there in [true, false] {
            let (named, there) =
                (real.nodes[0].url(), ("127.0.0.1".to_owned(), real.nodes[0].port()));
            let named = if is_one_there { "redis://127.0.0.1:1".to_owned() } else { named };
            let (seeds, timeout) =
                (vec![named.into_connection_info().unwrap()], Duration::from_secs(1));
            let (certificates, keys) = (Certificates::default(), Keys::new("tsw".to_owned()));
            let cluster =
                Cluster::new(seeds, certificates, timeout, Health::default(), keys).unwrap();
            let mut nodes = Vec::new();
            for number in 0..30 {
                let is_there = is_one_there && number == 20;
                let address = if is_there { there.clone() } else { ("127.0.0.1".to_owned(), 1) };
                let node = cluster.make_node(&nodes, (address, None), format!("tsw:{number}:mark"));
                let node = Arc::new(node.unwrap());
                let _ = node.breaker.connect().await;
                nodes.push(node);
            }
            let nodes_of = [(Slot::for_key(b"alice"), nodes[0].clone())].into_iter().collect();
            cluster.slots.store(Arc::new(Slots { nodes, nodes_of, ..Slots::default() }));
            cluster.turn.store(0, Ordering::Relaxed);
            let began = Instant::now();
            while cluster.slots.load().nodes.len() != 3 {
                assert!(began.elapsed() < Duration::from_secs(2), "{is_one_there}");
                cluster.refresh_slots(SHORT_PAUSE);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
