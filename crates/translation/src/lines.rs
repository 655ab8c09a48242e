//! Translations in lines of a data cache.

use contigua_units::Cycles;

/// The L2 cache of a core, whose lines can hold blocks of eight translations in place of data. Blocks have numbers below
/// 2^62, whose low bits choose sets. What a block's translations are, the translation unit knows.
pub trait TranslationLines {
    /// Translations of a block that are there, as bits; its line becomes the most recently used one.
    fn find(&mut self, block: u64) -> u8;

    /// Enters translations of a block, as bits, beside those that are there. A new line takes the place of another one.
    fn keep(&mut self, block: u64, translations: u8);

    /// Drops a block.
    fn drop_block(&mut self, block: u64);

    /// Drops the blocks for which `unwanted` holds.
    fn drop_blocks(&mut self, unwanted: &dyn Fn(u64) -> bool);

    /// From now on, blocks that are used are spared so often when their lines are needed: each time, they become the most
    /// recently used lines again.
    fn spare(&mut self, turns: u8);

    /// Blocks that are there.
    fn blocks(&self) -> u64;

    /// Misses of the cache since its counters were reset.
    fn misses(&self) -> u64;

    /// Reads of page walkers that memory served since counters were reset.
    fn walk_reads_from_memory(&self) -> u64;

    /// Latency of a hit.
    fn latency(&self) -> Cycles;
}
