//! Blocks of translations in lines of a core's second level, in place of data (Victima, MICRO 2023).
//!
//! A block has a number of its own, and no place in memory: neither directory nor last level know of it, and it is
//! dropped when its line is needed. The translations are the translation unit's; a line has which of a block's eight
//! are there.

use contigua_units::Cycles;

use super::MemorySystem;
use super::payload::Payload;
use super::private::{Private, SecondLine};

/// Number of the line of the first block, above all lines of memory.
const FIRST: u64 = 1 << 62;

/// Returns true if a line of the second level holds translations.
#[inline]
pub(super) const fn is_block(line: u64) -> bool {
    line >= FIRST
}

impl<D: Payload> Private<D> {
    /// Blocks to go next that have turns left become the most recently used lines of their set again.
    fn spare_blocks(&mut self, line: u64) {
        while let Some((key, second)) = self.l2.least_recent(line)
            && second.turns > 0
        {
            second.turns -= 1;
            self.l2.lookup(line, key);
        }
    }
}

impl<D: Payload> MemorySystem<D> {
    /// Enters a line into a second level that has blocks.
    #[inline(never)]
    pub(super) fn fill_beside_blocks(&mut self, core: usize, line: u64, second: SecondLine<D>) {
        let private = &mut self.cores[core];
        private.spare_blocks(line);
        match private.l2.insert(line, line, second) {
            Some((victim, _)) if is_block(victim) => private.blocks -= 1,
            Some((victim, old)) => self.evicted_second(core, victim, old),
            None => {}
        }
    }

    /// Translations of a block that a core's second level has, as bits; its line becomes the most recently used one.
    ///
    /// # Panics
    /// In debug builds, when the block's number is 2^62 or more; so do the others.
    pub fn find_block(&mut self, core: usize, block: u64) -> u8 {
        debug_assert!(block < FIRST);
        let line = FIRST + block;
        let private = &mut self.cores[core];
        let turns = private.turns;
        let found = private.l2.lookup(line, line);
        found.map_or(0, |second| {
            second.turns = turns;
            second.translations
        })
    }

    /// Enters translations of a block, as bits, beside those that are there. A new line takes the place of another one,
    /// which is written back if it was modified; that takes no bandwidth of memory.
    pub fn keep_block(&mut self, core: usize, block: u64, translations: u8) {
        debug_assert!(block < FIRST);
        let line = FIRST + block;
        let private = &mut self.cores[core];
        if let Some(second) = private.l2.lookup(line, line) {
            second.translations |= translations;
            second.turns = private.turns;
            return;
        }
        let second = SecondLine {
            translations,
            turns: private.turns,
            ..SecondLine::default()
        };
        private.blocks += 1;
        let (llc, coherence, counters) = (self.llc, self.coherence, private.l2_counters);
        self.fill_beside_blocks(core, line, second);
        self.steps.words.clear();
        (self.llc, self.coherence) = (llc, coherence);
        self.cores[core].l2_counters = counters;
    }

    /// Drops a block.
    pub fn drop_block(&mut self, core: usize, block: u64) {
        debug_assert!(block < FIRST);
        let line = FIRST + block;
        let private = &mut self.cores[core];
        let had = private.l2.remove(line, line).is_some();
        private.blocks -= u64::from(had);
    }

    /// Drops the blocks of a core for which `unwanted` holds.
    pub fn drop_blocks(&mut self, core: usize, unwanted: impl Fn(u64) -> bool) {
        let private = &mut self.cores[core];
        let mut dropped = 0;
        private.l2.remove_if(|line, _| {
            let drops = is_block(line) && unwanted(line - FIRST);
            dropped += u64::from(drops);
            drops
        });
        private.blocks -= dropped;
    }

    /// From now on, blocks that are used are spared so often when their lines are needed.
    pub fn spare_blocks(&mut self, core: usize, turns: u8) {
        self.cores[core].turns = turns;
    }

    /// Blocks in a core's second level.
    #[must_use]
    pub fn blocks(&self, core: usize) -> u64 {
        self.cores[core].blocks
    }

    /// Misses of a core's second level since the last reset.
    #[must_use]
    pub fn second_level_misses(&self, core: usize) -> u64 {
        self.cores[core].l2_counters.misses
    }

    /// Reads of page walkers that memory served, since the last reset.
    #[must_use]
    pub const fn walk_reads_from_memory(&self) -> u64 {
        self.walks.memory
    }

    /// Latency of a hit of the second level.
    #[must_use]
    pub const fn second_level_latency(&self) -> Cycles {
        self.latency.l2
    }
}
