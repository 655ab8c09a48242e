//! Blocks that the program's allocator gave it, by the code that asked for them.

use std::collections::{BTreeMap, HashMap};

use contigua_program::syscall::Call;
use contigua_program::wire::Event;
use contigua_units::VirtRange;
use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Serialize;

/// Code that asks for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Site {
    /// The call of the allocator, by its place in the profile's list of instructions, and the stack that it
    /// was made in.
    pub by: (u32, u32),
    /// Blocks so far.
    pub blocks: u64,
    /// Bytes of them all.
    pub bytes: u64,
}

/// Index that stands for memory of no block.
pub const NO_SITE: u32 = 0;

/// Blocks of a process: start to end and index of the site.
type Live = BTreeMap<u64, (u64, u32)>;

/// Sites of all processes, and the blocks that lie in memory.
///
/// That a block is freed is not told: it stays until another one takes its place, or its memory is unmapped.
pub struct Sites {
    all: Vec<Site>,
    known: HashMap<(u32, u32), u32, FxBuildHasher>,
    live: Vec<Live>,
}

impl Sites {
    pub fn new() -> Self {
        let none = Site {
            by: (0, 0),
            blocks: 0,
            bytes: 0,
        };
        Self {
            all: vec![none],
            known: HashMap::default(),
            live: Vec::new(),
        }
    }

    pub fn all(&self) -> &[Site] {
        &self.all
    }

    /// The site of an address's block.
    pub fn find(&self, process: u32, address: u64) -> u32 {
        let live = self.live.get(process as usize);
        let below = live.and_then(|live| live.range(..=address).next_back());
        below
            .filter(|(_, (end, _))| address < *end)
            .map_or(NO_SITE, |(_, &(_, site))| site)
    }

    /// A block that a process got.
    pub fn put(&mut self, process: u32, range: VirtRange, by: (u32, u32)) {
        let next = self.all.len() as u32;
        let site = *self.known.entry(by).or_insert(next);
        if site == next {
            self.all.push(Site {
                by,
                blocks: 0,
                bytes: 0,
            });
        }
        self.all[site as usize].blocks += 1;
        self.all[site as usize].bytes += range.bytes();
        self.remove(process, range);
        if !range.is_empty() {
            let (start, end) = (range.start.get(), range.end.get());
            self.live(process).insert(start, (end, site));
        }
    }

    fn live(&mut self, process: u32) -> &mut Live {
        let index = process as usize;
        if index >= self.live.len() {
            self.live.resize_with(index + 1, Live::new);
        }
        &mut self.live[index]
    }

    /// Takes away all blocks that touch a range.
    fn remove(&mut self, process: u32, range: VirtRange) {
        let live = self.live(process);
        while let Some((&start, _)) = live
            .range(..range.end.get())
            .next_back()
            .filter(|(_, (end, _))| *end > range.start.get())
        {
            live.remove(&start);
        }
    }

    /// Follows an event of a process.
    pub fn event(&mut self, process: u32, event: &Event, call: Option<&Call>) {
        if self.live.is_empty() {
            return;
        }
        match *event {
            Event::ProcessStart { process } | Event::ProcessEnd { process } => {
                self.live(process.0).clear();
            }
            Event::Fork { child } => {
                let parent = self.live(process).clone();
                *self.live(child.0) = parent;
            }
            _ => {}
        }
        match call {
            Some(Call::Unmap { range } | Call::Map { range, .. }) => self.remove(process, *range),
            Some(Call::Remap { from, keep, .. }) if !keep => self.remove(process, *from),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_units::VirtAddr;
    use proptest::prelude::*;

    fn range(start: u64, bytes: u64) -> VirtRange {
        VirtRange::with_length(VirtAddr::new(start), bytes)
    }

    proptest! {
        #[test]
        fn blocks_are_those_of_a_list(
            blocks in proptest::collection::vec((0u64..40, 0u64..12, 0u32..4, any::<bool>()), 0..60),
        ) {
            let mut sites = Sites::new();
            let mut list: Vec<(VirtRange, u32)> = Vec::new();
            for (start, bytes, by, is_unmapped) in blocks {
                let range = range(start, bytes);
                list.retain(|(other, _)| other.end <= range.start || range.end <= other.start);
                if is_unmapped {
                    sites.live(0);
                    sites.event(0, &Event::Interrupt, Some(&Call::Unmap { range }));
                } else {
                    sites.put(0, range, (by, 7));
                    list.push((range, by));
                }
                for address in 0..60 {
                    let site = sites.find(0, address);
                    let found = (site != NO_SITE).then(|| sites.all()[site as usize].by.0);
                    let of = list.iter().find(|(range, _)| range.contains(VirtAddr::new(address)));
                    prop_assert_eq!(found, of.map(|(_, by)| *by), "address {}", address);
                }
            }
        }
    }

    #[test]
    fn a_child_has_its_parents_blocks() {
        let mut sites = Sites::new();
        sites.put(3, range(100, 10), (1, 0));
        let child = contigua_program::wire::ProcessId(4);
        sites.event(3, &Event::Fork { child }, None);
        sites.event(
            3,
            &Event::ProcessStart {
                process: contigua_program::wire::ProcessId(3),
            },
            None,
        );
        assert_eq!((sites.find(3, 105), sites.find(4, 105)), (NO_SITE, 1));
        assert_eq!((sites.all()[1].blocks, sites.all()[1].bytes), (1, 10));
    }
}
