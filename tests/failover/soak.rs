//! Faults at random for as long as one likes: `tests/soak.sh MINUTES [SEED]`.

use crate::*;

/// What can go wrong.
const FAULTS: [&str; 12] = [
    "kill -9 and restart",
    "SIGSTOP and SIGCONT",
    "a cut network",
    "a network that passes nothing on",
    "answers 20 to 200 ms late",
    "replies lost",
    "SCRIPT FLUSH",
    "CLIENT KILL",
    "OOM",
    "BUSY",
    "READONLY",
    "NOPERM",
];

async fn inject(fault: &str, redis: &mut Redis, proxy: &Proxy, random: &mut fastrand::Rng) {
    let span = Duration::from_millis(random.u64(50..4_000));
    match fault {
        "kill -9 and restart" => {
            redis.kill();
            sleep(span).await;
            redis.restart().await;
        }
        "SIGSTOP and SIGCONT" => {
            redis.signal("STOP");
            sleep(span).await;
            redis.signal("CONT");
        }
        "a cut network" => through(proxy, Fault::Cut, span).await,
        "a network that passes nothing on" => through(proxy, Fault::Stall, span).await,
        "answers 20 to 200 ms late" => {
            let late = Duration::from_millis(random.u64(20..200));
            through(proxy, Fault::Delay(late), span).await;
        }
        "replies lost" => {
            let all = proxy.dropped() + random.usize(1..10);
            proxy.drop_replies(all - proxy.dropped());
            // The fault lasts until each is lost; a new connection needs replies too.
            while proxy.dropped() < all {
                sleep(Duration::from_millis(5)).await;
            }
        }
        "SCRIPT FLUSH" => redis.run(&["SCRIPT", "FLUSH"]).await,
        "CLIENT KILL" => redis.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await,
        "OOM" => between(redis, "CONFIG SET maxmemory", "1", span, "0").await,
        "BUSY" => {
            let busy = redis.keep_busy().await;
            sleep(span + Duration::from_millis(500)).await;
            redis.run::<()>(&["SCRIPT", "KILL"]).await;
            busy.await.unwrap();
        }
        "READONLY" => between(redis, "REPLICAOF", "127.0.0.1 1", span, "NO ONE").await,
        "NOPERM" => {
            between(redis, "ACL SETUSER default", "-eval -evalsha", span, "+@all").await;
        }
        unknown => unreachable!("{unknown}"),
    }
}

/// Runs a command with one end, and after a while with another.
async fn between(redis: &Redis, command: &str, begin: &str, span: Duration, end: &str) {
    let run = async |end: &str| {
        let command = format!("{command} {end}");
        redis.run::<()>(&command.split(' ').collect::<Vec<_>>()).await;
    };
    run(begin).await;
    sleep(span).await;
    run(end).await;
}

async fn through(proxy: &Proxy, fault: Fault, span: Duration) {
    proxy.set(fault);
    sleep(span).await;
    proxy.set(Fault::None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "goes on for minutes: tests/soak.sh"]
async fn faults_at_random() {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let minutes = number("SOAK_MINUTES").unwrap_or(1);
    let seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}, {minutes} minutes");
    let mut random = fastrand::Rng::with_seed(seed);

    let mut redis = Redis::start_with(&["--lua-time-limit", "100"]).await;
    let proxy = Proxy::to(redis.port()).await;
    let load = Load::start(store(proxy.url()).await, FailurePolicy::default());

    let (started, end) = (Instant::now(), Instant::now() + Duration::from_secs(minutes * 60));
    let (mut kept, mut faults, mut asked, mut here) = (Vec::new(), 0, 0, 0);
    let mut samples = Vec::new();
    while Instant::now() < end {
        let fault = FAULTS[random.usize(..FAULTS.len())];
        eprintln!("{:>7.1} s  {fault}", started.elapsed().as_secs_f64());
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
