use super::*;
use crate::blocks::event::{CacheEvent, Stored};
use crate::testing::{fleet, picks};

fn policy(change: impl FnOnce(&mut PolicySettings)) -> CacheAware {
    let mut settings = PolicySettings::default();
    change(&mut settings);
    CacheAware::new(&settings)
}

#[test]
fn a_conversation_stays_where_it_began() {
    let (policy, fleet) = (policy(|_| ()), fleet(4));
    let turns = [
        "once upon a time",
        "once upon a time there was",
        "once upon a time there was a fox",
    ];
    let picks = picks(&policy, &fleet, turns);
    assert!(picks.iter().all(|&pick| pick == picks[0]));
}

#[test]
fn prompts_of_any_size_are_known_to_their_end() {
    for rest in [LARGE - 1, LARGE, 10 * LARGE] {
        let (policy, fleet) = (policy(|_| ()), fleet(4));
        let text = "a beginning".to_owned() + &"x".repeat(rest);
        let first = picks(&policy, &fleet, ["a beginning of another", &text])[1];
        let before = bytes(&policy, first as u32);
        assert_eq!(picks(&policy, &fleet, [text.as_str()]), [first]);
        assert_eq!(bytes(&policy, first as u32), before);
    }
}

#[test]
fn cold_prompts_fill_the_fleet_evenly() {
    let (policy, fleet) = (policy(|_| ()), fleet(4));
    let texts: Vec<String> = (0..40)
        .map(|index| format!("{index:02} {}", "x".repeat(50)))
        .collect();
    let picks = picks(&policy, &fleet, texts.iter().map(String::as_str));
    for worker in 0..4 {
        assert_eq!(picks.iter().filter(|&&pick| pick == worker).count(), 10);
    }
}

#[test]
fn only_a_cold_prompt_minds_how_large_a_tree_is() {
    let (seen, half_new) = ("x".repeat(1000), "x".repeat(50) + &"y".repeat(950));
    for (threshold, stays) in [(0.05, false), (0.04, true)] {
        let (policy, fleet) = (policy(|c| c.cache_threshold = threshold), fleet(2));
        let picks = picks(&policy, &fleet, [seen.as_str(), &half_new]);
        assert_eq!(picks[0] == picks[1], stays, "{threshold}");
    }
}

#[test]
fn a_prompt_leaves_a_busy_worker_and_is_known_at_both_from_then_on() {
    let (policy, mut fleet) = (policy(|_| ()), fleet(2));
    let prompt = ["a prompt that everybody sends"];
    let first = picks(&policy, &fleet, prompt)[0];
    fleet[first].load = 20;
    assert_eq!(picks(&policy, &fleet, prompt), [1 - first]);
    for (busier, idle) in [(0, 1), (1, 0)] {
        (fleet[busier].load, fleet[idle].load) = (3, 0);
        assert_eq!(picks(&policy, &fleet, prompt), [idle]);
    }
    let [one, other] = [0, 1].map(|worker| bytes(&policy, worker));
    assert!(one == other && one > prompt[0].len(), "{one} {other}");
}

#[test]
fn load_counts_for_more_once_both_thresholds_are_passed() {
    for (abs, rel, stays) in [(1, 1.0, false), (16, 1.0, true), (1, 9.0, true)] {
        let change = |c: &mut PolicySettings| {
            (c.balance_abs_threshold, c.balance_rel_threshold) = (abs, rel)
        };
        let (policy, mut fleet) = (policy(change), fleet(2));
        let first = picks(&policy, &fleet, ["known to one"])[0];
        picks(&policy, &fleet, ["new to other"]);
        (fleet[first].load, fleet[1 - first].load) = (19, 6);
        let again = picks(&policy, &fleet, ["known to one"])[0];
        assert_eq!(again == first, stays, "{abs} {rel}");
    }
}

/// Bytes of memory that the tree takes for a worker.
fn bytes(policy: &CacheAware, slot: u32) -> usize {
    policy.state().tree.bytes(slot)
}

/// Ten prompts long enough for their usage to count.
fn long_texts() -> Vec<String> {
    let text = |index| format!("{index} {}", "z".repeat(1498));
    (0..10).map(text).collect()
}

/// Lets a worker answer a prompt, most of which it was thought to know, with this percentage of it cached.
fn answer(policy: &CacheAware, fleet: &[Candidate], text: &str, cached: u64) {
    let key = RequestKey {
        text: text.as_bytes(),
        ..RequestKey::default()
    };
    let receipt = policy.pick(Candidates::new(fleet), &key).receipt;
    let usage = Usage {
        prompt_tokens: 400,
        cached_tokens: 4 * cached,
    };
    policy.kept(receipt);
    policy.answered(receipt, usage);
}

#[test]
fn a_worker_that_lost_its_cache_is_forgotten_what_it_had() {
    let texts = long_texts();
    for (cached, left) in [(90, 10), (0, 4)] {
        let (policy, fleet) = (policy(|_| ()), fleet(1));
        for text in &texts {
            answer(&policy, &fleet, text, 0);
        }
        // The second miss is of the newest text but one, so all that is older is doubtful. Two misses may be two
        // clients' own doing, so they cost half of what is known at most.
        answer(&policy, &fleet, &texts[0], cached);
        answer(&policy, &fleet, &texts[9], cached);
        let kept = bytes(&policy, 0);
        // A text takes some two hundred bytes more than it has.
        assert_eq!(kept / (texts[0].len() + 240), left, "{kept}");
    }
}

#[test]
fn a_miss_says_nothing_while_the_text_may_still_be_on_its_way() {
    let (policy, mut fleet) = (policy(|_| ()), fleet(1));
    let texts = long_texts();
    picks(&policy, &fleet, texts.iter().map(String::as_str));
    fleet[0].load = 20;
    for text in &texts {
        answer(&policy, &fleet, text, 0);
    }
    assert!(bytes(&policy, 0) > 10 * texts[0].len());
}

#[test]
fn models_are_kept_apart() {
    let (policy, fleet) = (policy(|_| ()), fleet(2));
    let pick = |model: &[u8]| {
        let request = RequestKey {
            text: b"the same prompt",
            model,
            session: b"",
            ..RequestKey::default()
        };
        policy.pick(Candidates::new(&fleet), &request).index
    };
    assert_ne!(pick(b"one"), pick(b"two"));
    assert_eq!(pick(b"one"), pick(b"one"));
}

#[test]
fn removed_workers_are_forgotten_and_trees_bounded() {
    let limit = 4000;
    let (policy, fleet) = (policy(|c| c.max_tree_size = limit), fleet(2));
    let texts: Vec<String> = (0..50)
        .map(|index| format!("{index:02} {}", "y".repeat(30)))
        .collect();
    picks(&policy, &fleet, texts.iter().map(String::as_str));
    let bytes = |slot| bytes(&policy, slot);
    assert!(bytes(0) <= limit && bytes(1) <= limit && bytes(0) > 0 && bytes(1) > 0);
    policy.maintain(&[0]);
    assert!(bytes(0) > 0 && bytes(1) == 0);
}

#[test]
fn all_trees_share_a_gibibyte() {
    let policy = policy(|c| c.max_tree_size = 16 << 20);
    for (workers, kept) in [(1, 16 << 20), (64, 16 << 20), (1024, 1 << 20)] {
        assert_eq!(policy.limits(workers).kept, kept);
    }
    assert_eq!(policy.limits(4).pending, 4 << 20);
}

#[test]
fn a_large_tree_may_be_had_by_one_worker() {
    let policy = policy(|c| c.max_tree_size = 4 << 30);
    assert_eq!(policy.limits(1).kept, 4 << 30);
    assert_eq!(policy.limits(4).kept, 1 << 30);
}

#[test]
fn the_lock_is_free_while_a_worker_is_forgotten() {
    let (policy, fleet) = (policy(|_| ()), fleet(1));
    let texts: Vec<String> = (0..5000).map(|index| format!("{index:04} text")).collect();
    picks(&policy, &fleet, texts.iter().map(String::as_str));
    let before = policy.state().tree.nodes();
    assert!(!policy.state().tree.shrink_some(0, 0, NODES_A_HOLD));
    let left = policy.state().tree.nodes();
    assert!(left >= before - NODES_A_HOLD && left < before);
    policy.forget(0);
    assert_eq!(policy.state().tree.nodes(), 0);
}

#[test]
fn a_panic_costs_what_was_learned_and_no_more() {
    let (policy, fleet) = (policy(|_| ()), fleet(2));
    let panic = || {
        let _state = policy.state();
        panic!("the thread that held the tree");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
    let picks = picks(&policy, &fleet, ["a prompt", "a prompt"]);
    assert_eq!(picks[0], picks[1]);
}

/// The workers that a burst of so many requests of one prefix gets, none of them answered.
fn burst(policy: &CacheAware, fleet: &mut [Candidate], count: usize) -> Vec<usize> {
    for index in 0..count {
        let text = format!("{} {index}", "shared ".repeat(500));
        let request = RequestKey {
            text: text.as_bytes(),
            ..RequestKey::default()
        };
        let chosen = policy.pick(Candidates::new(fleet), &request);
        fleet[chosen.index].load += 1;
    }
    fleet.iter().map(|worker| worker.load).collect()
}

#[test]
fn the_first_burst_is_spread_whatever_came_before_it() {
    let long = "y".repeat(100_000);
    for before in [vec![], vec!["hi"], vec![&long], vec!["hi"; 240]] {
        let (policy, mut fleet) = (policy(|_| ()), fleet(4));
        picks(&policy, &fleet, before.iter().copied());
        let spread = burst(&policy, &mut fleet, 128);
        // Where all that was seen is short, a load is worth little until longer ones have come.
        let most = if before.len() < 2 { 44 } else { 64 };
        let is_spread = spread.iter().all(|&load| load <= most);
        assert!(is_spread, "after {} prompts: {spread:?}", before.len());
    }
}

#[test]
fn what_nothing_came_of_leaves_nothing_behind() {
    let (policy, fleet) = (policy(|_| ()), fleet(2));
    picks(&policy, &fleet, ["known"]);
    let before = [0, 1].map(|slot| bytes(&policy, slot));
    let mean = policy.state().balance.mean_text();
    for index in 0..200 {
        let text = format!("{index} {}", "x".repeat(100_000));
        let request = RequestKey {
            text: text.as_bytes(),
            ..RequestKey::default()
        };
        let policy: &dyn Policy = &policy;
        let (_, claim) = policy.choose(&fleet, &request);
        drop(claim);
    }
    assert_eq!(before, [0, 1].map(|slot| bytes(&policy, slot)));
    let state = policy.state();
    assert_eq!(state.balance.mean_text(), mean);
    assert_eq!([0, 1].map(|slot| state.tree.pending(slot)), [0, 0]);
}

#[test]
fn prompts_too_short_to_judge_by_correct_nothing() {
    for (text, tokens) in [("x".repeat(900), 400), ("x".repeat(4000), 200)] {
        let (policy, fleet) = (policy(|_| ()), fleet(1));
        let texts = long_texts();
        picks(&policy, &fleet, texts.iter().map(String::as_str));
        for index in 0..4 {
            let request = RequestKey {
                text: text.as_bytes(),
                ..RequestKey::default()
            };
            let decision = policy.pick(Candidates::new(&fleet), &request);
            policy.kept(decision.receipt);
            let usage = Usage {
                prompt_tokens: tokens,
                cached_tokens: 0,
            };
            policy.answered(decision.receipt, usage);
            picks(&policy, &fleet, [format!("other {index}").as_str()]);
        }
        assert!(bytes(&policy, 0) > 10 * texts[0].len());
    }
}

/// Has a worker publish that it has a prompt of blocks of four tokens.
fn publish(policy: &CacheAware, slot: u32, tokens: &[u32]) {
    let blocks = (0..tokens.len() as u64 / 4).map(|at| 1000 * u64::from(slot) + at);
    let stored = Stored {
        blocks: blocks.collect(),
        tokens: tokens.to_vec(),
        block_size: 4,
        ..Stored::default()
    };
    policy.blocks.apply(slot, 0, &CacheEvent::Stored(stored));
}

/// The worker that a prompt of tokens is sent to; it answers at once.
fn pick_tokens(policy: &dyn Policy, fleet: &[Candidate], tokens: &[u32]) -> u32 {
    let text: String = tokens.iter().map(|id| format!("{id},")).collect();
    let request = RequestKey {
        text: text.as_bytes(),
        tokens,
        ..RequestKey::default()
    };
    let (index, claim) = policy.choose(fleet, &request);
    claim.keep();
    fleet[index].slot
}

#[test]
fn what_workers_publish_counts_instead_of_the_tree() {
    let (policy, fleet) = (policy(|_| ()), fleet(4));
    let prompt: Vec<u32> = (100..900).collect();
    let first = pick_tokens(&policy, &fleet, &prompt);
    assert_eq!(pick_tokens(&policy, &fleet, &prompt), first);
    // The worker says that it has lost the prompt, and another one that it has it.
    let other = (first + 1) % 4;
    (0..4).for_each(|slot| policy.blocks.cover(slot, Coverage::Whole));
    publish(&policy, other, &prompt);
    for _ in 0..4 {
        assert_eq!(pick_tokens(&policy, &fleet, &prompt), other);
    }
    // Of a worker of which only a part is known, what the tree says counts.
    policy.blocks.forget(other);
    policy.blocks.cover(other, Coverage::Whole);
    policy.blocks.cover(first, Coverage::Part);
    assert_eq!(pick_tokens(&policy, &fleet, &prompt), first);
}

#[test]
fn prompts_on_their_way_to_a_worker_that_publishes_stay_together() {
    let (policy, fleet) = (policy(|_| ()), fleet(4));
    (0..4).for_each(|slot| policy.blocks.cover(slot, Coverage::Whole));
    let tokens: Vec<u32> = (100..900).collect();
    let text = "x".repeat(4000);
    let request = RequestKey {
        text: text.as_bytes(),
        tokens: &tokens,
        ..RequestKey::default()
    };
    let policy: &dyn Policy = &policy;
    let (first, claim) = policy.choose(&fleet, &request);
    let (second, _other) = policy.choose(&fleet, &request);
    assert_eq!(first, second);
    drop(claim);
}
