//! A TCP proxy that fails on demand in the ways networks do.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// What the proxy does to what passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Breaks all connections and accepts no more.
    Cut,
    /// Keeps connections, and passes nothing on.
    Stall,
    /// The same for the connections that are there. New ones work, as when a firewall has forgotten the old ones.
    Forget,
    /// Passes replies on this much later.
    Delay(Duration),
}

pub struct Proxy {
    port: u16,
    server_port: Arc<AtomicU16>,
    fault: watch::Sender<Fault>,
    drops: Arc<Mutex<Drops>>,
}

#[derive(Default)]
struct Drops {
    to_drop: usize,
    dropped: usize,
    /// A text in requests whose replies are dropped, and of how many.
    marked: (Vec<u8>, usize),
}

impl Drops {
    fn see_request(&mut self, request: &[u8]) {
        let (marker, count) = &mut self.marked;
        if *count > 0 && request.windows(marker.len()).any(|it| it == marker) {
            *count -= 1;
            self.to_drop += 1;
        }
    }

    fn drops_reply(&mut self) -> bool {
        let drops = self.to_drop > 0;
        self.to_drop -= usize::from(drops);
        self.dropped += usize::from(drops);
        drops
    }
}

impl Proxy {
    pub async fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (fault, faults) = watch::channel(Fault::None);
        let drops = Arc::<Mutex<Drops>>::default();
        let server_port = Arc::new(AtomicU16::new(server_port));
        let (counters, target) = (drops.clone(), server_port.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let address = ("127.0.0.1", target.load(Ordering::Relaxed));
                let Ok(server) = TcpStream::connect(address).await else { continue };
                tokio::spawn(connection(client, server, faults.clone(), counters.clone()));
            }
        });
        Self { port, server_port, fault, drops }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connects to the server at this port from now on. The connections that are there stay.
    pub fn lead_to(&self, server_port: u16) {
        self.server_port.store(server_port, Ordering::Relaxed);
    }

    /// Lets a fault begin, or end with [`Fault::None`].
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Lets the server execute the next request, and breaks the connection instead of passing the reply on; so many
    /// times. Of every second reply, the first half is passed on.
    pub fn drop_replies(&self, count: usize) {
        self.drops.lock().unwrap().to_drop += count;
    }

    /// Does the same with the next requests in which a text occurs.
    pub fn drop_replies_to(&self, text: &str, count: usize) {
        self.drops.lock().unwrap().marked = (text.as_bytes().to_vec(), count);
    }

    pub fn dropped(&self) -> usize {
        self.drops.lock().unwrap().dropped
    }
}

async fn connection(
    client: TcpStream,
    server: TcpStream,
    mut faults: watch::Receiver<Fault>,
    drops: Arc<Mutex<Drops>>,
) {
    // The network between has no delays of its own.
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let is_new = *faults.borrow() == Fault::Forget;
    let passes = move |fault: &Fault| match fault {
        Fault::Stall => false,
        Fault::Forget => is_new,
        _ => true,
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut requests_fault = faults.clone();
    let seen = drops.clone();
    let requests = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            seen.lock().unwrap().see_request(&buffer[..length]);
            if requests_fault.wait_for(passes).await.is_err()
                || to_server.write_all(&buffer[..length]).await.is_err()
            {
                break;
            }
        }
    };
    let (line, mut delivered) = mpsc::unbounded_channel();
    let mut replies_fault = faults.clone();
    let replies = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            if drops.lock().unwrap().drops_reply() {
                // Not of several replies together, of which the first one would be whole.
                if length < 256 && drops.lock().unwrap().dropped.is_multiple_of(2) {
                    let _ = line.send((Instant::now(), buffer[..length / 2].to_vec()));
                }
                break;
            }
            if replies_fault.wait_for(passes).await.is_err() {
                break;
            }
            let delay = match *replies_fault.borrow() {
                Fault::Delay(delay) => delay,
                _ => Duration::ZERO,
            };
            if line.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    };
    // Replies travel beside each other, as over a long distance.
    let deliveries = async move {
        while let Some((due, reply)) = delivered.recv().await {
            tokio::time::sleep_until(due).await;
            if to_client.write_all(&reply).await.is_err() {
                break;
            }
        }
    };
    let replies = async { tokio::join!(replies, deliveries) };
    tokio::select! {
        () = requests => {}
        _ = replies => {}
        _ = faults.wait_for(|fault| *fault == Fault::Cut) => {}
    }
}
