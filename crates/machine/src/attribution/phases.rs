//! Costs over time: in each phase of the run, those of every instruction and of every 2 MB of memory.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Serialize;

use super::Costs;

/// Phases at most; when there are so many, each two become one.
const MOST: u32 = 64;
/// Instructions of a phase at first.
const WIDTH: u64 = 1 << 16;
/// log2 of the bytes of a block of memory.
const BLOCK_SHIFT: u32 = 21;
/// Blocks that a mapping has in a file at most; larger ones are added up where it has more.
const MOST_BLOCKS: u64 = 128;

type Cells<K> = HashMap<(K, u32), Costs, FxBuildHasher>;

/// Costs by phase.
pub struct Phases {
    /// Instructions of a phase.
    width: u64,
    code: Cells<u32>,
    /// By mapping and block.
    memory: Cells<(u32, u64)>,
}

impl Phases {
    pub fn new() -> Self {
        Self {
            width: WIDTH,
            code: Cells::default(),
            memory: Cells::default(),
        }
    }

    /// Counts what an instruction has cost at an address of a mapping, after so many instructions.
    pub fn add(
        &mut self,
        executed: u64,
        instruction: u32,
        mapping: u32,
        address: u64,
        costs: Costs,
    ) {
        while executed / self.width >= MOST.into() {
            self.width *= 2;
            halve(&mut self.code);
            halve(&mut self.memory);
        }
        let phase = (executed / self.width) as u32;
        let block = (mapping, address >> BLOCK_SHIFT);
        *self.code.entry((instruction, phase)).or_default() += costs;
        *self.memory.entry((block, phase)).or_default() += costs;
    }

    /// Everything that was counted; `places` are instructions by the places that a file has them at.
    pub fn written(&self, places: impl Fn(u32) -> u32) -> PhasesOf {
        let mut code: Vec<_> = self
            .code
            .iter()
            .map(|(&(instruction, phase), &costs)| CodePhase {
                instruction: places(instruction),
                phase,
                costs,
            })
            .collect();
        code.sort_unstable_by_key(|cell| (cell.instruction, cell.phase));
        let mut spans: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for &((mapping, block), _) in self.memory.keys() {
            let (first, last) = spans.entry(mapping).or_insert((block, block));
            (*first, *last) = ((*first).min(block), (*last).max(block));
        }
        let mut memory: BTreeMap<_, Costs> = BTreeMap::new();
        for (&((mapping, block), phase), &costs) in &self.memory {
            let (first, last) = spans[&mapping];
            let shift = shift_of(last - first);
            let block = first + ((block - first) >> shift << shift);
            *memory.entry((mapping, block, phase)).or_default() += costs;
        }
        let memory = memory.into_iter();
        PhasesOf {
            instructions: self.width,
            code,
            memory: memory
                .map(|((mapping, block, phase), costs)| {
                    let (first, last) = spans[&mapping];
                    MemoryPhase {
                        mapping,
                        start: block << BLOCK_SHIFT,
                        bytes: 1 << BLOCK_SHIFT << shift_of(last - first),
                        phase,
                        costs,
                    }
                })
                .collect(),
        }
    }
}

/// log2 of the blocks that are added up where a mapping has `distance` blocks behind its first one.
fn shift_of(distance: u64) -> u32 {
    let mut shift = 0;
    while distance >> shift >= MOST_BLOCKS {
        shift += 1;
    }
    shift
}

fn halve<K: Copy + Eq + Hash>(cells: &mut Cells<K>) {
    let before = std::mem::take(cells);
    for ((key, phase), costs) in before {
        *cells.entry((key, phase / 2)).or_default() += costs;
    }
}

/// Costs by phase, as a file has them.
#[derive(Serialize, JsonSchema)]
pub struct PhasesOf {
    /// Instructions of a phase.
    instructions: u64,
    /// Costs of instructions.
    code: Vec<CodePhase>,
    /// Costs of parts of mappings.
    memory: Vec<MemoryPhase>,
}

/// Costs of an instruction in a phase.
#[derive(Serialize, JsonSchema)]
struct CodePhase {
    /// The instruction.
    instruction: u32,
    /// Number of the phase.
    phase: u32,
    #[serde(flatten)]
    costs: Costs,
}

/// Costs of a part of a mapping in a phase.
#[derive(Serialize, JsonSchema)]
struct MemoryPhase {
    /// The mapping.
    mapping: u32,
    /// The first address of the part.
    start: u64,
    /// Its bytes.
    bytes: u64,
    /// Number of the phase.
    phase: u32,
    #[serde(flatten)]
    costs: Costs,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walks(walks: u64) -> Costs {
        Costs {
            walks,
            ..Costs::default()
        }
    }

    #[test]
    fn phases_double_and_lose_nothing() {
        let mut phases = Phases::new();
        for step in 0..1000 {
            phases.add(step * WIDTH, 7, 1, step << BLOCK_SHIFT, walks(1));
        }
        let found = phases.written(|instruction| instruction + 1);
        assert_eq!(found.instructions, 16 * WIDTH);
        let by_phase: Vec<_> = found.code.iter().map(|cell| cell.costs.walks).collect();
        assert_eq!(by_phase.len(), 63);
        assert!(by_phase[..62].iter().all(|&count| count == 16));
        assert_eq!(by_phase.iter().sum::<u64>(), 1000);
        assert!(found.code.iter().all(|cell| cell.instruction == 8));
        assert_eq!(
            found
                .memory
                .iter()
                .map(|cell| cell.costs.walks)
                .sum::<u64>(),
            1000
        );
        // 1,000 blocks in a file are 125 of 8.
        assert!(
            found
                .memory
                .iter()
                .all(|cell| cell.bytes == 8 << BLOCK_SHIFT)
        );
        let first = found.memory.iter().filter(|cell| cell.start == 0);
        assert_eq!(first.map(|cell| cell.costs.walks).sum::<u64>(), 8);
    }
}
