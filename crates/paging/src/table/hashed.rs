//! Hashed page tables: in place of a tree, tables of lines that each hold the entries of eight neighboring
//! pages, one table for each size of page, found by a hash of the pages' number.
//!
//! The tables are elastic cuckoo tables (Skarlatos and others, ASPLOS 2020): a line lies in one of several ways,
//! and insertion moves others out of its way. A table that is full to its threshold gets ways of twice the size,
//! and lines go over one by one, as others are inserted: a pointer in each way tells which have. Ways are
//! contiguous, or in chunks (ME-HPT: Stojkovic and others, HPCA 2023): then they grow in place and one at a time.
//!
//! A table of one way is an open one (Yaniv and Tsafrir, SIGMETRICS 2016): contiguous, as large as it will ever be.
//!
//! The memory comes from whoever grows the table ([`PageTable::grow`](super::PageTable::grow)). Without it, a table stays
//! as it is: insertion fails when no line can be moved out of the way. Hash functions are ours; with one bit
//! more of the hash in ways of twice the size, lines that go over meet no others. Tables do not shrink.

use contigua_state::Plain;
use contigua_units::{Frame, LINE_BYTES, Order, PAGE_BYTES, PageSize, PhysAddr, VirtAddr};

/// Pages of a line.
const PAGES: u64 = 8;
/// Moves after which an insertion gives up. Cited from memory (ASPLOS 2020).
const MOST_MOVES: usize = 32;
/// Other moves that are tried then. Ours.
const ATTEMPTS: usize = 8;
/// Most ways of a table.
pub const MAX_WAYS: usize = 4;
/// Lines of a way for pages of 2 MB and 1 GB, at first; at most.
const FEW_LINES: u64 = 1 << 14;
/// The walk tables of all sizes: 4,096 lines of 64 bytes for 2 MB, and as many for 1 GB. The numbers are
/// cited from memory (ASPLOS 2020); one place for each line is ours.
const WALK_LINES: u64 = 4096;
const WALK_ORDER: Order = Order::new(7);
/// A line of the walk tables covers 64 sections.
const SECTIONS_SHIFT: u32 = 6;
/// After growth has failed, it is tried again when one part in this many is filled more. Chosen.
const RETRY: u64 = 64;

/// The shape of hashed tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
pub struct Hashing {
    /// Ways of each table; at most [`MAX_WAYS`]. A single one is an open table, which does not grow: a line lies in the
    /// first free place from that of its hash on.
    pub ways: u32,
    /// Lines of a way at first; a power of two, of at least a page.
    pub lines: u64,
    /// Size of a chunk; none where a way is contiguous.
    pub chunk: Option<Order>,
    /// Lines, in percent of all places, above which a table grows.
    pub full: u32,
}

/// The outcome of growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Frames that are part of the tables now.
    pub frames: u64,
    /// Tables that grew, or were made.
    pub tables: u64,
    /// Tables for which there was no memory.
    pub failures: u64,
    /// Bytes of the largest block that was asked for.
    pub largest_block: u64,
    /// Nodes that moved into areas.
    pub copied: u64,
}

impl Growth {
    /// Adds another outcome.
    pub(crate) fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.tables += other.tables;
        self.failures += other.failures;
        self.largest_block = self.largest_block.max(other.largest_block);
        self.copied += other.copied;
    }
}

/// A line: its number, and which of its pages are mapped.
type Line = u64;

/// A way.
#[derive(Clone, Debug, Default, Plain)]
struct Way {
    /// By place; twice as many as `lines` while it grows.
    places: Vec<Line>,
    used: u64,
    lines: u64,
    /// Places that have gone over, while it grows.
    pointer: Option<u64>,
    blocks: Vec<Frame>,
    /// While it grows elsewhere.
    next: Vec<Frame>,
}

/// The table for a size of page.
#[derive(Clone, Debug, Default, Plain)]
struct Table {
    ways: Vec<Way>,
    used: u64,
    /// Lines from which growth is tried again.
    retry: u64,
    /// A page was to be mapped and there is no table, or no room in it.
    is_wanted: bool,
}

/// The tables of a process.
#[derive(Clone, Debug, Plain)]
pub struct Hashed {
    hashing: Hashing,
    tables: [Table; PageSize::ALL.len()],
    walk_tables: Option<Frame>,
    /// Blocks that are no part of the tables any more, and moves, which nobody knows of yet.
    released: Vec<Frame>,
    moves: u64,
}

fn hash(line: u64, way: usize) -> u64 {
    let mut mixed = line ^ (way as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Number of a page's line, and the bit of the page in it.
fn line_of(address: VirtAddr, size: PageSize) -> (u64, u64) {
    let page = address.get() >> size.shift();
    (page / PAGES, 1 << (page % PAGES))
}

fn order_of(lines: u64) -> Order {
    Order::new((lines * LINE_BYTES / PAGE_BYTES).ilog2() as u8)
}

impl Way {
    /// The place that a line's hash tells.
    fn place(&self, line: u64, way: usize) -> usize {
        let hash = hash(line, way);
        let old = hash & (self.lines - 1);
        let place = match self.pointer {
            Some(pointer) if old < pointer => hash & (2 * self.lines - 1),
            _ => old,
        };
        place as usize
    }

    /// Physical address of a place.
    fn address(&self, place: usize) -> PhysAddr {
        let place = place as u64;
        let old = place & (self.lines - 1);
        let went = self.pointer.is_some_and(|pointer| old < pointer);
        let (blocks, lines) = if went && !self.next.is_empty() {
            (&self.next, 2 * self.lines)
        } else if self.pointer.is_some() && self.next.is_empty() {
            (&self.blocks, 2 * self.lines)
        } else {
            (&self.blocks, self.lines)
        };
        let each = lines / blocks.len() as u64;
        blocks[(place / each) as usize].address() + place % each * LINE_BYTES
    }

    /// Places from that of a line's hash on, around the end.
    fn chain(&self, line: u64) -> impl Iterator<Item = usize> + use<> {
        let (first, last) = (self.place(line, 0), self.lines as usize - 1);
        (0..=last).map(move |step| (first + step) & last)
    }

    /// The place of a line in an open table, or the one that it would have; none where all others are in use.
    fn seek(&self, line: u64) -> Option<usize> {
        self.chain(line).find(|&place| {
            let found = self.places[place];
            found == 0 || found >> PAGES == line
        })
    }

    /// Moves lines of an open table into a place that has become free, so that look-ups find them; how many.
    fn close(&mut self, mut free: usize) -> u64 {
        let last = self.lines as usize - 1;
        let (mut at, mut moves) = (free, 0);
        loop {
            at = (at + 1) & last;
            let line = self.places[at];
            if line == 0 || at == free {
                return moves;
            }
            // As far from its hash's place as the free place is from it, or farther.
            let home = self.place(line >> PAGES, 0);
            if at.wrapping_sub(home) & last >= at.wrapping_sub(free) & last {
                self.places[free] = std::mem::take(&mut self.places[at]);
                (free, moves) = (at, moves + 1);
            }
        }
    }

    /// Lets one place go over; says whether a line moved.
    fn go_over(&mut self, way: usize, released: &mut Vec<Frame>) -> bool {
        let Some(pointer) = self.pointer else {
            return false;
        };
        let from = pointer as usize;
        let line = self.places[from];
        let mut moved = line != 0 && !self.next.is_empty();
        if line != 0 && hash(line >> PAGES, way) & self.lines != 0 {
            self.places[from + self.lines as usize] = std::mem::take(&mut self.places[from]);
            moved = true;
        }
        self.pointer = Some(pointer + 1);
        if pointer + 1 == self.lines {
            self.pointer = None;
            self.lines *= 2;
            if !self.next.is_empty() {
                released.append(&mut self.blocks);
                std::mem::swap(&mut self.blocks, &mut self.next);
            }
        }
        moved
    }
}

impl Table {
    fn find(&self, line: u64) -> Option<(usize, usize)> {
        if let [way] = &self.ways[..] {
            return way
                .seek(line)
                .filter(|&place| way.places[place] != 0)
                .map(|place| (0, place));
        }
        (0..self.ways.len()).find_map(|number| {
            let way = &self.ways[number];
            let place = way.place(line, number);
            let found = way.places[place];
            (found != 0 && found >> PAGES == line).then_some((number, place))
        })
    }

    /// Puts a line in, and moves others for it; how many. Nothing is changed where that fails.
    fn put(&mut self, line: Line) -> Option<u64> {
        if let [way] = &mut self.ways[..] {
            let place = way.seek(line >> PAGES)?;
            way.places[place] = line;
            way.used += 1;
            self.used += 1;
            return Some(0);
        }
        (0..ATTEMPTS).find_map(|attempt| self.try_to_put(line, attempt * MOST_MOVES))
    }

    fn try_to_put(&mut self, line: Line, seed: usize) -> Option<u64> {
        let (mut carried, mut last) = (line, usize::MAX);
        let mut path = [(0, 0); MOST_MOVES];
        for (step, moved) in path.iter_mut().enumerate() {
            let number = self.choose(hash(line, MAX_WAYS + seed + step), last);
            let way = &mut self.ways[number];
            let place = way.place(carried >> PAGES, number);
            std::mem::swap(&mut carried, &mut way.places[place]);
            *moved = (number, place);
            last = number;
            if carried == 0 {
                way.used += 1;
                self.used += 1;
                return Some(step as u64);
            }
        }
        for &(number, place) in path.iter().rev() {
            std::mem::swap(&mut carried, &mut self.ways[number].places[place]);
        }
        None
    }

    /// Any way but one, the more probably the more of it is free (ME-HPT, cited from memory).
    fn choose(&self, random: u64, not: usize) -> usize {
        let free = |(number, way): (usize, &Way)| {
            u64::from(number != not) * (way.places.len() as u64 - way.used + 1)
        };
        let all: u64 = self.ways.iter().enumerate().map(free).sum();
        let mut left = random % all;
        for (number, way) in self.ways.iter().enumerate() {
            match left.checked_sub(free((number, way))) {
                Some(rest) => left = rest,
                None => return number,
            }
        }
        0
    }

    fn go_over(&mut self, released: &mut Vec<Frame>) -> u64 {
        let ways = self.ways.iter_mut().enumerate();
        ways.map(|(number, way)| u64::from(way.go_over(number, released)))
            .sum()
    }

    fn is_growing(&self) -> bool {
        self.ways.iter().any(|way| way.pointer.is_some())
    }

    fn places(&self) -> u64 {
        self.ways.iter().map(|way| way.lines).sum()
    }
}

impl Hashed {
    pub(super) fn new(hashing: Hashing) -> Self {
        let mut tables: [Table; PageSize::ALL.len()] = std::array::from_fn(|_| Table::default());
        tables[PageSize::Size4K as usize].is_wanted = true;
        tables[PageSize::Size2M as usize].is_wanted = true;
        Self {
            hashing,
            tables,
            walk_tables: None,
            released: Vec::new(),
            moves: 0,
        }
    }

    /// The shape of its tables, as large as they are.
    #[must_use]
    pub fn hashing(&self) -> Hashing {
        let lines = self.tables[PageSize::Size4K as usize].ways.iter();
        let most = lines.map(|way| way.lines).max();
        Hashing {
            lines: most.unwrap_or(self.hashing.lines),
            ..self.hashing
        }
    }

    /// Addresses at which the line of a page may lie, one in each way; none without a table.
    pub fn candidates(
        &self,
        address: VirtAddr,
        size: PageSize,
    ) -> impl Iterator<Item = PhysAddr> + '_ {
        let (line, _) = line_of(address, size);
        let ways = self.tables[size as usize].ways.iter().enumerate();
        ways.map(move |(number, way)| way.address(way.place(line, number)))
    }

    /// Addresses of the lines of an open table that a look-up for a page reads, one after another: up to that of
    /// the page, or one that is free.
    pub fn chain(&self, address: VirtAddr, size: PageSize) -> impl Iterator<Item = PhysAddr> + '_ {
        let (line, _) = line_of(address, size);
        let way = self.tables[size as usize].ways.first();
        way.into_iter().flat_map(move |way| {
            let last = way.seek(line);
            let mut ended = false;
            let read = way
                .chain(line)
                .take_while(move |&place| !std::mem::replace(&mut ended, Some(place) == last));
            read.map(|place| way.address(place))
        })
    }

    /// Address of the line of a page that is mapped.
    #[must_use]
    pub fn place(&self, address: VirtAddr, size: PageSize) -> Option<PhysAddr> {
        let (line, _) = line_of(address, size);
        let table = &self.tables[size as usize];
        let (way, place) = table.find(line)?;
        Some(table.ways[way].address(place))
    }

    /// Returns true if there are pages of a size.
    #[must_use]
    pub fn has(&self, size: PageSize) -> bool {
        self.tables[size as usize].used > 0
    }

    /// Address of the line of a walk table that tells which pages lie in the section of a size around an address.
    #[must_use]
    pub fn walk_line(&self, address: VirtAddr, section: PageSize) -> Option<PhysAddr> {
        let number = address.get() >> section.shift() >> SECTIONS_SHIFT;
        let line = hash(number, 0) % WALK_LINES;
        let table = u64::from(section == PageSize::Size1G) * WALK_LINES;
        Some(self.walk_tables?.address() + (table + line) * LINE_BYTES)
    }

    /// Notes that a page is mapped; says whether there was room.
    pub(super) fn insert(&mut self, address: VirtAddr, size: PageSize) -> bool {
        let (line, page) = line_of(address, size);
        let table = &mut self.tables[size as usize];
        if let Some((way, place)) = table.find(line) {
            table.ways[way].places[place] |= page;
            return true;
        }
        let whole = line << PAGES | page;
        let mut moved = if table.ways.is_empty() {
            None
        } else {
            table.put(whole)
        };
        while moved.is_none() && table.is_growing() {
            // The rest goes over at once.
            self.moves += table.go_over(&mut self.released);
            moved = table.put(whole);
        }
        let Some(moved) = moved else {
            table.is_wanted = true;
            return false;
        };
        self.moves += moved + table.go_over(&mut self.released);
        true
    }

    /// Notes that a page is not mapped any more.
    pub(super) fn remove(&mut self, address: VirtAddr, size: PageSize) {
        let (line, page) = line_of(address, size);
        let table = &mut self.tables[size as usize];
        if let Some((way, place)) = table.find(line) {
            let entry = &mut table.ways[way].places[place];
            *entry &= !page;
            if *entry & ((1 << PAGES) - 1) == 0 {
                *entry = 0;
                if let [way] = &mut table.ways[..] {
                    self.moves += way.close(place);
                }
                table.ways[way].used -= 1;
                table.used -= 1;
            }
        }
    }

    /// Blocks that are not needed any more, and moves since the last call.
    pub(super) fn take_released(&mut self) -> (Vec<Frame>, u64) {
        let moves = std::mem::take(&mut self.moves);
        (std::mem::take(&mut self.released), moves)
    }

    /// Returns true if a table is full to its threshold, or missing.
    #[must_use]
    pub fn wants_to_grow(&self) -> bool {
        PageSize::ALL.iter().any(|&size| self.wants(size))
    }

    fn wants(&self, size: PageSize) -> bool {
        let table = &self.tables[size as usize];
        if self.hashing.ways == 1 {
            return table.is_wanted && table.ways.is_empty();
        }
        let limit = table.places() * u64::from(self.hashing.full) / 100;
        let is_full = table.used > limit && table.used >= table.retry && !table.ways.is_empty();
        table.is_wanted || is_full && !table.is_growing()
    }

    /// Gives memory to the tables that want it, as far as there is some.
    pub(super) fn grow(&mut self, take: &mut dyn FnMut(Order) -> Option<Frame>) -> Growth {
        let mut growth = Growth::default();
        if self.walk_tables.is_none() && self.hashing.ways > 1 {
            self.walk_tables = take(WALK_ORDER);
            growth.frames += self
                .walk_tables
                .map_or(0, |_| u64::from(WALK_ORDER.frames()));
        }
        for size in PageSize::ALL {
            if self.wants(size) {
                self.grow_table(size, take, &mut growth);
            }
        }
        growth
    }

    fn grow_table(
        &mut self,
        size: PageSize,
        take: &mut dyn FnMut(Order) -> Option<Frame>,
        growth: &mut Growth,
    ) {
        let Hashing { ways, chunk, .. } = self.hashing;
        let table = &mut self.tables[size as usize];
        table.is_wanted = false;
        let first = table.ways.is_empty();
        // Lines for which each way that grows gets memory.
        let (which, lines) = if first {
            let few = self.hashing.lines.min(FEW_LINES);
            let lines = if size == PageSize::Size4K {
                self.hashing.lines
            } else {
                few
            };
            (0..ways as usize, lines)
        } else if chunk.is_some() {
            let smallest = (0..table.ways.len()).min_by_key(|&way| table.ways[way].lines);
            let way = smallest.unwrap_or(0);
            (way..way + 1, table.ways[way].lines)
        } else {
            (0..table.ways.len(), 2 * table.ways[0].lines)
        };
        let whole = order_of(lines);
        let each = chunk.map_or(whole, |chunk| chunk.min(whole));
        let blocks = 1_usize << (whole.get() - each.get());
        growth.largest_block = growth.largest_block.max(each.bytes());
        let mut taken = Vec::new();
        for _ in 0..which.len() * blocks {
            let Some(block) = take(each) else {
                self.released.append(&mut taken);
                growth.failures += 1;
                table.retry = table.used + table.places() / RETRY + 1;
                return;
            };
            taken.push(block);
        }
        growth.frames += taken.len() as u64 * u64::from(each.frames());
        growth.tables += 1;
        for (way, blocks) in which.zip(taken.chunks(blocks)) {
            if first {
                table.ways.push(Way {
                    places: vec![0; lines as usize],
                    lines,
                    blocks: blocks.to_vec(),
                    ..Way::default()
                });
                continue;
            }
            let way = &mut table.ways[way];
            way.places.resize(2 * way.lines as usize, 0);
            way.pointer = Some(0);
            if chunk.is_some() {
                way.blocks.extend(blocks);
            } else {
                way.next = blocks.to_vec();
            }
        }
    }

    /// First frames of all blocks of the tables.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Frame> + '_ {
        let ways = self.tables.iter().flat_map(|table| &table.ways);
        let blocks = ways.flat_map(|way| way.blocks.iter().chain(&way.next));
        blocks
            .chain(&self.released)
            .chain(&self.walk_tables)
            .copied()
    }

    /// Checks that lines are where they are looked for, that they have these pages and no others, and are counted.
    pub(super) fn validate(
        &self,
        pages: impl Iterator<Item = (VirtAddr, PageSize)>,
    ) -> Result<(), String> {
        let mut expected = 0;
        for (address, size) in pages {
            let (line, page) = line_of(address, size);
            let table = &self.tables[size as usize];
            let found = table.find(line);
            let entry = found.map(|(way, place)| table.ways[way].places[place]);
            if entry.is_none_or(|entry| entry & page == 0) {
                return Err(format!("the page at {address} is in no way"));
            }
            expected += 1;
        }
        let mut found = 0;
        for way in self.tables.iter().flat_map(|table| &table.ways) {
            let lines = way.places.iter().filter(|&&line| line != 0);
            if lines.clone().count() as u64 != way.used {
                return Err(format!("{} lines of a way are counted", way.used));
            }
            found += lines
                .map(|line| u64::from((line & 0xff).count_ones()))
                .sum::<u64>();
        }
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found} pages are in lines, {expected} are mapped"))
        }
    }
}
