use super::*;

const ALL: usize = usize::MAX;

fn insert(tree: &mut PrefixTree, text: &[u8], worker: u32, limit: usize) {
    let mut path = Path::new();
    tree.follow(b"m", text, &mut path);
    tree.insert(b"m", text, &path, worker, limit);
}

fn matched(tree: &PrefixTree, text: &str) -> (usize, Vec<u32>) {
    let mut path = Path::new();
    tree.follow(b"m", text.as_bytes(), &mut path);
    path.last().map_or((0, vec![]), |&(node, len)| {
        (len, tree.owners(node).collect())
    })
}

impl PrefixTree {
    fn oldest_use(&self, worker: u32) -> Option<Stamp> {
        let oldest = self.tenants[worker as usize].oldest;
        (oldest != NONE).then(|| self.links[oldest as usize].used)
    }
}

/// Everything the module's comment promises.
fn check(tree: &PrefixTree) {
    let mut bytes = vec![0; tree.tenants.len()];
    let roots: Vec<u32> = tree.roots.values().copied().collect();
    let mut stack = roots.clone();
    let mut seen = 0;
    while let Some(index) = stack.pop() {
        let node = &tree.nodes[index as usize];
        assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
        for &(key, child) in &node.children {
            let below = &tree.nodes[child as usize];
            assert_eq!((key, below.parent), (first_char(&below.text), index));
            assert!(!below.owners.is_empty());
            for (worker, _) in &below.owners {
                bytes[*worker as usize] += below.text.len();
                assert!(
                    node.parent == NONE || node.owners.iter().any(|(owner, _)| owner == worker)
                );
            }
            stack.push(child);
            seen += 1;
        }
    }
    assert_eq!(seen, tree.nodes());
    for (worker, tenant) in tree.tenants.iter().enumerate() {
        assert_eq!(tenant.bytes, bytes[worker]);
        let (mut link, mut newer, mut passed) = (
            tenant.newest,
            NONE,
            std::collections::HashSet::<u32>::from_iter(roots.iter().copied()),
        );
        while link != NONE {
            let here = tree.links[link as usize];
            assert!(
                newer == NONE || tree.links[newer as usize].used.since(here.used) < u32::MAX / 2
            );
            assert_eq!((here.newer, here.worker), (newer, worker as u32));
            assert!(
                passed.contains(&tree.nodes[here.node as usize].parent),
                "a parent is newer"
            );
            passed.insert(here.node);
            (newer, link) = (link, here.older);
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
    assert_eq!((tree.bytes(0), tree.bytes(1), tree.bytes(2)), (11, 11, 5));
}

#[test]
fn cuts_only_between_characters() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, "caf\u{e9}".as_bytes(), 0, ALL);
    insert(&mut tree, "caf\u{e8}".as_bytes(), 1, ALL);
    insert(&mut tree, "\u{1f600}".as_bytes(), 0, ALL);
    insert(&mut tree, "\u{1f601}".as_bytes(), 0, ALL);
    check(&tree);
    for node in &tree.nodes {
        std::str::from_utf8(&node.text).unwrap();
    }
    assert_eq!(matched(&tree, "caf\u{ea}"), (3, vec![0, 1]));
    assert_eq!(matched(&tree, "\u{1f602}"), (0, vec![]));
}

#[test]
fn insertion_forgets_the_least_recently_used() {
    let mut tree = PrefixTree::default();
    insert(&mut tree, b"aaaa", 0, 10);
    insert(&mut tree, b"bbbb", 0, 10);
    insert(&mut tree, b"aaaa", 0, 10);
    insert(&mut tree, b"cccc", 0, 10);
    check(&tree);
    assert_eq!(matched(&tree, "bbbb").0, 0);
    assert_eq!(
        (
            matched(&tree, "aaaa").0,
            matched(&tree, "cccc").0,
            tree.bytes(0)
        ),
        (4, 4, 8)
    );
    insert(&mut tree, &[b'x'; 100], 0, 10);
    assert_eq!((tree.bytes(0), tree.nodes()), (0, 0));
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
    // Time goes round on the way.
    let beginning = Tenant {
        now: Stamp(u32::MAX - 300),
        ..NO_TENANT
    };
    tree.tenants = vec![beginning; 4];
    let mut latest = Vec::new();
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
        insert(&mut tree, &text, worker, 400);
        assert!(tree.bytes(worker) <= 400);
        let mut path = Path::new();
        tree.follow(b"m", &text, &mut path);
        let (node, len) = path.last().copied().unwrap_or((0, 0));
        assert_eq!(len, text.len());
        assert!(text.is_empty() || tree.owners(node).any(|owner| owner == worker));
        if step % 70 == 0 {
            // What was used since then stays, whole; what was not is gone.
            let since = Stamp(tree.now(worker).0.wrapping_sub(rng.u32(1..20)));
            tree.forget_unused_since(worker, since);
            assert!(tree.bytes(worker) >= text.len());
            assert!(
                tree.oldest_use(worker)
                    .is_none_or(|used| used.since(since) as i32 > 0)
            );
        }
        if step % 50 == 0 {
            check(&tree);
        }
        latest = text;
    }
    assert!(!latest.is_empty());
    for worker in 0..4 {
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
    tree.insert(b"other", b"the same", &path, 1, ALL);
    check(&tree);
    assert_eq!(matched(&tree, "the same"), (8, vec![0]));
}
