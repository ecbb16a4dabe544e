//! Limits how many retries a lane may make.

use std::cell::Cell;

use crate::base::clock::TICK;

/// Bounds a lane's retries to a share of its requests, so that a fleet that fails as a whole does not get several
/// times its load.
pub struct RetryBudget {
    tokens: Cell<f32>,
}

impl RetryBudget {
    /// Retries that each request adds to the budget.
    const SHARE: f32 = 0.2;
    /// Retries that each second adds to the budget.
    const FLOOR: f32 = 10.0;
    /// The most that is saved up: a worker that dies fails all its requests in flight at once.
    const RESERVE: f32 = 256.0;

    pub fn deposit(&self) {
        self.add(RetryBudget::SHARE);
    }

    /// Called once a tick.
    pub fn refill(&self) {
        self.add(RetryBudget::FLOOR * TICK.as_secs_f32());
    }

    fn add(&self, tokens: f32) {
        self.tokens
            .set((self.tokens.get() + tokens).min(RetryBudget::RESERVE));
    }

    pub fn has_one(&self) -> bool {
        self.tokens.get() >= 1.0
    }

    pub fn withdraw(&self) -> bool {
        let has_one = self.has_one();
        if has_one {
            self.add(-1.0);
        }
        has_one
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudget {
            tokens: Cell::new(RetryBudget::RESERVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_allows_a_share_of_the_requests() {
        let budget = RetryBudget::default();
        let spend = || {
            std::iter::repeat_with(|| budget.withdraw())
                .take_while(|&had| had)
                .count()
        };
        assert_eq!(spend(), 256);
        for _ in 0..100 {
            budget.deposit();
        }
        assert!((19..=21).contains(&spend()));
        for _ in 0..8 {
            budget.refill();
        }
        assert_eq!(spend(), 20);
        for _ in 0..10_000 {
            budget.deposit();
        }
        assert_eq!(spend(), 256);
    }
}
