//! Reuse distances of data accesses, in pages of three sizes: by mapping, which part of its accesses
//! misses a TLB of any number of entries, and how densely it uses larger pages.
//!
//! The distance of an access is the number of other pages that its core has accessed since the last
//! access to its page. A fully associative TLB with least-recently-used replacement and more entries
//! than that has the page (Mattson and others, IBM Systems Journal 1970). Pages lie in a list, the last
//! one accessed first; marks at some depths divide it into groups, and a page that moves to the front
//! pushes one page over each mark on its way (Kim, Hill and Wood, SIGMETRICS 1991), so that counts are
//! exact at the marks.

use std::collections::{HashMap, HashSet};

use contigua_units::PAGE_BYTES;
use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Serialize;

/// Numbers of entries at which misses are exact: two for each power of two up to the largest TLBs,
/// one beyond.
pub const MARKS: [u64; 29] = [
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576,
];
/// Groups of distances: below each mark, and beyond the last.
const GROUPS: usize = MARKS.len() + 1;
/// log2 of the bytes of the pages that distances are counted in.
const SHIFTS: [u32; 3] = [PAGE_BYTES.ilog2(), 16, 21];
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    before: u32,
    after: u32,
    group: u32,
}

/// Pages of one size, the last one accessed first.
struct Stack {
    nodes: Vec<Node>,
    first: u32,
    /// The last page of each group.
    lasts: [u32; GROUPS],
}

impl Stack {
    fn new() -> Self {
        Self {
            nodes: Vec::new(),
            first: NONE,
            lasts: [NONE; GROUPS],
        }
    }

    /// Adds a page that was never accessed before, and returns its number.
    fn add(&mut self) -> u32 {
        let full = MARKS.partition_point(|&mark| mark <= self.nodes.len() as u64);
        let page = self.nodes.len() as u32;
        self.nodes.push(Node {
            before: NONE,
            after: NONE,
            group: 0,
        });
        if full > 0 && self.lasts[full] == NONE {
            self.lasts[full] = self.lasts[full - 1];
        }
        self.push_over_marks(full);
        self.put_first(page);
        page
    }

    /// Moves a page to the front, and returns the group in which it was.
    fn access(&mut self, page: u32) -> usize {
        if page == self.first {
            return 0;
        }
        let Node {
            before,
            after,
            group,
        } = self.nodes[page as usize];
        let group = group as usize;
        if self.lasts[group] == page {
            self.lasts[group] = before;
        }
        self.push_over_marks(group);
        self.nodes[before as usize].after = after;
        if after != NONE {
            self.nodes[after as usize].before = before;
        }
        self.put_first(page);
        group
    }

    /// The last page of each group below `group` goes to the next one.
    fn push_over_marks(&mut self, group: usize) {
        for (last, next) in self.lasts[..group].iter_mut().zip(1..) {
            let moved = &mut self.nodes[*last as usize];
            moved.group = next;
            *last = moved.before;
        }
    }

    fn put_first(&mut self, page: u32) {
        self.nodes[page as usize] = Node {
            before: NONE,
            after: self.first,
            group: 0,
        };
        if self.first != NONE {
            self.nodes[self.first as usize].before = page;
        }
        self.first = page;
        // The first group has one page.
        self.lasts[0] = page;
    }
}

/// Accesses by the distance to the last access to their page.
#[derive(Clone, Default, Serialize, JsonSchema)]
struct Reuse {
    /// By group: fewer pages lie between than its mark says, and not fewer than the mark before.
    distances: [u64; GROUPS],
    /// First accesses.
    first: u64,
    /// Pages accessed.
    pages: u64,
}

/// Locality of a mapping, for each size of page.
#[derive(Clone, Default)]
struct Counts {
    /// Accesses to the page accessed last.
    repeated: u64,
    reuse: [Reuse; SHIFTS.len()],
}

/// A page of 4 KB.
#[derive(Clone, Copy)]
struct Page {
    /// Numbers of the pages of all sizes that it lies in.
    nodes: [u32; SHIFTS.len()],
    /// The region of interest in which it was accessed last.
    region: u32,
}

/// An access that was found before: its page and process, and what they are.
#[derive(Clone, Copy)]
struct Recent {
    key: u64,
    page: u32,
    mapping: u32,
}

const NOTHING: Recent = Recent {
    key: u64::MAX,
    page: NONE,
    mapping: 0,
};

/// Pages of a core.
struct Core {
    stacks: [Stack; SHIFTS.len()],
    /// Numbers of pages of each size, by process and address.
    known: [HashMap<u64, u32, FxBuildHasher>; SHIFTS.len()],
    pages: Vec<Page>,
    last: Recent,
    recent: [Recent; 64],
}

/// Reuse distances of a run.
pub struct Locality {
    cores: Vec<Core>,
    /// By mapping.
    counts: Vec<Counts>,
    /// Larger pages that a mapping has accessed: by size, mapping and page.
    blocks: [HashSet<(u32, u64), FxBuildHasher>; SHIFTS.len()],
    region: u32,
}

impl Locality {
    pub fn new(cores: usize) -> Self {
        let core = || Core {
            stacks: SHIFTS.map(|_| Stack::new()),
            known: SHIFTS.map(|_| HashMap::default()),
            pages: Vec::new(),
            last: NOTHING,
            recent: [NOTHING; 64],
        };
        Self {
            cores: (0..cores).map(|_| core()).collect(),
            counts: Vec::new(),
            blocks: SHIFTS.map(|_| HashSet::default()),
            region: 0,
        }
    }

    /// Counts begin anew; the order of pages stays.
    pub fn reset(&mut self) {
        self.counts.clear();
        self.blocks.iter_mut().for_each(HashSet::clear);
        self.region += 1;
    }

    /// Mappings have changed.
    pub fn forget_mappings(&mut self) {
        for core in &mut self.cores {
            core.last = NOTHING;
            core.recent = [NOTHING; 64];
        }
    }

    /// Follows an access of a core; `find` tells the mapping of its address.
    #[inline]
    pub fn access(
        &mut self,
        core: usize,
        process: u32,
        address: u64,
        is_counted: bool,
        find: impl FnOnce() -> u32,
    ) {
        let key = key(process, address >> SHIFTS[0]);
        let last = self.cores[core].last;
        if last.key == key {
            if is_counted {
                counts(&mut self.counts, last.mapping).repeated += 1;
            }
            return;
        }
        self.access_another(core, key, process, address, is_counted, find);
    }

    fn access_another(
        &mut self,
        core: usize,
        key: u64,
        process: u32,
        address: u64,
        is_counted: bool,
        find: impl FnOnce() -> u32,
    ) {
        let core = &mut self.cores[core];
        let slot = (key % core.recent.len() as u64) as usize;
        let is_recent = core.recent[slot].key == key;
        let known = if is_recent {
            Some(core.recent[slot].page)
        } else {
            core.known[0].get(&key).copied()
        };
        let mapping = if is_recent {
            core.recent[slot].mapping
        } else {
            find()
        };
        let (page, found) = match known {
            Some(page) => {
                let nodes = core.pages[page as usize].nodes;
                let stacks = core.stacks.iter_mut().zip(nodes);
                let mut found = [None; SHIFTS.len()];
                for (found, (stack, node)) in found.iter_mut().zip(stacks) {
                    *found = Some(stack.access(node));
                }
                (page, found)
            }
            None => core.add(process, address),
        };
        core.last = Recent { key, page, mapping };
        core.recent[slot] = core.last;
        if !is_counted {
            return;
        }
        let page = &mut core.pages[page as usize];
        let is_new = page.region != self.region;
        page.region = self.region;
        let counts = counts(&mut self.counts, mapping);
        for (size, group) in found.into_iter().enumerate() {
            let reuse = &mut counts.reuse[size];
            match group {
                Some(group) => reuse.distances[group] += 1,
                None => reuse.first += 1,
            }
            let block = self::key(process, address >> SHIFTS[size]);
            if is_new && self.blocks[size].insert((mapping, block)) {
                reuse.pages += 1;
            }
        }
    }

    /// Everything that was counted, by mapping.
    pub fn rows(&self) -> Vec<LocalityRow> {
        let of = self.counts.iter().zip(0..);
        of.filter(|(counts, _)| counts.repeated > 0 || counts.reuse[0].pages > 0)
            .map(|(counts, mapping)| {
                let [base, middle, huge] = counts.reuse.clone().map(|mut reuse| {
                    reuse.distances[0] += counts.repeated;
                    reuse
                });
                LocalityRow {
                    mapping,
                    base,
                    middle,
                    huge,
                }
            })
            .collect()
    }
}

/// Locality of a mapping.
#[derive(Serialize, JsonSchema)]
pub struct LocalityRow {
    /// The mapping.
    mapping: u32,
    /// In pages of 4 KB.
    #[serde(rename = "4k")]
    base: Reuse,
    /// In pages of 64 KB.
    #[serde(rename = "64k")]
    middle: Reuse,
    /// In pages of 2 MB.
    #[serde(rename = "2m")]
    huge: Reuse,
}

/// A page of a process; pages have at most 45 bits.
fn key(process: u32, page: u64) -> u64 {
    u64::from(process) << 45 ^ page
}

fn counts(all: &mut Vec<Counts>, mapping: u32) -> &mut Counts {
    let index = mapping as usize;
    if index >= all.len() {
        all.resize_with(index + 1, Counts::default);
    }
    &mut all[index]
}

impl Core {
    /// Adds a page of 4 KB, whose larger pages may be known; returns it, and the group of each.
    #[cold]
    fn add(&mut self, process: u32, address: u64) -> (u32, [Option<usize>; SHIFTS.len()]) {
        let mut nodes = [NONE; SHIFTS.len()];
        let mut groups = [None; SHIFTS.len()];
        for (size, shift) in SHIFTS.into_iter().enumerate() {
            let stack = &mut self.stacks[size];
            let key = key(process, address >> shift);
            if let Some(&known) = self.known[size].get(&key) {
                nodes[size] = known;
                groups[size] = Some(stack.access(known));
            } else {
                nodes[size] = stack.add();
                self.known[size].insert(key, nodes[size]);
            }
        }
        let page = self.pages.len() as u32;
        self.pages.push(Page {
            nodes,
            region: NONE,
        });
        debug_assert_eq!(page, nodes[0], "pages of 4 KB are numbered alike");
        (page, groups)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The group of a distance.
    fn group_of(distance: usize) -> usize {
        MARKS.partition_point(|&mark| mark <= distance as u64)
    }

    /// Accesses, most of them near an earlier one, to up to 6,000 pages.
    fn accesses() -> impl Strategy<Value = Vec<u32>> {
        let near = (0u32..40).prop_map(|page| page);
        let far = 0u32..6000;
        prop::collection::vec(prop_oneof![near, far], 1..9000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A list that is searched from its front.
        #[test]
        fn groups_are_those_of_a_searched_list(accessed in accesses()) {
            let mut list: Vec<u32> = Vec::new();
            let mut stack = Stack::new();
            let mut numbers = HashMap::new();
            for page in accessed {
                let place = list.iter().position(|&one| one == page);
                match place {
                    Some(place) => {
                        list.remove(place);
                        prop_assert_eq!(stack.access(numbers[&page]), group_of(place));
                    }
                    None => {
                        numbers.insert(page, stack.add());
                    }
                }
                list.insert(0, page);
            }
            for (place, page) in list.iter().enumerate() {
                prop_assert_eq!(stack.nodes[numbers[page] as usize].group as usize, group_of(place));
            }
        }
    }

    #[test]
    fn larger_pages_are_reused_where_smaller_ones_are_new() {
        let mut locality = Locality::new(1);
        for page in 0..512 {
            locality.access(0, 0, page << 12, true, || 3);
        }
        let [row] = &locality.rows()[..] else {
            panic!("one mapping")
        };
        assert_eq!(row.mapping, 3);
        assert_eq!((row.base.first, row.base.pages), (512, 512));
        assert_eq!((row.middle.first, row.middle.pages), (32, 32));
        assert_eq!((row.huge.first, row.huge.pages), (1, 1));
        assert_eq!(row.huge.distances[0], 511);
    }

    #[test]
    fn a_region_counts_its_own_accesses_and_knows_pages_from_before() {
        let mut locality = Locality::new(1);
        for address in [0x1000, 0x2000, 0x3000] {
            locality.access(0, 0, address, true, || 1);
        }
        locality.reset();
        locality.access(0, 0, 0x1000, true, || 1);
        locality.access(0, 0, 0x9000, false, || 1);
        let rows = locality.rows();
        assert_eq!((rows[0].base.first, rows[0].base.pages), (0, 1));
        assert_eq!(rows[0].base.distances[group_of(2)], 1);
    }
}
