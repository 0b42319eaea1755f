//! Both stores return equal outcomes over random histories.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::in_process::Group;

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Rewind(u64),
    /// A message, or none.
    Check {
        group: usize,
        id: Option<u8>,
    },
    Repeat(prop::sample::Index),
    Profile {
        group: usize,
        step_us: u64,
    },
    Rule(StormRule),
}

const GROUPS: [&str; 2] = ["lobby", "}\0%"];

fn step() -> impl Strategy<Value = Step> {
    let group = || 0..GROUPS.len();
    // Often a multiple of half a window, plus or minus a microsecond.
    let advance = prop_oneof![
        3 => 0..4 * SECOND,
        2 => (0..3_u64, 0..3_u64).prop_map(|(n, off)| (n * 5 * SECOND + off).saturating_sub(1)),
        1 => 0..40 * SECOND,
    ];
    prop_oneof![
        4 => advance.prop_map(Step::Advance),
        1 => (1..30 * SECOND).prop_map(Step::Rewind),
        23 => (group(), prop::option::weighted(0.87, any::<u8>()))
            .prop_map(|(group, id)| Step::Check { group, id }),
        2 => any::<prop::sample::Index>().prop_map(Step::Repeat),
        2 => (group(), SECOND / 2..12 * SECOND)
            .prop_map(|(group, step_us)| Step::Profile { group, step_us }),
        1 => (2..8_u32, 0..8_u32, 1..6_u32, 0..3_u64).prop_map(|(limit, ends, more, cool)| {
            let cool_down = Duration::from_secs(cool * 7);
            let rule = rule(limit).ends_below(1 + ends % limit).cap(limit + more);
            Step::Rule(rule.cool_down(cool_down))
        }),
    ]
}

fn rule(limit: u32) -> StormRule {
    StormRule::new(format!("{limit}/10s").parse().unwrap()).named("same")
}

/// An in-process group with the clock of the test, and with the events that a repeated call gets again.
#[derive(Default)]
struct Model {
    group: Group,
    /// By how much the group's timestamps are ahead of the clock after it has stepped back.
    offset_us: u64,
    /// The call that has started the last storm, when, and the count then.
    started: Option<(Uuid, u64, u32)>,
    /// The call that has ended the last storm, when, how long it lasted, and its peak.
    ended: Option<(Uuid, u64, u64, u32)>,
}

impl Model {
    fn newest_us(&self) -> u64 {
        self.group.entries.back().map_or(0, |(at_us, _)| *at_us)
    }

    fn check(&mut self, check: &Check, clock_us: u64) -> Outcome {
        let since_us = self.started.map_or(0, |(_, at_us, _)| at_us);
        let until_us = self.ended.map_or(0, |(_, at_us, ..)| at_us);
        let latest_us = self.newest_us().max(since_us).max(until_us);
        self.offset_us = self.offset_us.max(latest_us.saturating_sub(clock_us));
        let now_us = clock_us + self.offset_us;
        let outcome = self.group.check(check, now_us);
        if let Some((ago_us, lasted_us, peak)) = outcome.ended {
            self.ended = Some((check.call, now_us - ago_us, lasted_us, peak));
        }
        if let Some((ago_us, count)) = outcome.started {
            self.started = Some((check.call, now_us - ago_us, count));
        }
        let started = self.started.filter(|(call, ..)| *call == check.call);
        let ended = self.ended.filter(|(call, ..)| *call == check.call);
        let at = std::time::UNIX_EPOCH;
        Outcome {
            at,
            started: started.map(|(_, at_us, count)| (now_us - at_us, count)),
            ended: ended.map(|(_, at_us, lasted_us, peak)| (now_us - at_us, lasted_us, peak)),
            ..outcome
        }
    }
}

async fn assert_equal(world: &mut World, steps: &[Step], run: u32) {
    world.rule = Arc::new(rule(4).cap(7));
    let mut sent: Vec<Check> = Vec::new();
    let mut models: HashMap<Key, Model> = HashMap::new();
    let group = |at: usize| Key::from(format!("{run}:{}", GROUPS[at]));
    for step in steps {
        let clock_us = world.now_us;
        let check = match step {
            Step::Advance(by_us) => {
                world.advance(*by_us).await;
                continue;
            }
            Step::Rewind(by_us) => {
                world.step_back(*by_us).await;
                continue;
            }
            Step::Rule(rule) => {
                world.rule = Arc::new(rule.clone());
                continue;
            }
            Step::Profile { group: at, step_us } => {
                let group = group(*at);
                let counts = world.profile_of(&group, *step_us).await;
                let model = models.entry(group).or_default();
                let now_us = (clock_us + model.offset_us).max(model.newest_us());
                let expected = model.group.profile(world.rule.window_us(), *step_us, now_us);
                assert_eq!(counts, expected, "{step:?} in {steps:?}");
                continue;
            }
            Step::Check { group: at, id } => {
                world.check_of(group(*at), id.map(|id| Key::from([id])))
            }
            Step::Repeat(_) if sent.is_empty() => continue,
            Step::Repeat(at) => sent[at.index(sent.len())].clone(),
        };
        let expected = models.entry(check.group.clone()).or_default().check(&check, clock_us);
        let outcome = Outcome { at: expected.at, ..world.check(&check).await };
        assert_eq!(outcome, expected, "{step:?} in {steps:?}");
        sent.push(check);
    }
}

#[test]
fn stores_agree_over_random_histories() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let world = RefCell::new(runtime.block_on(World::on_redis()));
    let run = Cell::new(0);
    proptest!(ProptestConfig::with_cases(150), |(steps in prop::collection::vec(step(), 1..120))| {
        run.set(run.get() + 1);
        runtime.block_on(assert_equal(&mut world.borrow_mut(), &steps, run.get()));
    });
}
