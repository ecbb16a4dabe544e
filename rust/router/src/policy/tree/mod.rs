//! A radix tree over the prompts each worker has seen, with the workers' least recently used text
//! forgotten first.
//!
//! Who owns a node owns every node above it. Each worker's nodes are also linked from newest to oldest
//! use, a node always newer than what hangs below it, so the oldest one is a leaf for that worker and
//! eviction takes it without a search or a clock.

mod chars;

use std::collections::HashMap;

use self::chars::{common_prefix, first_char};

#[cfg(test)]
mod tests;

const NONE: u32 = u32::MAX;

#[derive(Default)]
struct Node {
    /// `NONE` for the root of a model's tree, whose text is the model's name and which nobody owns.
    parent: u32,
    text: Box<[u8]>,
    /// Sorted by the first character of the child's text.
    children: Vec<(u32, u32)>,
    /// (worker, link), in order of arrival.
    owners: Vec<(u32, u32)>,
}

/// One worker's hold on one node.
#[derive(Clone, Copy)]
struct Link {
    node: u32,
    worker: u32,
    newer: u32,
    older: u32,
    /// When the worker last saw the node's text.
    used: Stamp,
}

#[derive(Clone, Copy)]
struct Tenant {
    newest: u32,
    oldest: u32,
    bytes: usize,
    now: Stamp,
}

const NO_TENANT: Tenant = Tenant {
    newest: NONE,
    oldest: NONE,
    bytes: 0,
    now: Stamp(0),
};

/// A worker's own time: how many texts it was given. It goes round after 2^32 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u32);

impl From<u32> for Stamp {
    fn from(texts: u32) -> Self {
        Stamp(texts)
    }
}

impl Stamp {
    /// Texts given to the worker since an `earlier` one.
    pub fn since(self, earlier: Stamp) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// One tree a model. Worker ids are small and dense: they index a table.
#[derive(Default)]
pub struct PrefixTree {
    roots: HashMap<Box<[u8]>, u32>,
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    links: Vec<Link>,
    free_links: Vec<u32>,
    tenants: Vec<Tenant>,
}

/// How far a text is known: each node passed, with the bytes matched when leaving it.
pub type Path = Vec<(u32, usize)>;

impl PrefixTree {
    /// Bytes of text remembered for a worker.
    pub fn bytes(&self, worker: u32) -> usize {
        self.tenants
            .get(worker as usize)
            .map_or(0, |tenant| tenant.bytes)
    }

    /// Nodes in use, the roots aside.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free_nodes.len() - self.roots.len()
    }

    /// Workers that have seen the text up to and including this node.
    pub fn owners(&self, node: u32) -> impl ExactSizeIterator<Item = u32> {
        self.nodes[node as usize]
            .owners
            .iter()
            .map(|&(worker, _)| worker)
    }

    /// The worker's own time.
    pub fn now(&self, worker: u32) -> Stamp {
        self.tenants
            .get(worker as usize)
            .map_or(Stamp(0), |tenant| tenant.now)
    }

    /// When a worker that owns the node last saw its text.
    pub fn used(&self, node: u32, worker: u32) -> Option<Stamp> {
        let owners = &self.nodes[node as usize].owners;
        let &(_, link) = owners.iter().find(|&&(owner, _)| owner == worker)?;
        Some(self.links[link as usize].used)
    }

    /// Forgets what a worker has not seen since `stamp`.
    pub fn forget_unused_since(&mut self, worker: u32, stamp: Stamp) {
        while let Some(&Tenant { oldest, now, .. }) = self.tenants.get(worker as usize)
            && oldest != NONE
            && now.since(self.links[oldest as usize].used) >= now.since(stamp)
        {
            self.disown(oldest);
        }
    }

    /// Follows `text` as far as it is known, and leaves in `path` the nodes passed, shallow to deep.
    pub fn follow(&self, model: &[u8], text: &[u8], path: &mut Path) {
        path.clear();
        let Some(&root) = self.roots.get(model) else {
            return;
        };
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

    /// Remembers that `worker` has seen `text`, then forgets its oldest text down to `limit` bytes.
    /// `path` is what `follow` has just left for the same text.
    pub fn insert(&mut self, model: &[u8], text: &[u8], path: &Path, worker: u32, limit: usize) {
        if text.is_empty() {
            return;
        }
        if self.tenants.len() <= worker as usize {
            self.tenants.resize(worker as usize + 1, NO_TENANT);
        }
        let tenant = &mut self.tenants[worker as usize];
        tenant.now = Stamp(tenant.now.0.wrapping_add(1));
        let (mut last, mut at) = (NONE, 0);
        if let Some((&(node, reached), above)) = path.split_last() {
            let shared = reached - above.last().map_or(0, |&(_, reached)| reached);
            let is_whole = shared == self.nodes[node as usize].text.len();
            (last, at) = (
                if is_whole {
                    node
                } else {
                    self.split(node, shared)
                },
                reached,
            );
        }
        if at < text.len() {
            let parent = if last == NONE { self.root(model) } else { last };
            let leaf = self.add_leaf(parent, &text[at..]);
            self.touch(leaf, worker);
        }
        // Deepest first: every node ends up newer than what hangs below it.
        if let Some((_, above)) = path.split_last() {
            self.touch(last, worker);
            for &(node, _) in above.iter().rev() {
                self.touch(node, worker);
            }
        }
        self.shrink(worker, limit);
    }

    /// Forgets a worker's least recently used text until at most `limit` bytes are left.
    pub fn shrink(&mut self, worker: u32, limit: usize) {
        while let Some(&Tenant { bytes, oldest, .. }) = self.tenants.get(worker as usize)
            && bytes > limit
        {
            self.disown(oldest);
        }
    }

    /// More than any id of a worker that ever held text.
    pub fn worker_ids(&self) -> usize {
        self.tenants.len()
    }

    /// Ids of workers that hold any text.
    pub fn workers(&self) -> impl Iterator<Item = u32> {
        let holds =
            |(worker, tenant): (usize, &Tenant)| (tenant.bytes > 0).then_some(worker as u32);
        self.tenants.iter().enumerate().filter_map(holds)
    }

    fn root(&mut self, model: &[u8]) -> u32 {
        if let Some(&root) = self.roots.get(model) {
            return root;
        }
        let root = self.add_node(Node {
            parent: NONE,
            text: model.into(),
            ..Node::default()
        });
        self.roots.insert(model.into(), root);
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
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn add_leaf(&mut self, parent: u32, text: &[u8]) -> u32 {
        let leaf = self.add_node(Node {
            parent,
            text: text.into(),
            ..Node::default()
        });
        let children = &mut self.nodes[parent as usize].children;
        let key = first_char(text);
        let place = children.partition_point(|&(other, _)| other < key);
        children.insert(place, (key, leaf));
        leaf
    }

    /// Puts a node for the first `at` bytes above this one and returns it.
    fn split(&mut self, lower: u32, at: usize) -> u32 {
        let (parent, text) = {
            let node = &mut self.nodes[lower as usize];
            (node.parent, std::mem::take(&mut node.text))
        };
        let key = first_char(&text);
        let children = vec![(first_char(&text[at..]), lower)];
        let upper = self.add_node(Node {
            parent,
            text: text[..at].into(),
            children,
            owners: Vec::new(),
        });
        let siblings = &mut self.nodes[parent as usize].children;
        let place = siblings
            .binary_search_by_key(&key, |&(key, _)| key)
            .expect("a child is listed at its parent");
        siblings[place].1 = upper;
        let node = &mut self.nodes[lower as usize];
        node.text = text[at..].into();
        node.parent = upper;
        for index in 0..self.nodes[lower as usize].owners.len() {
            let (worker, below) = self.nodes[lower as usize].owners[index];
            let Link { newer, used, .. } = self.links[below as usize];
            let link = self.add_link(Link {
                node: upper,
                worker,
                newer,
                older: below,
                used,
            });
            self.join(worker, newer, link);
            self.join(worker, link, below);
            self.nodes[upper as usize].owners.push((worker, link));
        }
        upper
    }

    fn add_link(&mut self, link: Link) -> u32 {
        if let Some(index) = self.free_links.pop() {
            self.links[index as usize] = link;
            return index;
        }
        self.links.push(link);
        (self.links.len() - 1) as u32
    }

    /// Makes two links neighbours; `NONE` stands for the end of the worker's list on that side.
    fn join(&mut self, worker: u32, newer: u32, older: u32) {
        match newer {
            NONE => self.tenants[worker as usize].newest = older,
            link => self.links[link as usize].older = older,
        }
        match older {
            NONE => self.tenants[worker as usize].oldest = newer,
            link => self.links[link as usize].newer = newer,
        }
    }

    /// Makes a node the worker's newest, owning it if it does not yet.
    fn touch(&mut self, node: u32, worker: u32) {
        let owned = self.nodes[node as usize]
            .owners
            .iter()
            .find(|&&(owner, _)| owner == worker);
        let link = match owned.copied() {
            Some((_, link)) => {
                let Link { newer, older, .. } = self.links[link as usize];
                self.join(worker, newer, older);
                link
            }
            None => {
                let link = self.add_link(Link {
                    node,
                    worker,
                    newer: NONE,
                    older: NONE,
                    used: Stamp(0),
                });
                self.nodes[node as usize].owners.push((worker, link));
                self.tenants[worker as usize].bytes += self.nodes[node as usize].text.len();
                link
            }
        };
        let Tenant { newest, now, .. } = self.tenants[worker as usize];
        self.links[link as usize].newer = NONE;
        self.links[link as usize].used = now;
        self.join(worker, link, newest);
        self.tenants[worker as usize].newest = link;
    }

    /// Ends one worker's hold on a leaf of its own; a node without owners goes.
    fn disown(&mut self, link: u32) {
        let Link {
            node,
            worker,
            newer,
            older,
            ..
        } = self.links[link as usize];
        self.join(worker, newer, older);
        self.free_links.push(link);
        let held = &mut self.nodes[node as usize];
        held.owners.retain(|&(_, other)| other != link);
        self.tenants[worker as usize].bytes -= held.text.len();
        if held.owners.is_empty() {
            debug_assert!(
                held.children.is_empty(),
                "who owns a node owns every node above it"
            );
            let Node { parent, text, .. } = std::mem::take(held);
            let siblings = &mut self.nodes[parent as usize].children;
            let key = first_char(&text);
            let place = siblings
                .binary_search_by_key(&key, |&(key, _)| key)
                .expect("a child is listed at its parent");
            siblings.remove(place);
            self.free_nodes.push(node);
            let above = &mut self.nodes[parent as usize];
            if above.parent == NONE && above.children.is_empty() {
                self.roots.remove(&std::mem::take(&mut above.text));
                self.free_nodes.push(parent);
            }
        }
    }
}
