//! The claim of a prompt on the worker that a policy chose for it.

use std::mem::ManuallyDrop;

use crate::{Candidate, Candidates, Decision, Policy, Receipt, RequestKey};

/// A policy's choice whose result is not yet known. Dropping it tells the policy that nothing came of the request:
/// the worker refused it or failed, or the client left.
pub struct Claim<'a> {
    policy: &'a dyn Policy,
    receipt: Receipt,
}

impl Claim<'_> {
    /// The worker has begun to answer with success: the policy learns from the prompt. The receipt is for
    /// [`Policy::answered`].
    pub fn keep(self) -> Receipt {
        let claim = ManuallyDrop::new(self);
        claim.policy.kept(claim.receipt);
        claim.receipt
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.policy.withdrawn(self.receipt);
    }
}

impl dyn Policy + '_ {
    /// Chooses one of the candidates: its index, and the claim of the request on it.
    ///
    /// # Panics
    ///
    /// If there are no candidates.
    pub fn choose(&self, candidates: &[Candidate], request: &RequestKey<'_>) -> (usize, Claim<'_>) {
        let Decision { index, receipt } = self.pick(Candidates::new(candidates), request);
        let claim = Claim {
            policy: self,
            receipt,
        };
        (index, claim)
    }
}
