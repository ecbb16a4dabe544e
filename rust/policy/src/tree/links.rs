//! The ownership of nodes by workers: those that a worker keeps, linked from newest to oldest use, and those
//! that are only claimed for it.

use super::{NONE, Node, OVERHEAD, PrefixTree, Stamp, push};

/// The value of `newer` if the worker does not keep the node.
const NOT_KEPT: u32 = NONE - 1;

/// One worker's hold on one node.
#[derive(Clone, Copy)]
pub struct Link {
    pub node: u32,
    pub worker: u32,
    /// The worker's next newer and next older node of those it keeps.
    pub newer: u32,
    pub older: u32,
    /// When the worker last saw the node's text.
    pub used: Stamp,
    /// Claims whose text ends here, plus child nodes that are only claimed for the worker. A node that it does
    /// not keep goes when there are none.
    pub holds: u32,
}

impl Link {
    pub fn is_kept(&self) -> bool {
        self.newer != NOT_KEPT
    }
}

#[derive(Clone, Copy)]
pub struct Tenant {
    pub newest: u32,
    pub oldest: u32,
    /// Bytes of memory of the nodes that it keeps, and of those only claimed for it.
    pub kept: usize,
    pub pending: usize,
    /// Bytes of text of both.
    pub text: usize,
    pub now: Stamp,
}

pub const NO_TENANT: Tenant = Tenant {
    newest: NONE,
    oldest: NONE,
    kept: 0,
    pending: 0,
    text: 0,
    now: Stamp(0),
};

impl PrefixTree {
    pub(super) fn link_of(&self, node: u32, worker: u32) -> Option<u32> {
        let owners = &self.nodes[node as usize].owners;
        let owner = owners.iter().find(|&&(owner, _)| owner == worker);
        owner.map(|&(_, link)| link)
    }

    /// The link of a worker that is known to own the node.
    fn own_link(&mut self, node: u32, worker: u32) -> (u32, &mut Link) {
        let link = self
            .link_of(node, worker)
            .expect("a worker that owns a node owns every node above it");
        (link, &mut self.links[link as usize])
    }

    fn add_link(&mut self, link: Link) -> u32 {
        let owners = &mut self.nodes[link.node as usize].owners;
        let index = match self.free_links.pop() {
            Some(index) => {
                self.links[index as usize] = link;
                index
            }
            None => push(&mut self.links, link),
        };
        if owners.is_empty() {
            owners.reserve_exact(1);
        }
        owners.push((link.worker, index));
        index
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

    /// Makes a worker own a node, and those above, for one more claim.
    pub(super) fn hold(&mut self, mut node: u32, worker: u32) {
        while node != NONE {
            if let Some(link) = self.link_of(node, worker) {
                self.links[link as usize].holds += 1;
                return;
            }
            self.add_link(Link {
                node,
                worker,
                newer: NOT_KEPT,
                older: NONE,
                used: Stamp(0),
                holds: 1,
            });
            let held = &self.nodes[node as usize];
            let tenant = &mut self.tenants[worker as usize];
            tenant.pending += held.cost();
            tenant.text += held.text.len();
            node = held.parent;
        }
    }

    /// Undoes one `hold`. Returns the deepest node that is left.
    pub(super) fn release(&mut self, mut node: u32, worker: u32) -> u32 {
        while node != NONE {
            let (index, link) = self.own_link(node, worker);
            link.holds -= 1;
            if link.holds > 0 || link.is_kept() {
                break;
            }
            let Node { parent, .. } = self.nodes[node as usize];
            self.tenants[worker as usize].pending -= self.nodes[node as usize].cost();
            self.remove_link(index);
            node = parent;
        }
        node
    }

    /// Makes a node that the worker owns the newest of those it keeps.
    pub(super) fn touch(&mut self, node: u32, worker: u32) {
        let (index, &mut Link { newer, older, .. }) = self.own_link(node, worker);
        if newer == NOT_KEPT {
            let Node { parent, .. } = self.nodes[node as usize];
            let cost = self.nodes[node as usize].cost();
            let tenant = &mut self.tenants[worker as usize];
            tenant.pending -= cost;
            tenant.kept += cost;
            if parent != NONE {
                self.own_link(parent, worker).1.holds -= 1;
            }
        } else {
            self.join(worker, newer, older);
        }
        let Tenant { newest, now, .. } = self.tenants[worker as usize];
        let link = &mut self.links[index as usize];
        (link.newer, link.used) = (NONE, now);
        self.join(worker, index, newest);
        self.tenants[worker as usize].newest = index;
    }

    /// Stops keeping a node below which the worker keeps none. Claims on the node hold it until they end.
    pub(super) fn forget(&mut self, index: u32) {
        let Link {
            node,
            worker,
            newer,
            older,
            holds,
            ..
        } = self.links[index as usize];
        self.join(worker, newer, older);
        let cost = self.nodes[node as usize].cost();
        self.tenants[worker as usize].kept -= cost;
        if holds == 0 {
            self.remove_link(index);
            return;
        }
        self.links[index as usize].newer = NOT_KEPT;
        self.tenants[worker as usize].pending += cost;
        let Node { parent, .. } = self.nodes[node as usize];
        if parent != NONE {
            self.own_link(parent, worker).1.holds += 1;
        }
    }

    /// Removes a worker from a node's owners, and a node without owners from the tree.
    fn remove_link(&mut self, index: u32) {
        let Link { node, worker, .. } = self.links[index as usize];
        self.free_links.push(index);
        let held = &mut self.nodes[node as usize];
        self.tenants[worker as usize].text -= held.text.len();
        held.owners.retain(|&(_, link)| link != index);
        if held.owners.is_empty() {
            self.remove_node(node);
        }
    }

    /// Gives a node that was inserted above another one the same owners.
    pub(super) fn share_owners(&mut self, lower: u32, upper: u32) {
        for place in 0..self.nodes[lower as usize].owners.len() {
            let (worker, below) = self.nodes[lower as usize].owners[place];
            let Link { newer, used, .. } = self.links[below as usize];
            let is_kept = newer != NOT_KEPT;
            let link = self.add_link(Link {
                node: upper,
                worker,
                newer,
                older: if is_kept { below } else { NONE },
                used,
                holds: u32::from(!is_kept),
            });
            let tenant = &mut self.tenants[worker as usize];
            if is_kept {
                tenant.kept += OVERHEAD;
                self.join(worker, newer, link);
                self.join(worker, link, below);
            } else {
                tenant.pending += OVERHEAD;
            }
        }
    }

    /// Whether the upper of two nodes has the lower one's owners and uses, and no claim ends between them.
    pub(super) fn are_owned_alike(&self, upper: u32, lower: u32) -> bool {
        let [above, below] = [upper, lower].map(|node| &self.nodes[node as usize].owners);
        above.len() == below.len()
            && below.iter().all(|&(worker, below)| {
                let above = self
                    .link_of(upper, worker)
                    .map(|link| self.links[link as usize]);
                let below = self.links[below as usize];
                above.is_some_and(|above| {
                    above.is_kept() == below.is_kept()
                        && above.used == below.used
                        && above.holds == u32::from(!below.is_kept())
                })
            })
    }

    /// Removes the owners of a node that is about to be merged into its only child, which has the same.
    pub(super) fn drop_owners(&mut self, upper: u32) {
        for (worker, index) in std::mem::take(&mut self.nodes[upper as usize].owners) {
            let link = self.links[index as usize];
            self.free_links.push(index);
            if link.is_kept() {
                self.join(worker, link.newer, link.older);
                self.tenants[worker as usize].kept -= OVERHEAD;
            } else {
                self.tenants[worker as usize].pending -= OVERHEAD;
            }
        }
    }
}
