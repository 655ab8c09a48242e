//! A policy that is given at run time, so that an idea can be tried before it is a file of its own
//! here. Python's `contigua.explore` is what gives one.
//!
//! It is a variant beside the others, not a trait object in place of them: what is virtual is only
//! the call into the policy that somebody brought, so those that are built in cost what they did.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use super::PlacementPolicy;

/// A policy from outside, and what it calls itself.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Explored {
    name: String,
    #[cfg_attr(feature = "serde", serde(skip))]
    policy: Arc<dyn PlacementPolicy + Send + Sync>,
}

impl Explored {
    /// Lets a policy give the verdicts.
    #[must_use]
    pub fn new(name: String, policy: Arc<dyn PlacementPolicy + Send + Sync>) -> Self {
        Self { name, policy }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &dyn PlacementPolicy {
        &*self.policy
    }
}

impl fmt::Debug for Explored {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Explored").field(&self.name).finish()
    }
}

/// Identity of the policy object, not equality of its answers.
impl PartialEq for Explored {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy)
    }
}
