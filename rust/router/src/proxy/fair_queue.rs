//! Who has its turn next: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of tenants within priority
//! classes. Nothing here reads a clock or waits: times are passed in.
//!
//! Every request has a start tag: the end of its tenant's last one in its class, but never before the class's virtual
//! time, which is the start tag of the request that had its turn last. Its cost, divided by its tenant's weight, leads to
//! the end. The smallest start tag is next. So a tenant that sends much is ahead of its share and waits, and one that was
//! silent is neither credited nor punished for it.

use std::array;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::class::PriorityClass;

pub type TenantName = Arc<str>;

/// Tenants without waiting requests whose last tags are remembered, in each class.
const MOST_FLOWS: usize = 10_000;

/// What a tenant may have.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Its part of the turns, beside the others' weights.
    pub weight: f64,
    /// Requests that may run at once.
    pub most_running: usize,
}

/// A tenant that has requests here.
struct Account {
    share: Share,
    running: usize,
    waiting: usize,
}

struct Waiting<T> {
    id: u64,
    start: f64,
    cost: f64,
    /// When it came into its class.
    since: Instant,
    item: T,
}

/// A tenant's requests of one class.
struct Flow<T> {
    finish: f64,
    waiting: VecDeque<Waiting<T>>,
}

struct Level<T> {
    virtual_time: f64,
    flows: HashMap<TenantName, Flow<T>>,
    /// The first request of each tenant that waits: its start tag, whose bits sort as it does, and its id.
    heads: BTreeSet<(u64, u64, TenantName)>,
}

impl<T> Level<T> {
    fn new() -> Self {
        Level {
            virtual_time: 0.0,
            flows: HashMap::new(),
            heads: BTreeSet::new(),
        }
    }

    fn push(&mut self, tenant: &TenantName, weight: f64, mut entry: Waiting<T>) {
        if self.flows.len() >= MOST_FLOWS && !self.flows.contains_key(tenant) {
            self.flows.retain(|_, flow| !flow.waiting.is_empty());
        }
        let flow = self.flows.entry(tenant.clone()).or_insert_with(|| Flow {
            finish: 0.0,
            waiting: VecDeque::new(),
        });
        entry.start = self.virtual_time.max(flow.finish);
        flow.finish = entry.start + entry.cost / weight;
        if flow.waiting.is_empty() {
            let head = (entry.start.to_bits(), entry.id, tenant.clone());
            self.heads.insert(head);
        }
        flow.waiting.push_back(entry);
    }

    /// Takes a request out of its tenant's flow.
    fn take(&mut self, tenant: &TenantName, index: usize) -> Option<Waiting<T>> {
        let flow = self.flows.get_mut(tenant)?;
        let entry = flow.waiting.remove(index)?;
        if index == 0 {
            let key = |entry: &Waiting<T>| (entry.start.to_bits(), entry.id, tenant.clone());
            self.heads.remove(&key(&entry));
            if let Some(next) = flow.waiting.front() {
                self.heads.insert(key(next));
            }
        }
        Some(entry)
    }

    fn position(&self, tenant: &TenantName, id: u64) -> Option<usize> {
        let flow = self.flows.get(tenant)?;
        flow.waiting.iter().position(|entry| entry.id == id)
    }
}

/// A request that has its turn.
pub struct Turn<T> {
    pub tenant: TenantName,
    pub id: u64,
    pub item: T,
}

pub struct FairQueue<T> {
    levels: [Level<T>; PriorityClass::COUNT],
    accounts: HashMap<TenantName, Account>,
    /// Requests that may run at once.
    limit: usize,
    /// Requests that may wait.
    size: usize,
    /// The time after which a request that waits rises by a class.
    pub rises_after: Duration,
    running: usize,
    waiting: usize,
    last_id: u64,
}

impl<T> FairQueue<T> {
    pub fn new(limit: usize, size: usize, rises_after: Duration) -> Self {
        FairQueue {
            levels: array::from_fn(|_| Level::new()),
            accounts: HashMap::new(),
            limit,
            size,
            rises_after,
            running: 0,
            waiting: 0,
            last_id: 0,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Requests of each tenant that has some: running, and waiting.
    pub fn tenants(&self) -> impl Iterator<Item = (&TenantName, usize, usize)> {
        let counts = |(name, account): (_, &Account)| (name, account.running, account.waiting);
        let accounts = self.accounts.iter();
        accounts.map(move |(name, account)| counts((name, account)))
    }

    /// Puts a request into the queue, even if that is full: [`FairQueue::next`] and [`FairQueue::shed`] come next.
    /// `cost` is more than 0.
    pub fn push(
        &mut self,
        now: Instant,
        (tenant, share): (&TenantName, Share),
        class: PriorityClass,
        cost: f64,
        item: T,
    ) -> u64 {
        let account = self.accounts.entry(tenant.clone()).or_insert(Account {
            share,
            running: 0,
            waiting: 0,
        });
        account.share = share;
        account.waiting += 1;
        self.waiting += 1;
        self.last_id += 1;
        let entry = Waiting {
            id: self.last_id,
            start: 0.0,
            cost,
            since: now,
            item,
        };
        self.levels[class as usize].push(tenant, share.weight, entry);
        self.last_id
    }

    /// The request that has its turn now, if one may run.
    pub fn next(&mut self, now: Instant) -> Option<Turn<T>> {
        if self.running >= self.limit || self.waiting == 0 {
            return None;
        }
        self.age(now);
        let may_run = |tenant: &TenantName| {
            let account = &self.accounts[tenant];
            account.running < account.share.most_running
        };
        let (level, tenant) = self.levels.iter().enumerate().find_map(|(index, level)| {
            let mut heads = level.heads.iter().map(|(_, _, tenant)| tenant);
            Some((index, heads.find(|tenant| may_run(tenant))?.clone()))
        })?;
        let level = &mut self.levels[level];
        let entry = level.take(&tenant, 0).expect("it is the first of its flow");
        level.virtual_time = level.virtual_time.max(entry.start);
        self.waiting -= 1;
        self.running += 1;
        let account = self.account(&tenant);
        account.waiting -= 1;
        account.running += 1;
        Some(Turn {
            tenant,
            id: entry.id,
            item: entry.item,
        })
    }

    /// Requests that have waited long enough come into the class above, behind those of their tenant there.
    fn age(&mut self, now: Instant) {
        for index in 1..PriorityClass::COUNT {
            let is_due = |entry: &Waiting<T>| now - entry.since >= self.rises_after;
            loop {
                let level = &self.levels[index];
                let mut heads = level.heads.iter().map(|(_, _, tenant)| tenant);
                let due = heads.find(|&tenant| is_due(&level.flows[tenant].waiting[0]));
                let Some(tenant) = due.cloned() else { break };
                let mut entry = self.levels[index].take(&tenant, 0).expect("it waits");
                entry.since = now;
                let weight = self.accounts[&tenant].share.weight;
                self.levels[index - 1].push(&tenant, weight, entry);
            }
        }
    }

    fn account(&mut self, tenant: &TenantName) -> &mut Account {
        let account = self.accounts.get_mut(tenant);
        account.expect("a tenant with requests has an account")
    }

    /// A request of the tenant has ended.
    pub fn leave(&mut self, tenant: &TenantName) {
        self.running -= 1;
        self.account(tenant).running -= 1;
        self.close(tenant);
    }

    /// Forgets what need not be known of a tenant without requests, and all tags if there is no request at all.
    fn close(&mut self, tenant: &TenantName) {
        let account = &self.accounts[tenant];
        if account.running == 0 && account.waiting == 0 {
            self.accounts.remove(tenant);
        }
        if self.accounts.is_empty() {
            for level in &mut self.levels {
                level.virtual_time = 0.0;
                level.flows.clear();
            }
        }
    }

    /// Takes out a request that waits; None if it does not.
    pub fn remove(&mut self, tenant: &TenantName, id: u64) -> Option<T> {
        let found = |level: &mut Level<T>| {
            let index = level.position(tenant, id)?;
            level.take(tenant, index)
        };
        let entry = self.levels.iter_mut().find_map(found)?;
        self.waiting -= 1;
        self.account(tenant).waiting -= 1;
        self.close(tenant);
        Some(entry.item)
    }

    /// If more wait than may, takes out the newest request, in its lowest class, of the tenant that is most over its
    /// share of the places; of two, the one that came last.
    pub fn shed(&mut self) -> Option<Turn<T>> {
        if self.waiting <= self.size {
            return None;
        }
        let newest = |tenant: &TenantName| {
            let mut lowest_first = self.levels.iter().rev();
            lowest_first.find_map(|level| level.flows.get(tenant)?.waiting.back().map(|e| e.id))
        };
        let waiting = self.accounts.iter().filter_map(|(tenant, account)| {
            let places = account.waiting as f64 / account.share.weight;
            Some((places, newest(tenant)?, tenant))
        });
        let most = waiting.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let (_, id, tenant) = most.expect("some wait");
        let tenant = tenant.clone();
        let item = self.remove(&tenant, id).expect("it waits");
        Some(Turn { tenant, id, item })
    }

    /// True if a request that came now would be the one that `shed` takes out.
    pub fn refuses(&self, (tenant, share): (&TenantName, Share), class: PriorityClass) -> bool {
        let own = self.accounts.get(tenant);
        let has_room = self.waiting < self.size
            || self.running < self.limit && own.is_none_or(|own| own.running < share.most_running);
        let own = own.map_or(0, |own| own.waiting);
        let places = (own + 1) as f64 / share.weight;
        let gives_lower = || {
            let waits = |level: &Level<T>| {
                let flow = level.flows.get(tenant);
                flow.is_some_and(|flow| !flow.waiting.is_empty())
            };
            self.levels[class as usize + 1..].iter().any(waits)
        };
        let others = self.accounts.iter().filter(|(name, _)| *name != tenant);
        let is_most = others
            .map(|(_, other)| other.waiting as f64 / other.share.weight)
            .all(|other| other <= places);
        !has_room && is_most && !gives_lower()
    }

    /// How many of those that wait have their turn before this one, as things are.
    pub fn ahead(&self, tenant: &TenantName, id: u64) -> usize {
        let mut ahead = 0;
        for level in &self.levels {
            let waiting = || level.flows.values().flat_map(|flow| &flow.waiting);
            let Some(index) = level.position(tenant, id) else {
                ahead += waiting().count();
                continue;
            };
            let start = level.flows[tenant].waiting[index].start;
            let is_before = |entry: &&Waiting<T>| (entry.start, entry.id) < (start, id);
            return ahead + waiting().filter(is_before).count();
        }
        ahead
    }

    /// Gives every tenant that has requests its new share.
    pub fn set_shares(&mut self, share: impl Fn(&TenantName) -> Share) {
        for (tenant, account) in &mut self.accounts {
            account.share = share(tenant);
        }
    }
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
