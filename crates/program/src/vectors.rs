//! Basic-block vectors: which blocks each interval of a program executes, and how much of it they are
//! (Sherwood et al., "Automatically characterizing large scale program behavior", ASPLOS 2002).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;
use crate::sources::Source;
use crate::wire::{ACCESS, BlockId, Event, block_of, is_block};

/// The vectors of a program. A block belongs to the interval that has its last instruction, as in a
/// [plan](crate::plan).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockVectors {
    interval: u64,
    /// Instructions so far, ...
    position: u64,
    /// ... and at the end of the interval under way.
    end: u64,
    /// Instructions of each block, 0 until it is met.
    lengths: Vec<u32>,
    /// Of the interval under way, the instructions executed in each block, ...
    current: Vec<u64>,
    /// ... and the blocks that it has.
    met: Vec<u32>,
    /// Index in the two below at which each finished interval begins.
    begins: Vec<u64>,
    blocks: Vec<u32>,
    counts: Vec<u64>,
}

impl BlockVectors {
    /// Of intervals of so many instructions, more than a block has.
    #[must_use]
    pub fn new(interval: u64) -> Self {
        Self {
            interval: interval.max(1),
            position: 0,
            end: interval.max(1),
            lengths: Vec::new(),
            current: Vec::new(),
            met: Vec::new(),
            begins: vec![0],
            blocks: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// A block of so many instructions is executed.
    #[inline]
    pub fn execute(&mut self, block: BlockId, instructions: u32) {
        self.position += u64::from(instructions);
        if self.position > self.end {
            self.end_interval();
            self.end = self.position.div_ceil(self.interval) * self.interval;
        }
        let index = block.0 as usize;
        if index >= self.current.len() {
            self.current.resize(index + index / 2 + 64, 0);
        }
        if self.current[index] == 0 {
            self.met.push(block.0);
        }
        self.current[index] += u64::from(instructions);
    }

    #[cold]
    fn end_interval(&mut self) {
        self.met.sort_unstable();
        for block in self.met.drain(..) {
            self.blocks.push(block);
            self.counts
                .push(std::mem::take(&mut self.current[block as usize]));
        }
        self.begins.push(self.blocks.len() as u64);
    }

    /// Reads a program to its end, or until `cancel` is set.
    ///
    /// # Errors
    /// Those of the source, and [`Error::UnknownBlock`].
    pub fn read(&mut self, source: &mut dyn Source, cancel: &AtomicBool) -> Result<(), Error> {
        while !cancel.load(Ordering::Relaxed)
            && let Some(batch) = source.next_batch()?
        {
            let mut at = 0;
            while let Some(&word) = batch.words.get(at) {
                if word & ACCESS != 0 {
                    at += 1;
                } else if is_block(word) {
                    at += 1;
                    let block = block_of(word);
                    let known = self.lengths.get(block.0 as usize).copied();
                    let instructions = match known {
                        Some(length @ 1..) => length,
                        _ => self.learn(block, batch.code)?,
                    };
                    self.execute(block, instructions);
                } else {
                    at += Event::decode(&batch.words[at..])?.1;
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn learn(&mut self, block: BlockId, code: &dyn crate::code::CodeLog) -> Result<u32, Error> {
        let described = code.block(block).map(|code| code.instructions());
        let instructions = described
            .filter(|&count| count > 0)
            .ok_or(Error::UnknownBlock(block))?;
        let index = block.0 as usize;
        if index >= self.lengths.len() {
            self.lengths.resize(index + index / 2 + 64, 0);
        }
        self.lengths[index] = instructions;
        Ok(instructions)
    }

    /// Ends the last interval, which may be shorter.
    pub fn finish(&mut self) {
        if !self.met.is_empty() {
            self.end_interval();
        }
    }

    /// Instructions of the program.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.position
    }

    /// The finished intervals as a sparse matrix by rows: where each row begins, then blocks and
    /// instructions executed in them.
    #[must_use]
    pub fn rows(&self) -> (&[u64], &[u32], &[u64]) {
        (&self.begins, &self.blocks, &self.counts)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn basic_block_vectors_agree_with_a_list_of_blocks(
            interval in 20..200_u64,
            executed in proptest::collection::vec((0..5_u32, 1..=20_u32), 0..200),
        ) {
            let mut vectors = BlockVectors::new(interval);
            let mut expected: BTreeMap<u64, BTreeMap<u32, u64>> = BTreeMap::new();
            let mut position = 0;
            for &(block, instructions) in &executed {
                vectors.execute(BlockId(block), instructions);
                position += u64::from(instructions);
                let row = expected.entry((position - 1) / interval).or_default();
                *row.entry(block).or_default() += u64::from(instructions);
            }
            vectors.finish();
            prop_assert_eq!(vectors.instructions(), position);
            let (begins, blocks, counts) = vectors.rows();
            // No block is longer than an interval, so that none is empty.
            prop_assert_eq!(begins.len(), expected.len() + 1);
            for (row, (interval, expected)) in expected.iter().enumerate() {
                prop_assert_eq!(*interval, row as u64);
                let at = begins[row] as usize..begins[row + 1] as usize;
                let found = blocks[at.clone()].iter().copied().zip(counts[at].iter().copied());
                prop_assert_eq!(&found.collect::<BTreeMap<_, _>>(), expected);
            }
        }
    }
}
