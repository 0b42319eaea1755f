//! Faults at random for as long as one likes: `tests/soak.sh MINUTES [SEED]`.

use crate::faults::{NO_SCRIPTS, Trouble};
use crate::*;

/// Returns what goes wrong next. Without a trouble it is that replies are lost.
fn choose<'a>(random: &mut Rng) -> Option<Trouble<'a>> {
    use Trouble::{Busy, Commands, Killed, Network, Stopped};
    let late = Fault::Delay(Duration::from_millis(random.u64(20..200)));
    let troubles = [
        Killed,
        Stopped,
        Busy,
        NO_SCRIPTS,
        Network(Fault::Cut),
        Network(Fault::Stall),
        Network(late),
        Commands("SCRIPT FLUSH", "PING"),
        Commands("CLIENT KILL TYPE normal SKIPME yes", "PING"),
        Commands("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        Commands("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ];
    troubles.get(random.usize(..=troubles.len())).copied()
}

async fn inject(trouble: Option<Trouble<'_>>, redis: &mut Redis, proxy: &Proxy, random: &mut Rng) {
    if let Some(trouble) = trouble {
        trouble.begin(redis, proxy).await;
        sleep(Duration::from_millis(random.u64(50..4_000))).await;
        return trouble.end(redis, proxy).await;
    }
    let all = proxy.dropped() + random.usize(1..10);
    proxy.drop_replies(all - proxy.dropped());
    // Until each is lost; a new connection needs replies too.
    eventually("replies are lost", async || proxy.dropped() >= all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "goes on for minutes: tests/soak.sh"]
async fn faults_at_random() {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let minutes = number("SOAK_MINUTES").unwrap_or(1);
    let seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}, {minutes} minutes");
    let mut random = Rng::with_seed(seed);

    let mut redis = Redis::start_with(&["--lua-time-limit", "100"]).await;
    let proxy = Proxy::to(redis.port()).await;
    let load = Load::start(store(proxy.url()).await, FailurePolicy::default());

    let (started, end) = (Instant::now(), Instant::now() + Duration::from_secs(minutes * 60));
    let (mut kept, mut faults, mut asked, mut here) = (Vec::new(), 0, 0, 0);
    let mut samples = Vec::new();
    while Instant::now() < end {
        let fault = choose(&mut random);
        eprintln!("{:>7.1} s  {fault:?}", started.elapsed().as_secs_f64());
        inject(fault, &mut redis, &proxy, &mut random).await;
        faults += 1;
        let back = load.store_must_be_back().await;
        load.until_decided_by(DecidedBy::Store).await;
        sleep(Duration::from_millis(500 + random.u64(0..1_500))).await;

        let new = load.take();
        new.decided_by_the_store_since(back);
        asked += new.0.len();
        here += new.count(|it| it.decided_by == Some(DecidedBy::LocalLog));
        new.are_decisions();
        kept.extend(new.0);
        let answers = Responses(std::mem::take(&mut kept));
        let over = answers.over_admitted();
        assert_eq!(over, 0, "after {fault:?}, with seed {seed}: {:#?}", answers.fullest());
        // A window may reach back into what was looked at before.
        let from = Instant::now() - WINDOW * 2;
        kept = answers.between(from, Instant::now()).0;

        let resident_kib = memory_kb("self", "VmRSS");
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        samples.push((resident_kib, descriptors));
        println!(
            "{:>5} s  {faults:>4} faults  {asked:>9} requests  {here:>6} admitted here  \
             {resident_kib:>7} KiB  {descriptors:>3} descriptors",
            started.elapsed().as_secs()
        );
    }
    load.stop().await;
    // What it holds after the first fifth, in which everything has happened once, it still holds.
    let (early, late) = samples.split_at((samples.len() / 5).max(1));
    let most = |samples: &[(u64, usize)]| {
        samples.iter().fold((0, 0), |most, it| (most.0.max(it.0), most.1.max(it.1)))
    };
    let (early, late) = (most(early), most(late));
    println!("most held in the first fifth {early:?}, later {late:?}: (KiB, descriptors)");
    assert!(late.0 <= early.0 * 5 / 4 + 8 * 1024, "memory grows, with seed {seed}");
    assert!(late.1 <= early.1 + 8, "descriptors are lost, with seed {seed}");
    println!("{faults} faults, {asked} requests, {here} admitted here, none above the limit");
}
