//! A prompt on its way to a worker, as the policy that chose the worker knows it.

use crate::policy::{Policy, Receipt};

/// Nothing comes of the request if it is dropped: a worker refused it or failed, or the client left.
pub struct Claim<'a> {
    policy: &'a dyn Policy,
    receipt: Option<Receipt>,
}

impl<'a> Claim<'a> {
    pub fn new(policy: &'a dyn Policy, receipt: Receipt) -> Self {
        Claim {
            policy,
            receipt: Some(receipt),
        }
    }

    /// The worker has begun to answer: the policy learns from the prompt.
    pub fn keep(mut self) -> Option<Receipt> {
        let receipt = self.receipt.take()?;
        self.policy.kept(receipt);
        Some(receipt)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt {
            self.policy.withdrawn(receipt);
        }
    }
}
