//! Properties of the fair queue on random traffic, and what a flood does to others, in virtual time.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;

const NEVER: Duration = Duration::from_secs(1_000_000);
const CLASSES: [PriorityClass; 3] = [
    PriorityClass::High,
    PriorityClass::Normal,
    PriorityClass::Low,
];

fn name(index: usize) -> TenantName {
    format!("tenant {index}").into()
}

fn weighing(weight: f64) -> Share {
    Share {
        weight,
        most_running: usize::MAX,
    }
}

fn push(
    queue: &mut FairQueue<u64>,
    now: Instant,
    tenant: usize,
    class: PriorityClass,
    cost: f64,
) -> u64 {
    queue.push(now, (&name(tenant), weighing(1.0)), class, cost, 0)
}

/// The ids in the order of their turns, each of which ends at once.
fn order(queue: &mut FairQueue<u64>, now: Instant) -> Vec<u64> {
    let mut ids = Vec::new();
    while let Some(turn) = queue.next(now) {
        queue.leave(&turn.tenant);
        ids.push(turn.id);
    }
    ids
}

/// A queue whose one place is taken by somebody else.
fn busy(size: usize, rises_after: Duration) -> (FairQueue<u64>, Instant) {
    let (mut queue, now) = (FairQueue::new(1, size, rises_after), Instant::now());
    push(&mut queue, now, 99, PriorityClass::Normal, 1.0);
    queue.next(now).unwrap();
    (queue, now)
}

#[test]
fn random_traffic_loses_nothing_and_keeps_every_limit() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let (limit, size) = (rng.usize(1..6), rng.usize(0..12));
        let start = Instant::now();
        let mut now = start;
        let mut queue = FairQueue::new(limit, size, Duration::from_secs(3));
        let shares: Vec<Share> = (0..5)
            .map(|_| Share {
                weight: rng.f64() * 4.0 + 0.1,
                most_running: rng.usize(1..5),
            })
            .collect();
        // By tenant and class, with ages that mix classes left out of the check of order.
        let mut waiting: BTreeMap<u64, usize> = BTreeMap::new();
        let mut running = [0; 5];
        for _ in 0..400 {
            now += Duration::from_millis(rng.u64(0..400));
            match rng.u8(..4) {
                0 | 1 => {
                    let (tenant, class) = (rng.usize(..5), CLASSES[rng.usize(..3)]);
                    let share = shares[tenant];
                    let refuses = queue.refuses((&name(tenant), share), class);
                    let cost = rng.f64() * 100.0 + 1.0;
                    let id = queue.push(now, (&name(tenant), share), class, cost, 0);
                    waiting.insert(id, tenant);
                    let begun = begin(&mut queue, now, &mut waiting, &mut running);
                    let shed = queue.shed();
                    if let Some(shed) = &shed {
                        assert_eq!(name(waiting.remove(&shed.id).unwrap()), shed.tenant);
                    }
                    if begun == 0 {
                        assert_eq!(
                            refuses,
                            shed.is_some_and(|shed| shed.id == id),
                            "seed {seed}"
                        );
                    }
                }
                2 => {
                    let busy: Vec<usize> = (0..5).filter(|&t| running[t] > 0).collect();
                    if let Some(&tenant) = rng.choice(&busy) {
                        queue.leave(&name(tenant));
                        running[tenant] -= 1;
                    }
                }
                _ => {
                    let ids: Vec<u64> = waiting.keys().copied().collect();
                    if let Some(&id) = rng.choice(&ids) {
                        let tenant = waiting.remove(&id).unwrap();
                        assert!(queue.remove(&name(tenant), id).is_some());
                        assert!(queue.remove(&name(tenant), id).is_none());
                    }
                }
            }
            begin(&mut queue, now, &mut waiting, &mut running);
            assert_eq!(queue.waiting(), waiting.len());
            assert!(queue.waiting() <= size && running.iter().sum::<usize>() <= limit);
            let is_within = |tenant: usize| running[tenant] <= shares[tenant].most_running;
            assert!((0..5).all(is_within));
            // Work conserving: whoever waits is kept by the limit of all, or by its own.
            let has_place = running.iter().sum::<usize>() < limit;
            let could_run = |&tenant: &usize| running[tenant] < shares[tenant].most_running;
            assert!(
                !has_place || !waiting.values().any(could_run),
                "seed {seed}"
            );
        }
        for id in waiting.clone().keys() {
            queue.remove(&name(waiting[id]), *id);
        }
        for (tenant, count) in running.iter().enumerate() {
            (0..*count).for_each(|_| queue.leave(&name(tenant)));
        }
        assert!(queue.accounts.is_empty());
        assert!(
            queue
                .levels
                .iter()
                .all(|level| level.flows.is_empty() && level.heads.is_empty())
        );
    }
}

fn begin(
    queue: &mut FairQueue<u64>,
    now: Instant,
    waiting: &mut BTreeMap<u64, usize>,
    running: &mut [usize; 5],
) -> usize {
    let mut begun = 0;
    while let Some(turn) = queue.next(now) {
        let tenant = waiting.remove(&turn.id).expect("it had waited");
        assert_eq!(turn.tenant, name(tenant));
        running[tenant] += 1;
        begun += 1;
    }
    begun
}

#[test]
fn a_tenants_requests_of_a_class_keep_their_order() {
    let mut rng = Rng::with_seed(1);
    let (mut queue, now) = busy(1000, NEVER);
    let mut sent: BTreeMap<u64, (usize, PriorityClass)> = BTreeMap::new();
    for _ in 0..300 {
        let kind = (rng.usize(..4), CLASSES[rng.usize(..3)]);
        let cost = rng.f64() * 50.0 + 1.0;
        sent.insert(push(&mut queue, now, kind.0, kind.1, cost), kind);
    }
    queue.leave(&name(99));
    let ids = order(&mut queue, now);
    assert_eq!(ids.len(), 300);
    for kind in sent.values() {
        let of_kind: Vec<u64> = ids.iter().copied().filter(|id| sent[id] == *kind).collect();
        assert!(of_kind.is_sorted());
    }
    let classes: Vec<PriorityClass> = ids.iter().map(|id| sent[id].1).collect();
    assert!(classes.is_sorted());
}

#[test]
fn shares_follow_weights_within_one_request_of_each() {
    for seed in 0..50 {
        let mut rng = Rng::with_seed(seed);
        let weights: Vec<f64> = (0..4).map(|_| rng.f64() * 5.0 + 0.2).collect();
        let (mut queue, now) = busy(100_000, NEVER);
        for (tenant, &weight) in weights.iter().enumerate() {
            for _ in 0..2000 {
                let cost = rng.f64() * 20.0 + 1.0;
                queue.push(
                    now,
                    (&name(tenant), weighing(weight)),
                    PriorityClass::Normal,
                    cost,
                    cost.to_bits(),
                );
            }
        }
        queue.leave(&name(99));
        let mut served = [0.0; 4];
        // While all of them wait, no two differ by more than Goyal's bound: the largest cost over each one's weight.
        for _ in 0..1000 {
            let turn = queue.next(now).unwrap();
            queue.leave(&turn.tenant);
            let tenant = (0..4).find(|&tenant| name(tenant) == turn.tenant).unwrap();
            served[tenant] += f64::from_bits(turn.item) / weights[tenant];
            for (one, other) in (0..4).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let bound = 21.0 / weights[one] + 21.0 / weights[other];
                assert!((served[one] - served[other]).abs() <= bound, "seed {seed}");
            }
        }
    }
}

#[test]
fn who_was_silent_is_neither_credited_nor_punished() {
    let (mut queue, now) = busy(1000, NEVER);
    for _ in 0..100 {
        push(&mut queue, now, 0, PriorityClass::Normal, 10.0);
    }
    queue.leave(&name(99));
    for _ in 0..50 {
        let turn = queue.next(now).unwrap();
        queue.leave(&turn.tenant);
    }
    let late: Vec<u64> = (0..50)
        .map(|_| push(&mut queue, now, 1, PriorityClass::Normal, 10.0))
        .collect();
    let ids = order(&mut queue, now);
    let first: Vec<bool> = ids[..20].iter().map(|id| late.contains(id)).collect();
    assert_eq!(first.iter().filter(|&&is_late| is_late).count(), 10);
}

#[test]
fn nobody_starves_while_a_higher_class_floods() {
    let rises_after = Duration::from_secs(5);
    let (mut queue, mut now) = busy(1000, rises_after);
    let start = now;
    let id = push(&mut queue, now, 0, PriorityClass::Low, 500.0);
    queue.leave(&name(99));
    for _ in 0..200 {
        now += Duration::from_millis(100);
        push(&mut queue, now, 1, PriorityClass::High, 10.0);
        push(&mut queue, now, 1, PriorityClass::High, 10.0);
        let turn = queue.next(now).unwrap();
        queue.leave(&turn.tenant);
        if turn.id == id {
            // Two classes higher it is the next, since its tenant had nothing there.
            assert!((now - start).as_secs() >= 10 && (now - start).as_secs() < 12);
            return;
        }
    }
    panic!("it starves");
}

#[test]
fn a_full_queue_loses_the_newest_of_who_is_most_over_its_share() {
    let (mut queue, now) = busy(4, NEVER);
    let ids: Vec<u64> = (0..4)
        .map(|_| push(&mut queue, now, 0, PriorityClass::Normal, 1.0))
        .collect();
    assert!(queue.shed().is_none());
    assert!(queue.refuses((&name(0), weighing(1.0)), PriorityClass::Normal));
    assert!(!queue.refuses((&name(1), weighing(1.0)), PriorityClass::Normal));
    push(&mut queue, now, 1, PriorityClass::Normal, 1.0);
    assert_eq!(queue.shed().map(|turn| turn.id), Some(ids[3]));
    // With the same number each, the one that comes is refused; a higher class of its own tenant is not.
    push(&mut queue, now, 1, PriorityClass::Low, 1.0);
    assert_eq!(queue.shed().map(|turn| turn.id), Some(ids[2]));
    assert!(queue.refuses((&name(1), weighing(1.0)), PriorityClass::Low));
    assert!(!queue.refuses((&name(1), weighing(1.0)), PriorityClass::High));
    assert!(!queue.refuses((&name(1), weighing(10.0)), PriorityClass::High));
}

#[test]
fn a_tenant_at_its_own_limit_keeps_no_other_waiting() {
    let now = Instant::now();
    let mut queue = FairQueue::new(8, 100, NEVER);
    let share = Share {
        weight: 1.0,
        most_running: 2,
    };
    for _ in 0..5 {
        queue.push(now, (&name(0), share), PriorityClass::High, 1.0, 0);
    }
    assert_eq!((0..9).map_while(|_| queue.next(now)).count(), 2);
    let id = push(&mut queue, now, 1, PriorityClass::Low, 1.0);
    assert_eq!(queue.next(now).map(|turn| turn.id), Some(id));
    assert!(queue.next(now).is_none());
    queue.leave(&name(0));
    assert!(queue.next(now).is_some());
}

#[test]
fn the_place_in_the_queue_is_known() {
    let (mut queue, now) = busy(100, NEVER);
    let mut rng = Rng::with_seed(3);
    let pushed: Vec<(usize, u64)> = (0..40)
        .map(|_| {
            let tenant = rng.usize(..3);
            let class = CLASSES[rng.usize(..3)];
            (
                tenant,
                push(&mut queue, now, tenant, class, rng.f64() * 9.0 + 1.0),
            )
        })
        .collect();
    let ahead: BTreeMap<u64, usize> = pushed
        .iter()
        .map(|&(tenant, id)| (id, queue.ahead(&name(tenant), id)))
        .collect();
    queue.leave(&name(99));
    for (place, id) in order(&mut queue, now).into_iter().enumerate() {
        assert_eq!(ahead[&id], place);
    }
}

/// The 99th percentile of the second tenant's answers in seconds, and how many of its requests were refused. There are
/// 32 places, which serve 80 requests a second, so that each tenant's share is 40. The second sends half of its share,
/// the first `flood` times its share.
fn waits(flood: u32, is_fair: bool) -> (f64, u32) {
    let (limit, service) = (32, Duration::from_millis(400));
    let mut queue = FairQueue::new(limit, 100, NEVER);
    let start = Instant::now();
    let mut rng = Rng::with_seed(7);
    let mut arrivals: Vec<(Instant, usize)> = Vec::new();
    for (tenant, rate) in [(0, 40 * flood), (1, 20)] {
        let mut at = 0.0;
        while rate > 0 && at < 100.0 {
            at += -(1.0 - rng.f64()).ln() / f64::from(rate);
            arrivals.push((start + Duration::from_secs_f64(at), tenant));
        }
    }
    arrivals.sort();
    let mut ends: BTreeSet<(Instant, u64, TenantName)> = BTreeSet::new();
    let (mut waited, mut refused) = (Vec::new(), 0);
    let mut began = HashMap::new();
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let next_end = ends.first().map(|(at, ..)| *at);
        let now = match (arrivals.peek(), next_end) {
            (Some((at, _)), end) if end.is_none_or(|end| *at < end) => {
                let (at, tenant) = arrivals.next().unwrap();
                // All of one tenant is a plain queue.
                let flow = if is_fair { name(tenant) } else { name(0) };
                let id = queue.push(
                    at,
                    (&flow, weighing(1.0)),
                    PriorityClass::Normal,
                    100.0,
                    tenant as u64,
                );
                began.insert(id, at);
                at
            }
            (_, Some(end)) => {
                let (_, _, tenant) = ends.pop_first().unwrap();
                queue.leave(&tenant);
                end
            }
            _ => break,
        };
        while let Some(turn) = queue.next(now) {
            let took = service.mul_f64(0.5 + rng.f64());
            ends.insert((now + took, turn.id, turn.tenant));
            if turn.item == 1 {
                waited.push((now - began[&turn.id]).as_secs_f64() + took.as_secs_f64());
            }
        }
        if let Some(shed) = queue.shed() {
            refused += u32::from(shed.item == 1);
        }
    }
    waited.sort_by(f64::total_cmp);
    (waited[waited.len() * 99 / 100], refused)
}

#[test]
fn a_flood_does_not_move_anothers_tail() {
    let (alone, _) = waits(0, true);
    let (at_share, _) = waits(1, true);
    let (flooded, refused) = waits(20, true);
    let (in_a_row, refused_in_a_row) = waits(20, false);
    println!(
        "99th percentile in s: alone {alone:.3}, beside one at its share {at_share:.3}, at 20 times {flooded:.3}"
    );
    println!(
        "in a plain queue {in_a_row:.3}; refused: {refused}, in a plain queue {refused_in_a_row}"
    );
    assert!(refused == 0 && refused_in_a_row > 1000);
    assert!(in_a_row > 2.0 * alone);
    assert!(flooded < 1.1 * alone, "{flooded} {alone}");
}
