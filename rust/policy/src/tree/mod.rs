//! A radix tree over the prompts that each worker has seen. It forgets a worker's least recently used text first.
//!
//! A prompt is claimed for a worker when it is sent there, and kept once the worker has begun to answer it.
//! Claimed text is matched like kept text, but evicts nothing, and goes with the last claim on it.
//!
//! A worker that owns a node owns every node above it, and one that keeps it keeps those. The nodes that a
//! worker keeps are also linked from newest to oldest use, each newer than those below it, so eviction takes
//! the oldest one without a search or a clock.

mod chars;
mod claims;
mod links;

use std::collections::HashMap;

use rapidhash::v3::rapidhash_v3;

use self::chars::{common_prefix, first_char};
pub use self::claims::ClaimId;
use self::claims::Claims;
use self::links::{Link, NO_TENANT, Tenant};

#[cfg(test)]
mod tests;

const NONE: u32 = u32::MAX;

#[derive(Default)]
struct Node {
    /// `NONE` for the root of a model's tree, whose text is the hash of the model's name.
    parent: u32,
    text: Box<[u8]>,
    /// Sorted by the first character of the child's text.
    children: Vec<(u32, u32)>,
    /// (worker, link), in order of arrival.
    owners: Vec<(u32, u32)>,
}

/// Bytes that a node takes besides its text, with one owner: its entries in the tables, which grow by an
/// eighth, and three blocks of the allocator, which have a header and are rounded up.
const OVERHEAD: usize = size_of::<Node>() + size_of::<Link>() + 136;

impl Node {
    /// Bytes of memory, at least; what the node takes if one worker owns it. Each owner has to pay them.
    fn cost(&self) -> usize {
        self.text.len() + OVERHEAD
    }
}

/// A time on a worker's own clock, which counts the texts kept for it and wraps after 2^32 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u32);

impl From<u32> for Stamp {
    fn from(texts: u32) -> Self {
        Stamp(texts)
    }
}

impl Stamp {
    /// Texts kept for the worker since an `earlier` time.
    pub fn since(self, earlier: Stamp) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// One tree a model. A worker is known by its slot, which indexes a table.
#[derive(Default)]
pub struct PrefixTree {
    /// By the hash of the model's name: clients choose names, as long and as many as they like.
    roots: HashMap<u64, u32>,
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    links: Vec<Link>,
    free_links: Vec<u32>,
    tenants: Vec<Tenant>,
    claims: Claims,
}

/// The nodes that a text matches, the model's root first, each with the bytes matched up to its end.
pub type Path = Vec<(u32, usize)>;

/// The rest of a text, copied before it is claimed.
pub struct Copied {
    pub from: usize,
    pub text: Box<[u8]>,
}

/// Limits of what is remembered for each worker, in bytes of memory.
#[derive(Clone, Copy, Debug)]
pub struct TextLimits {
    pub kept: usize,
    /// For text that is claimed and not kept, beside what kept text leaves free of its own.
    pub pending: usize,
}

impl PrefixTree {
    /// Bytes of memory of the text kept for a worker. Text kept for several counts for each of them.
    pub fn bytes(&self, worker: u32) -> usize {
        self.tenant(worker).kept
    }

    /// Bytes of memory of the text only claimed for a worker.
    pub fn pending(&self, worker: u32) -> usize {
        self.tenant(worker).pending
    }

    /// Bytes of text that a worker has seen or is about to see.
    pub fn text(&self, worker: u32) -> usize {
        self.tenant(worker).text
    }

    /// Nodes in use, the roots aside.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free_nodes.len() - self.roots.len()
    }

    /// Workers that have seen the text up to and including this node, or are about to.
    pub fn owners(&self, node: u32) -> impl ExactSizeIterator<Item = u32> {
        self.nodes[node as usize]
            .owners
            .iter()
            .map(|&(worker, _)| worker)
    }

    /// Workers that have not seen the text up to and including this node, but are about to.
    pub fn claimants(&self, node: u32) -> impl Iterator<Item = u32> {
        let owners = self.nodes[node as usize].owners.iter();
        let claimed = owners.filter(|&&(_, link)| !self.links[link as usize].is_kept());
        claimed.map(|&(worker, _)| worker)
    }

    /// The time on the worker's own clock.
    pub fn now(&self, worker: u32) -> Stamp {
        self.tenant(worker).now
    }

    /// When a worker that keeps the node last saw its text.
    pub fn used(&self, node: u32, worker: u32) -> Option<Stamp> {
        let link = &self.links[self.link_of(node, worker)? as usize];
        link.is_kept().then_some(link.used)
    }

    /// Forgets the text that a worker has not seen since `stamp`, the oldest first, down to half of all.
    pub fn forget_unused_since(&mut self, worker: u32, stamp: Stamp) {
        let (now, half) = (self.now(worker), self.bytes(worker) / 2);
        while self.bytes(worker) > half
            && let Some(oldest) = self.oldest(worker)
            && now.since(self.links[oldest as usize].used) >= now.since(stamp)
        {
            self.forget(oldest);
        }
    }

    /// Follows `text` as far as it is known, and leaves in `path` the nodes passed, shallow to deep.
    pub fn follow(&self, model: &[u8], text: &[u8], path: &mut Path) {
        path.clear();
        let Some(&root) = self.roots.get(&rapidhash_v3(model)) else {
            return;
        };
        path.push((root, 0));
        let (mut node, mut at) = (root, 0);
        while at < text.len() {
            let Some(child) = self.child(node, &text[at..]) else {
                return;
            };
            let edge = &self.nodes[child as usize].text;
            let shared = common_prefix(edge, &text[at..]);
            at += shared;
            path.push((child, at));
            if shared < edge.len() {
                return;
            }
            node = child;
        }
    }

    /// Claims that `worker` is about to see `text`, until the claim is kept or withdrawn. `path` is what
    /// `follow` has just left for the same text; what it does not reach is taken from `copied`, if that begins there. Claims for more than the limit, and than kept text leaves free of its
    /// own, are withdrawn, the largest first.
    pub fn claim(
        &mut self,
        model: &[u8],
        text: &[u8],
        copied: Option<Copied>,
        path: &Path,
        worker: u32,
        limits: TextLimits,
    ) -> ClaimId {
        if self.tenants.len() <= worker as usize {
            self.tenants.resize(worker as usize + 1, NO_TENANT);
        }
        let before = self.tenant(worker).pending;
        let (upper, is_split) = self.reach(model, path);
        let known = path.last().map_or(0, |&(_, reached)| reached);
        let end = match known < text.len() {
            true => {
                let copied = copied.filter(|copied| copied.from == known);
                let rest = copied.map_or_else(|| text[known..].into(), |copied| copied.text);
                self.add_leaf(upper, rest)
            }
            false => upper,
        };
        self.hold(end, worker);
        let added = self.tenant(worker).pending - before;
        let claim = self.claims.add(end, worker, added);
        self.bound_claims(worker, limits);
        if is_split {
            self.shrink_owners(upper, limits.kept);
        }
        claim
    }

    /// The worker has seen the text that was claimed for it: it is kept, and its oldest text forgotten down
    /// to the limit. Returns whether the claim was still there.
    pub fn keep(&mut self, claim: ClaimId, limits: TextLimits) -> bool {
        let Some((end, worker)) = self.claims.take(claim) else {
            return false;
        };
        let now = &mut self.tenants[worker as usize].now;
        *now = Stamp(now.0.wrapping_add(1));
        // Deepest first: every node ends up newer than what hangs below it.
        let mut node = end;
        while node != NONE {
            self.touch(node, worker);
            node = self.nodes[node as usize].parent;
        }
        self.release(end, worker);
        self.shrink(worker, limits.kept);
        self.bound_claims(worker, limits);
        true
    }

    /// Withdraws claims, the largest first, until what is claimed fits beside what is kept.
    fn bound_claims(&mut self, worker: u32, limits: TextLimits) {
        let free = limits.kept.saturating_sub(self.bytes(worker));
        while self.pending(worker) > limits.pending.saturating_add(free)
            && let Some(largest) = self.claims.largest(worker)
        {
            self.withdraw(largest);
        }
    }

    /// The worker has not seen the text that was claimed for it.
    pub fn withdraw(&mut self, claim: ClaimId) {
        if let Some((end, worker)) = self.claims.take(claim) {
            let left = self.release(end, worker);
            self.merge(left);
        }
    }

    /// Forgets a worker's least recently used text until at most `limit` bytes are left.
    pub fn shrink(&mut self, worker: u32, limit: usize) {
        while self.bytes(worker) > limit
            && let Some(oldest) = self.oldest(worker)
        {
            self.forget(oldest);
        }
    }

    /// The same, but of at most `nodes` nodes. Returns whether the limit is met.
    pub fn shrink_some(&mut self, worker: u32, limit: usize, nodes: usize) -> bool {
        for _ in 0..nodes {
            match self.oldest(worker) {
                Some(oldest) if self.bytes(worker) > limit => self.forget(oldest),
                _ => return true,
            }
        }
        false
    }

    /// Splitting a node takes memory for all its owners, not only for the claim's. They may exceed the limit by an
    /// eighth, so that one worker's claims seldom evict another's text.
    fn shrink_owners(&mut self, node: u32, limit: usize) {
        let most = limit.saturating_add(limit / 8);
        let owners: Vec<u32> = self
            .owners(node)
            .filter(|&owner| self.tenant(owner).kept > most)
            .collect();
        for owner in owners {
            self.shrink(owner, limit);
        }
    }

    /// One more than the largest slot of a worker that ever owned text.
    pub fn slots(&self) -> usize {
        self.tenants.len()
    }

    /// Slots of the workers that keep any text.
    pub fn workers(&self) -> impl Iterator<Item = u32> {
        let holds = |(worker, tenant): (usize, &Tenant)| (tenant.kept > 0).then_some(worker as u32);
        self.tenants.iter().enumerate().filter_map(holds)
    }

    fn tenant(&self, worker: u32) -> Tenant {
        self.tenants
            .get(worker as usize)
            .copied()
            .unwrap_or(NO_TENANT)
    }

    /// The worker's least recently used link of those it keeps.
    fn oldest(&self, worker: u32) -> Option<u32> {
        let Tenant { oldest, .. } = self.tenant(worker);
        (oldest != NONE).then_some(oldest)
    }

    /// The node that ends where `path` does, and whether another one was split for it.
    fn reach(&mut self, model: &[u8], path: &Path) -> (u32, bool) {
        let Some((&(node, reached), above)) = path.split_last() else {
            return (self.add_root(model), false);
        };
        let shared = reached - above.last().map_or(0, |&(_, reached)| reached);
        let is_whole = above.is_empty() || shared == self.nodes[node as usize].text.len();
        match is_whole {
            true => (node, false),
            false => (self.split(node, shared), true),
        }
    }

    fn add_root(&mut self, model: &[u8]) -> u32 {
        let hash = rapidhash_v3(model);
        let root = self.add_node(Node {
            parent: NONE,
            text: hash.to_ne_bytes().into(),
            ..Node::default()
        });
        self.roots.insert(hash, root);
        root
    }

    fn child(&self, node: u32, text: &[u8]) -> Option<u32> {
        let children = &self.nodes[node as usize].children;
        let found = children
            .binary_search_by_key(&first_char(text), |&(key, _)| key)
            .ok()?;
        Some(children[found].1)
    }

    fn add_node(&mut self, node: Node) -> u32 {
        if let Some(index) = self.free_nodes.pop() {
            self.nodes[index as usize] = node;
            return index;
        }
        push(&mut self.nodes, node)
    }

    fn add_leaf(&mut self, parent: u32, text: Box<[u8]>) -> u32 {
        let key = first_char(&text);
        let leaf = self.add_node(Node {
            parent,
            text,
            ..Node::default()
        });
        let children = &mut self.nodes[parent as usize].children;
        let place = children.partition_point(|&(other, _)| other < key);
        if children.is_empty() {
            children.reserve_exact(1);
        }
        children.insert(place, (key, leaf));
        leaf
    }

    /// The entry of a node that is no root among its parent's children.
    fn entry(&mut self, node: u32) -> (&mut Vec<(u32, u32)>, usize) {
        let Node { parent, text, .. } = &self.nodes[node as usize];
        let (parent, key) = (*parent, first_char(text));
        let siblings = &mut self.nodes[parent as usize].children;
        let place = siblings
            .binary_search_by_key(&key, |&(key, _)| key)
            .expect("a child is listed at its parent");
        (siblings, place)
    }

    /// Puts a node for the first `at` bytes above this one and returns it.
    fn split(&mut self, lower: u32, at: usize) -> u32 {
        let Node { parent, text, .. } = &self.nodes[lower as usize];
        let upper = Node {
            parent: *parent,
            text: text[..at].into(),
            children: vec![(first_char(&text[at..]), lower)],
            owners: Vec::new(),
        };
        let rest = text[at..].into();
        let upper = self.add_node(upper);
        let (siblings, place) = self.entry(lower);
        siblings[place].1 = upper;
        let node = &mut self.nodes[lower as usize];
        node.text = rest;
        node.parent = upper;
        self.share_owners(lower, upper);
        upper
    }

    /// Undoes a split if nothing depends on it any more: the node's only child has the same owners and uses.
    fn merge(&mut self, upper: u32) {
        let Some(node) = self.nodes.get(upper as usize) else {
            return;
        };
        let [(_, lower)] = node.children[..] else {
            return;
        };
        if node.parent == NONE || !self.are_owned_alike(upper, lower) {
            return;
        }
        self.drop_owners(upper);
        let (siblings, place) = self.entry(upper);
        siblings[place].1 = lower;
        let Node { parent, text, .. } = std::mem::take(&mut self.nodes[upper as usize]);
        self.free_nodes.push(upper);
        let node = &mut self.nodes[lower as usize];
        node.text = [text, std::mem::take(&mut node.text)].concat().into();
        node.parent = parent;
    }

    /// Takes a node without owners out.
    fn remove_node(&mut self, node: u32) {
        debug_assert!(
            self.nodes[node as usize].children.is_empty(),
            "a worker that owns a node owns every node above it"
        );
        if self.nodes[node as usize].parent == NONE {
            let hash = <[u8; 8]>::try_from(&*self.nodes[node as usize].text);
            let hash = u64::from_ne_bytes(hash.expect("a root's text is a hash"));
            self.roots.remove(&hash);
        } else {
            let (siblings, place) = self.entry(node);
            siblings.remove(place);
            // The memory of many children is given back once they are gone.
            if siblings.len() < siblings.capacity() / 4 {
                siblings.shrink_to(siblings.len() * 2);
            }
        }
        self.nodes[node as usize] = Node::default();
        self.free_nodes.push(node);
    }
}

/// Appends to a table that keeps at most an eighth of spare capacity, and returns the index.
fn push<T>(table: &mut Vec<T>, entry: T) -> u32 {
    if table.len() == table.capacity() {
        table.reserve_exact(table.len() / 8 + 16);
    }
    table.push(entry);
    (table.len() - 1) as u32
}
