//! The branch predictor.
//!
//! Directions come from the combination of `McFarling` ("Combining branch predictors", WRL TN-36, 1993):
//! one table of two-bit counters by address, one by address and the directions of the last
//! branches (gshare), and a third that learns which of the two is right. Targets of indirect
//! branches come from a table by address and the last targets (Chang, Hao and Patt, "Target
//! prediction for indirect jumps", ISCA 1997). Returns come from a stack. Direct targets are taken
//! as known. Current cores predict better than this, which `docs/design/core.md` discusses.

use crate::config::PredictorConfig;

/// Predictor tables of one core.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Predictor {
    #[state(fixed)]
    directions: Box<[Counters]>,
    history: u64,
    #[state(skip)]
    history_mask: u64,
    #[state(fixed)]
    targets: Box<[u64]>,
    path: u64,
    #[state(fixed)]
    returns: Box<[u64]>,
    /// Returns on the stack, and those that were lost because it is too small.
    depth: usize,
}

/// Two-bit counters in a byte, so that a table is not most of what a host's cache holds: 0 and 1 say
/// no, 2 and 3 say yes. Weakly no at first.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Counters(u8);

impl Counters {
    /// Position of the counter "taken?", by address.
    const LOCAL: u32 = 0;
    /// Taken? By address and history.
    const GLOBAL: u32 = 2;
    /// Is the global one right where the two differ? By address.
    const CHOICE: u32 = 4;
    const WEAKLY_NO: Self = Self(1 << Self::LOCAL | 1 << Self::GLOBAL | 1 << Self::CHOICE);

    #[inline]
    const fn says(self, counter: u32) -> bool {
        self.0 >> counter & 2 != 0
    }

    /// Teaches a counter, if `it_learns`. Arithmetic: hosts predict no better than this does.
    #[inline]
    fn train(&mut self, counter: u32, yes: bool, it_learns: bool) {
        let value = self.0 >> counter & 3;
        let learns = u8::from(it_learns);
        let up = learns & u8::from(yes) & u8::from(value < 3);
        let down = learns & u8::from(!yes) & u8::from(value > 0);
        self.0 = self.0 + (up << counter) - (down << counter);
    }
}

impl Predictor {
    pub(super) fn new(config: &PredictorConfig) -> Self {
        Self {
            directions: vec![Counters::WEAKLY_NO; config.direction_entries as usize].into(),
            history: 0,
            history_mask: (1 << config.history_bits) - 1,
            targets: vec![0; config.target_entries as usize].into(),
            path: 0,
            returns: vec![0; config.return_stack as usize].into(),
            depth: 0,
        }
    }

    /// A conditional branch of this address went this way. Says whether that was predicted.
    #[inline]
    pub(super) fn direction(&mut self, address: u64, taken: bool) -> bool {
        let mask = self.directions.len() - 1;
        let by_address = address as usize & mask;
        let by_history = (address ^ self.history) as usize & mask;
        let local = self.directions[by_address].says(Counters::LOCAL);
        let global = self.directions[by_history].says(Counters::GLOBAL);
        let at_address = &mut self.directions[by_address];
        let predicted = if at_address.says(Counters::CHOICE) {
            global
        } else {
            local
        };
        at_address.train(Counters::CHOICE, global == taken, local != global);
        at_address.train(Counters::LOCAL, taken, true);
        self.directions[by_history].train(Counters::GLOBAL, taken, true);
        self.history = (self.history << 1 | u64::from(taken)) & self.history_mask;
        predicted == taken
    }

    /// An indirect branch of this address went to `target`. Says whether that was predicted.
    pub(super) fn target(&mut self, address: u64, target: u64) -> bool {
        let index = (address ^ self.path) as usize & (self.targets.len() - 1);
        let predicted = self.targets[index];
        self.targets[index] = target;
        // Two bits a target, so that the last half dozen count in a table of usual size; the lowest
        // bits of targets are often equal.
        self.path = self.path << 2 ^ target >> 2 ^ target >> 7;
        predicted == target
    }

    /// A call will return to this address.
    pub(super) fn call(&mut self, after: u64) {
        let mask = self.returns.len() - 1;
        self.returns[self.depth & mask] = after;
        self.depth = self.depth.wrapping_add(1);
    }

    /// A return went to `target`. Says whether that was predicted.
    pub(super) fn ret(&mut self, target: u64) -> bool {
        self.depth = self.depth.wrapping_sub(1);
        self.returns[self.depth & (self.returns.len() - 1)] == target
    }
}
