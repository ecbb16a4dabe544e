use super::*;

const ALL: TextLimits = TextLimits {
    kept: usize::MAX,
    pending: usize::MAX,
};

/// Room for one node with so much text below the root.
fn room_for(text: usize) -> TextLimits {
    TextLimits {
        kept: text + 2 * OVERHEAD + 8,
        pending: usize::MAX,
    }
}

fn claim(tree: &mut PrefixTree, text: &[u8], worker: u32, limits: TextLimits) -> ClaimId {
    let mut path = Path::new();
    tree.follow(b"m", text, &mut path);
    tree.claim(b"m", text, None, &path, worker, limits)
}

fn insert(tree: &mut PrefixTree, text: &[u8], worker: u32, limits: TextLimits) {
    let claim = claim(tree, text, worker, limits);
    assert!(tree.keep(claim, limits));
}

/// Bytes of text that a worker keeps below roots.
fn text(tree: &PrefixTree, worker: u32) -> usize {
    let kept = tree.links_of(worker, Link::is_kept);
    let below = kept.filter(|node| node.parent != NONE);
    below.map(|node| node.text.len()).sum()
}

fn matched(tree: &PrefixTree, text: &str) -> (usize, Vec<u32>) {
    let mut path = Path::new();
    tree.follow(b"m", text.as_bytes(), &mut path);
    match path.last() {
        None | Some(&(_, 0)) => (0, vec![]),
        Some(&(node, len)) => (len, tree.owners(node).collect()),
    }
}

impl PrefixTree {
    fn oldest_use(&self, worker: u32) -> Option<Stamp> {
        let oldest = self.oldest(worker)?;
        Some(self.links[oldest as usize].used)
    }

    /// The worker's nodes whose link meets the condition.
    fn links_of(&self, worker: u32, is: fn(&Link) -> bool) -> impl Iterator<Item = &Node> {
        let links = move |node: &Node| {
            let link = node.owners.iter().find(|&&(owner, _)| owner == worker);
            link.map(|&(_, link)| self.links[link as usize])
        };
        self.nodes
            .iter()
            .filter(move |node| links(node).is_some_and(|link| is(&link)))
    }
}

/// Checks every invariant of the module's comment.
fn check(tree: &PrefixTree) {
    let link = |index: u32| tree.links[index as usize];
    let mut bytes = vec![(0, 0, 0); tree.tenants.len()];
    let roots: Vec<u32> = tree.roots.values().copied().collect();
    let mut holds = vec![0; tree.links.len()];
    for claim in tree.claims.all() {
        let (node, worker) = claim;
        holds[tree.link_of(node, worker).unwrap() as usize] += 1;
    }
    let mut stack = roots.clone();
    let mut seen = 0;
    while let Some(index) = stack.pop() {
        let node = &tree.nodes[index as usize];
        seen += 1;
        assert!(!node.owners.is_empty());
        for &(worker, here) in &node.owners {
            let above = (node.parent != NONE).then(|| tree.link_of(node.parent, worker).unwrap());
            let (kept, pending, text) = &mut bytes[worker as usize];
            *text += node.text.len();
            match link(here).is_kept() {
                true => *kept += node.cost(),
                false => *pending += node.cost(),
            }
            if let Some(above) = above {
                assert!(link(above).is_kept() || !link(here).is_kept());
                holds[above as usize] += u32::from(!link(here).is_kept());
            }
        }
        assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
        for &(key, child) in &node.children {
            let below = &tree.nodes[child as usize];
            assert_eq!((key, below.parent), (first_char(&below.text), index));
            stack.push(child);
        }
    }
    assert_eq!(seen, tree.nodes() + roots.len());
    for (index, &holds) in holds.iter().enumerate() {
        if !tree.free_links.contains(&(index as u32)) {
            assert_eq!(tree.links[index].holds, holds);
            assert!(holds > 0 || tree.links[index].is_kept());
        }
    }
    for (worker, tenant) in tree.tenants.iter().enumerate() {
        assert_eq!((tenant.kept, tenant.pending, tenant.text), bytes[worker]);
        let (mut at, mut newer) = (tenant.newest, NONE);
        let mut passed = std::collections::HashSet::from([NONE]);
        while at != NONE {
            let here = link(at);
            assert!(newer == NONE || link(newer).used.since(here.used) < u32::MAX / 2);
            assert_eq!((here.newer, here.worker), (newer, worker as u32));
            let parent = tree.nodes[here.node as usize].parent;
            assert!(passed.contains(&parent), "a parent is newer");
            passed.insert(here.node);
            (newer, at) = (at, here.older);
        }
        assert_eq!(tenant.oldest, newer);
    }
}

#[test]
fn follows_to_the_longest_known_prefix() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"hello world", 0, ALL);
    insert(&mut tree, b"hello there", 1, ALL);
    insert(&mut tree, b"hello", 2, ALL);
    check(&tree);
    assert_eq!(matched(&tree, "hello world!"), (11, vec![0]));
    assert_eq!(matched(&tree, "hello thing"), (8, vec![1]));
    assert_eq!(matched(&tree, "hell"), (4, vec![0, 1, 2]));
    assert_eq!(matched(&tree, "help"), (3, vec![0, 1, 2]));
    assert_eq!(matched(&tree, "other"), (0, vec![]));
    assert_eq!([0, 1, 2].map(|worker| text(&tree, worker)), [11, 11, 5]);
}

#[test]
fn cuts_only_between_characters() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, "caf\u{e9}".as_bytes(), 0, ALL);
    insert(&mut tree, "caf\u{e8}".as_bytes(), 1, ALL);
    insert(&mut tree, "\u{1f600}".as_bytes(), 0, ALL);
    insert(&mut tree, "\u{1f601}".as_bytes(), 0, ALL);
    check(&tree);
    for node in tree.nodes.iter().filter(|node| node.parent != NONE) {
        std::str::from_utf8(&node.text).unwrap();
    }
    assert_eq!(matched(&tree, "caf\u{ea}"), (3, vec![0, 1]));
    assert_eq!(matched(&tree, "\u{1f602}"), (0, vec![]));
}

#[test]
fn what_is_kept_makes_the_least_recently_used_forgotten() {
    let mut tree = PrefixTree::default();
    let limits = TextLimits {
        kept: room_for(8).kept + OVERHEAD,
        ..ALL
    };
    for text in [b"aaaa", b"bbbb", b"aaaa", b"cccc"] {
        insert(&mut tree, text, 0, limits);
    }
    check(&tree);
    assert_eq!(matched(&tree, "bbbb").0, 0);
    assert_eq!((matched(&tree, "aaaa").0, matched(&tree, "cccc").0), (4, 4));
    assert_eq!(text(&tree, 0), 8);
    insert(&mut tree, &[b'x'; 1000], 0, limits);
    assert_eq!((text(&tree, 0), tree.nodes()), (0, 0));
    tree.shrink(0, 0);
    assert_eq!((tree.bytes(0), tree.roots.len()), (0, 0));
}

#[test]
fn a_claim_counts_until_it_is_withdrawn_and_evicts_nothing() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"known and kept", 0, room_for(4000));
    let kept = tree.bytes(0);
    let texts: [&[u8]; 3] = [b"known but longer", &[b'x'; 10_000], b"known"];
    let claims = texts.map(|text| claim(&mut tree, text, 0, room_for(4000)));
    check(&tree);
    assert_eq!(matched(&tree, "known but longer"), (16, vec![0]));
    assert_eq!(matched(&tree, &"x".repeat(10_000)), (10_000, vec![0]));
    assert!(tree.pending(0) > 10_000);
    for claim in claims {
        tree.withdraw(claim);
        check(&tree);
        assert!(!tree.keep(claim, ALL), "it was withdrawn");
    }
    // Nodes that were split for the claims are one again.
    assert_eq!((tree.bytes(0), tree.pending(0), tree.nodes()), (kept, 0, 1));
    assert_eq!(matched(&tree, "known and kept"), (14, vec![0]));
}

#[test]
fn what_two_claim_stays_while_one_does_and_is_kept_for_whom_it_was() {
    let mut tree = PrefixTree::default();
    let [first, second, others] = [(0, "shared 1"), (0, "shared 2"), (1, "shared 1")]
        .map(|(worker, text)| claim(&mut tree, text.as_bytes(), worker, ALL));
    tree.withdraw(first);
    check(&tree);
    assert_eq!(matched(&tree, "shared 2"), (8, vec![0]));
    assert_eq!(matched(&tree, "shared 1"), (8, vec![1]));
    assert!(tree.keep(second, ALL));
    tree.withdraw(others);
    check(&tree);
    assert_eq!(matched(&tree, "shared 2"), (8, vec![0]));
    assert_eq!(matched(&tree, "shared 1").0, 7);
    assert_eq!((tree.pending(0), tree.pending(1), tree.bytes(1)), (0, 0, 0));
}

#[test]
fn what_is_claimed_and_forgotten_stays_for_the_claim() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"seen before", 0, ALL);
    let again = claim(&mut tree, b"seen before", 0, ALL);
    tree.shrink(0, 0);
    check(&tree);
    assert_eq!((tree.bytes(0), matched(&tree, "seen before").0), (0, 11));
    assert!(tree.keep(again, ALL));
    check(&tree);
    assert_eq!((text(&tree, 0), tree.pending(0)), (11, 0));
}

#[test]
fn claims_are_bounded_and_the_largest_goes_first() {
    let mut tree = PrefixTree::default();
    let limits = TextLimits {
        kept: 0,
        pending: 6000,
    };
    let small: Vec<ClaimId> = (0..10)
        .map(|index| claim(&mut tree, format!("{index} small").as_bytes(), 0, limits))
        .collect();
    let large = claim(&mut tree, &[b'x'; 10_000], 0, limits);
    check(&tree);
    assert!(tree.pending(0) <= limits.pending);
    assert!(!tree.keep(large, limits));
    assert!(small.into_iter().all(|claim| tree.keep(claim, limits)));
    check(&tree);
}

#[test]
fn claims_may_have_the_room_that_nothing_is_kept_in() {
    let mut tree = PrefixTree::default();
    let limits = TextLimits {
        kept: 100_000,
        pending: 25_000,
    };
    let text = |index: u8| [&[index + b'0'][..], &[b'x'; 10_000]].concat();
    let claims: Vec<ClaimId> = (0..16)
        .map(|index| claim(&mut tree, &text(index), 0, limits))
        .collect();
    let kept: Vec<bool> = claims
        .into_iter()
        .map(|claim| {
            let is_kept = tree.keep(claim, limits);
            assert!(tree.bytes(0) + tree.pending(0) <= limits.kept + limits.pending);
            is_kept
        })
        .collect();
    assert_eq!(kept.iter().filter(|&&kept| kept).count(), 12);
    check(&tree);
}

#[test]
fn splitting_for_others_is_paid_for() {
    let mut tree = PrefixTree::default();
    let text = [b'y'; 4000];
    let limits = room_for(8000);
    insert(&mut tree, &text, 0, limits);
    for end in (1..4000).rev() {
        insert(&mut tree, &text[..end], 1, limits);
        assert!(tree.bytes(0) <= limits.kept + limits.kept / 8 + OVERHEAD);
        assert!(tree.bytes(1) <= limits.kept);
    }
    check(&tree);
}

#[test]
fn one_workers_eviction_leaves_the_others() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"shared and long", 0, ALL);
    insert(&mut tree, b"shared and short", 1, ALL);
    tree.shrink(0, 0);
    check(&tree);
    assert_eq!(matched(&tree, "shared and short"), (16, vec![1]));
    assert_eq!(tree.workers().collect::<Vec<_>>(), [1]);
}

#[test]
fn random_texts_keep_every_promise() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut tree = PrefixTree::default();
    // The clock wraps on the way.
    let beginning = Tenant {
        now: Stamp(u32::MAX - 300),
        ..NO_TENANT
    };
    tree.tenants = vec![beginning; 4];
    let limits = TextLimits {
        kept: 24 * OVERHEAD,
        pending: 16 * OVERHEAD,
    };
    let mut waiting = Vec::new();
    for step in 0..3000 {
        // Few letters make many shared prefixes; some texts are not UTF-8 at all.
        let alphabet: &[u8] = if rng.bool() {
            b"ab"
        } else {
            &[b'a', 0, 0x80, 0xc3, 0xa9, 0xf0]
        };
        let text: Vec<u8> = (0..rng.usize(0..24))
            .map(|_| *rng.choice(alphabet).unwrap())
            .collect();
        let worker = rng.u32(0..4);
        if text.is_empty() {
            continue;
        }
        // Some wait for a while, for another worker too, and half of those come to nothing.
        if rng.bool() {
            waiting.push(claim(&mut tree, &text, rng.u32(0..4), limits));
        }
        if waiting.len() > rng.usize(0..12) {
            let claim = waiting.swap_remove(rng.usize(..waiting.len()));
            if rng.bool() {
                tree.withdraw(claim);
            } else {
                tree.keep(claim, limits);
            }
        }
        let claim = claim(&mut tree, &text, worker, limits);
        let free = limits.kept.saturating_sub(tree.bytes(worker));
        assert!(tree.pending(worker) <= limits.pending + free);
        if !tree.keep(claim, limits) {
            continue;
        }
        assert!(tree.bytes(worker) <= limits.kept);
        let mut path = Path::new();
        tree.follow(b"m", &text, &mut path);
        let &(node, len) = path.last().unwrap();
        assert_eq!(len, text.len());
        assert!(tree.owners(node).any(|owner| owner == worker));
        if step % 70 == 0 {
            // What was used since then stays, whole; what was not is gone, unless half of all is.
            let half = tree.bytes(worker) / 2;
            let since = Stamp(tree.now(worker).0.wrapping_sub(rng.u32(1..20)));
            tree.forget_unused_since(worker, since);
            assert!(tree.bytes(worker) >= text.len());
            check(&tree);
            assert!(
                tree.oldest_use(worker)
                    .is_none_or(|used| used.since(since) as i32 > 0)
                    || tree.bytes(worker) <= half
            );
        }
        if step % 50 == 0 {
            check(&tree);
        }
    }
    for claim in waiting {
        tree.withdraw(claim);
    }
    for worker in 0..4 {
        assert_eq!(tree.pending(worker), 0);
        tree.shrink(worker, 0);
    }
    check(&tree);
    assert_eq!((tree.nodes(), tree.roots.len()), (0, 0));
}

#[test]
fn models_have_trees_of_their_own() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"the same", 0, ALL);
    let mut path = Path::new();
    tree.follow(b"other", b"the same", &mut path);
    assert!(path.is_empty());
    let claim = tree.claim(b"other", b"the same", None, &path, 1, ALL);
    assert!(tree.keep(claim, ALL));
    check(&tree);
    assert_eq!(matched(&tree, "the same"), (8, vec![0]));
}

#[test]
fn a_rest_that_was_copied_in_advance_is_used_if_it_is_still_the_rest() {
    for from in [0, 4, 6] {
        let mut tree = PrefixTree::default();
        insert(&mut tree, b"the fox", 0, ALL);
        let text = b"the dog barks";
        let mut path = Path::new();
        tree.follow(b"m", text, &mut path);
        // In capitals, to be told apart.
        let copied = Copied {
            from,
            text: text[from..].to_ascii_uppercase().into(),
        };
        let claim = tree.claim(b"m", text, Some(copied), &path, 1, ALL);
        assert!(tree.keep(claim, ALL));
        check(&tree);
        let known = if from == 4 {
            "the DOG BARKS"
        } else {
            "the dog barks"
        };
        assert_eq!(matched(&tree, known), (13, vec![1]), "{from}");
    }
}
