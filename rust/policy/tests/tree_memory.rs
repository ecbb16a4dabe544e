//! `max_tree_size` bounds memory. Alone in its process, so that what the process holds is the tree's.

use std::fs;

use sglang_omni_policy::{Candidate, MetricValue, Policy, PolicySettings, RequestKey, build};

const LIMIT: usize = 4 << 20;

/// Bytes of memory that the process holds, of which pages were given back first.
fn resident() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() << 10
}

/// Bytes that the policy says its tree takes for its one worker.
fn counted(policy: &dyn Policy) -> usize {
    let metrics = policy.metrics();
    let metric = metrics.iter().find(|metric| metric.name == "tree_bytes");
    match &metric.unwrap().value {
        MetricValue::GaugeBySlot(bytes) => bytes[0] as usize,
        _ => panic!("one a worker"),
    }
}

/// Has one worker take so many prompts, and returns what is counted and what the process took.
fn take(count: usize, request: impl Fn(usize) -> (String, String)) -> (usize, usize) {
    let fleet = [Candidate {
        slot: 0,
        load: 0,
        url_hash: 0,
    }];
    let policy = build(&PolicySettings {
        max_tree_size: LIMIT,
        ..PolicySettings::default()
    });
    let before = resident();
    for index in 0..count {
        let (model, text) = request(index);
        let key = RequestKey {
            text: text.as_bytes(),
            model: model.as_bytes(),
            ..RequestKey::default()
        };
        policy.choose(&fleet, &key).1.keep();
    }
    (counted(&*policy), resident().saturating_sub(before))
}

#[test]
fn what_is_counted_is_what_it_takes() {
    let model = || "m".to_owned();
    type Prompts<'a> = (&'a str, usize, Box<dyn Fn(usize) -> (String, String)>);
    let cases: [Prompts<'_>; 6] = [
        (
            "short prompts",
            30_000,
            Box::new(move |index| (model(), format!("{index:x}"))),
        ),
        (
            "prompts that part late",
            20_000,
            Box::new(move |index| (model(), format!("{}{index}", "a".repeat(index % 50)))),
        ),
        (
            "long prompts",
            1_000,
            Box::new(move |index| (model(), format!("{index} {}", "x".repeat(10_000)))),
        ),
        (
            "short names of models",
            30_000,
            Box::new(|index| (format!("model {index}"), "hi".to_owned())),
        ),
        (
            "long names of models",
            100,
            Box::new(|index| (format!("{index} {}", "n".repeat(500_000)), "hi".to_owned())),
        ),
        (
            "first letters of many alphabets",
            30_000,
            Box::new(move |index| {
                let letter = char::from_u32(0x100 + index as u32 % 0xd000).unwrap();
                (model(), format!("{letter}{index}"))
            }),
        ),
    ];
    for (name, count, request) in cases {
        let (counted, taken) = take(count, request);
        println!("{name}: {counted} counted, {taken} taken");
        assert!(counted <= LIMIT, "{name}: {counted}");
        // What the allocator and the test itself hold besides.
        assert!(
            taken <= counted * 5 / 4 + (1 << 20),
            "{name}: {counted} counted, {taken} taken"
        );
    }
}
