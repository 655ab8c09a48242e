//! Physical memory as address spaces see it: frames, hole bitmaps, and huge pages set aside.

use std::collections::{BTreeMap, HashSet};
use std::ops::{Deref, DerefMut};

use contigua_frames::{Boxed, FrameClass, Frames, MigrateType, Move, Moves, Pick, Request};
use contigua_units::{Frame, Order, PageSize};

use crate::effects::{Effects, Resident};
use crate::holes::{HoleBitmaps, SUB_PAGES};
use crate::objects::Objects;
use crate::policy::MappingPolicy;
use crate::rest_segs::RestSegs;
use crate::table::Leaf;

/// The frames of a simulated machine, with what lies beside them.
#[derive(Clone, contigua_state::State)]
pub struct Memory {
    pub(crate) frames: Frames<Boxed>,
    /// Holes of perforated pages, for each 2 MB.
    pub holes: HoleBitmaps,
    pool: Pool,
    sharing: Sharing,
    zeros: Zeros,
    /// Free frames that were zeroed before anybody asked for them.
    zeroed: u64,
    pub(crate) objects: Objects,
    /// Restrictive segments.
    pub rest_segs: RestSegs,
    /// A request that fails now ends the program.
    #[state(skip)]
    is_last_try: bool,
}

/// Frames that hold zeros, as far as somebody has read them.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Zeros {
    small: Option<Frame>,
    huge: Option<Frame>,
}

/// Frames that several address spaces map.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
struct Sharing {
    /// Frames, once for each space beyond the first that maps them.
    frames: u64,
    /// Huge pages, once for each space beyond the first that maps them as such.
    pages_2m: u64,
    pages_1g: u64,
    /// These spaces, by page ([`page_key`]).
    others: BTreeMap<u64, u64>,
}

impl Sharing {
    fn pages(&mut self, size: PageSize) -> &mut u64 {
        match size {
            PageSize::Size1G => &mut self.pages_1g,
            _ => &mut self.pages_2m,
        }
    }
}

/// Key of a huge page: the first frame of 1 GB is one of 2 MB, too.
fn page_key(frame: Frame, size: PageSize) -> u64 {
    u64::from(frame.get()) << 8 | u64::from(size.order().get())
}

/// Huge pages that were set aside at boot (Linux's `hugetlbfs` pool). They go back to it when their
/// mapping ends.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
struct Pool {
    pages_2m: Vec<Frame>,
    pages_1g: Vec<Frame>,
    /// Every page of the pool, in use or not.
    members: HashSet<Frame>,
}

impl Pool {
    fn of(&mut self, size: PageSize) -> Option<&mut Vec<Frame>> {
        match size {
            PageSize::Size4K => None,
            PageSize::Size2M => Some(&mut self.pages_2m),
            PageSize::Size1G => Some(&mut self.pages_1g),
        }
    }
}

impl Memory {
    /// Sets whether a request that fails from now on ends the program ([`Request::last_resort`]).
    pub fn set_last_try(&mut self, is_last_try: bool) {
        self.is_last_try = is_last_try;
    }

    pub(crate) fn is_last_try(&self) -> bool {
        self.is_last_try
    }

    /// Sets huge pages of a size aside; how many there was room for. Pages of 1 GB are made by
    /// emptying ranges, which moves what is in them.
    pub fn reserve_huge(&mut self, size: PageSize, pages: u64, moves: &mut dyn Moves) -> u64 {
        let class = FrameClass::Anonymous;
        for made in 0..pages {
            let frame = match size {
                PageSize::Size4K => None,
                PageSize::Size2M => self.frames.allocate(&Request::new(Order::HUGE_2M, class)),
                PageSize::Size1G => self.frames.allocate_contiguous(size.order(), class, moves),
            };
            let (Some(frame), Some(pool)) = (frame, self.pool.of(size)) else {
                return made;
            };
            pool.push(frame);
            self.pool.members.insert(frame);
        }
        pages
    }

    /// A block of any order, for which pages move. Where the page allocator cannot make one, an aligned range in
    /// which nothing is unmovable is emptied (Linux's `alloc_contig_pages`).
    pub fn take_block(
        &mut self,
        order: Order,
        class: FrameClass,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        if order <= Order::BUDDY_MAX {
            let request = Request::new(order, class);
            if let Some(block) = self.frames.allocate_or_reclaim(&request, moves) {
                return Some(block);
            }
        }
        let range = order.max(Order::HUGE_2M);
        let block = self.frames.allocate_contiguous(range, class, moves)?;
        if range > order {
            self.frames.split_to(block, order).ok()?;
            for at in (order.frames()..range.frames()).step_by(order.frames() as usize) {
                self.frames.free(block.offset(at)).ok()?;
            }
        }
        Some(block)
    }

    /// Frames in a row, for which pages move as for [`Memory::take_block`]; each is a block of its own. What a block
    /// of the next power of two has beyond them is freed.
    pub fn take_run(
        &mut self,
        frames: u64,
        class: FrameClass,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        let frames = u32::try_from(frames).ok()?;
        let whole = frames.checked_next_power_of_two()?;
        if u64::from(whole) > self.frames.total() {
            return None;
        }
        let order = Order::new(whole.ilog2() as u8);
        let block = self.take_block(order, class, moves)?;
        self.frames.split_to(block, Order::BASE).ok()?;
        for at in frames..order.frames() {
            self.frames.free(block.offset(at)).ok()?;
        }
        Some(block)
    }

    /// Returns true if a page of 2 MB can be made without moving anything: of a whole block, or where the policy
    /// perforates, of one without the frames that are in use.
    #[must_use]
    pub fn has_huge_block(&self, policy: &dyn MappingPolicy) -> bool {
        self.frames.has_free_block(Order::HUGE_2M)
            || policy.most_missing() > 0
                && self
                    .emptiest_pageblock()
                    .is_some_and(|(_, free)| free + policy.most_missing() >= SUB_PAGES)
    }

    /// Number and free frames of the movable pageblock that has most of them.
    pub(crate) fn emptiest_pageblock(&self) -> Option<(usize, u32)> {
        let blocks = self.frames.pageblocks().iter().enumerate();
        blocks
            .filter(|(_, block)| block.kind() == MigrateType::Movable)
            .map(|(number, block)| (number, block.free()))
            .max_by_key(|&(number, free)| (free, core::cmp::Reverse(number)))
    }

    /// An aligned 1 GB in which nothing is unmovable. At most `most` frames are moved out of it.
    pub fn take_giant(&mut self, pick: Pick, most: u32, moves: &mut dyn Moves) -> Option<Frame> {
        let order = PageSize::Size1G.order();
        self.frames
            .allocate_emptied(order, FrameClass::Anonymous, pick, most, moves)
    }

    /// A huge page from those set aside.
    pub(crate) fn take_reserved(&mut self, size: PageSize) -> Option<Frame> {
        self.pool.of(size)?.pop()
    }

    /// Gives a whole huge page back: to the pool when it came from there.
    pub(crate) fn return_reserved(&mut self, frame: Frame, size: PageSize) -> bool {
        if !self.pool.members.contains(&frame) || self.frames.references(frame) != 1 {
            return false;
        }
        let Some(pool) = self.pool.of(size) else {
            return false;
        };
        pool.push(frame);
        // Whoever compacts memory must not take it for the page that it was.
        let _ = self.frames.set_owner(frame, None);
        true
    }

    /// A page is split, so that it cannot go back to the pool whole.
    pub(crate) fn forget_reserved(&mut self, frame: Frame) {
        self.pool.members.remove(&frame);
    }

    /// A page of the pool that moves stays one.
    pub fn follow_reserved(&mut self, moved: &Move) {
        if self.pool.members.remove(&moved.from) {
            self.pool.members.insert(moved.to);
        }
    }

    /// Adds a space to those that map a block; says whether there was room for it.
    #[must_use]
    pub(crate) fn share(&mut self, frame: Frame) -> bool {
        let frames = self.frames.order(frame).map_or(0, Order::frames);
        let shared = self.frames.add_reference(frame).is_ok();
        self.sharing.frames += if shared { u64::from(frames) } else { 0 };
        shared
    }

    /// Takes a space from those that map a block, and frees it with the last one.
    ///
    /// # Errors
    /// When the block is not in use.
    pub(crate) fn unshare(&mut self, frame: Frame) -> Result<(), contigua_frames::Error> {
        if !self.rest_segs.segments.is_empty()
            && self.frames.references(frame) == 1
            && self.return_way(frame)
        {
            return Ok(());
        }
        let frames = self.frames.order(frame).map_or(0, Order::frames);
        if !self.frames.drop_reference(frame)? {
            self.sharing.frames -= u64::from(frames);
        }
        Ok(())
    }

    /// Another space maps a huge page as such.
    pub(crate) fn share_huge(&mut self, frame: Frame, size: PageSize) {
        if size > PageSize::Size4K {
            *self.sharing.pages(size) += 1;
            *self
                .sharing
                .others
                .entry(page_key(frame, size))
                .or_default() += 1;
        }
    }

    /// A space maps a huge page as such no longer.
    pub(crate) fn unshare_huge(&mut self, frame: Frame, size: PageSize) {
        if self.sharing.others.is_empty() || size == PageSize::Size4K {
            return;
        }
        let key = page_key(frame, size);
        if let Some(others) = self.sharing.others.get_mut(&key) {
            *others -= 1;
            if *others == 0 {
                self.sharing.others.remove(&key);
            }
            *self.sharing.pages(size) -= 1;
        }
    }

    /// Memory of all spaces and shared objects, each frame once: `sum` holds the memory of each
    /// space. A frame is part of a huge page if one space maps it so, as Linux's `AnonHugePages` of
    /// `/proc/meminfo` counts. Among perforated and small pages, those shared count as small.
    #[must_use]
    pub fn counted_once(&self, sum: &Resident) -> Resident {
        let sharing = &self.sharing;
        let mut rest = sharing.frames;
        let mut once = *sum;
        once.replace(&Resident::default(), &self.objects.resident);
        let mut take = |count: &mut u64, most: u64, size: PageSize| {
            let pages = most.min(*count).min(rest / u64::from(size.frames()));
            *count -= pages;
            rest -= pages * u64::from(size.frames());
        };
        take(&mut once.pages_1g, sharing.pages_1g, PageSize::Size1G);
        take(&mut once.pages_2m, sharing.pages_2m, PageSize::Size2M);
        take(&mut once.pages_4k, u64::MAX, PageSize::Size4K);
        take(&mut once.perforated_frames, u64::MAX, PageSize::Size4K);
        take(&mut once.pages_2m, u64::MAX, PageSize::Size2M);
        once
    }

    /// The zero page. `None` when no frame is free for it.
    pub(crate) fn zero_page(&mut self) -> Option<Frame> {
        if self.zeros.small.is_none() {
            let request = Request::new(Order::BASE, FrameClass::KernelOther);
            self.zeros.small = self.allocate_or_reclaim(&request, &mut ());
        }
        self.zeros.small
    }

    /// The huge zero page, which is zeroed when it is made. `None` when no block is free for it.
    pub(crate) fn huge_zero_page(&mut self, effects: &mut Effects) -> Option<Frame> {
        if self.zeros.huge.is_none() {
            let request = Request::new(Order::HUGE_2M, FrameClass::KernelOther);
            let frame = self.allocate(&request)?;
            self.zeros.huge = Some(frame);
            effects.zeroed_2m += 1;
            effects.write(frame, Order::HUGE_2M.frames(), 0);
        }
        self.zeros.huge
    }

    /// Returns true if a page is the zero page or the huge one.
    #[must_use]
    pub fn is_zero(&self, leaf: Leaf) -> bool {
        let Zeros { small, huge } = self.zeros;
        let frame = Some(leaf.frame);
        frame == small || frame == huge
    }

    /// Frames of the zero page and the huge one.
    #[must_use]
    pub fn zero_frames(&self) -> u64 {
        let Zeros { small, huge } = self.zeros;
        u64::from(small.is_some()) + huge.map_or(0, |_| u64::from(Order::HUGE_2M.frames()))
    }

    /// Zeroes so many more free frames, as far as there are any, for later faults (HawkEye's asynchronous pre-zeroing).
    /// Which ones is not known: those that need no zeros are taken from the others first.
    pub fn zero_ahead(&mut self, frames: u64) {
        self.zeroed = (self.zeroed + frames).min(self.frames.free_frames());
    }

    /// Takes the zeros of frames that were just allocated, if free memory had as many.
    pub(crate) fn take_zeroed(&mut self, frames: u32) -> bool {
        let frames = u64::from(frames);
        let zeroed = self.zeroed.min(self.frames.free_frames() + frames);
        let is_zeroed = zeroed >= frames && frames > 0;
        self.zeroed = if is_zeroed { zeroed - frames } else { zeroed };
        is_zeroed
    }

    /// Huge pages that are set aside and not in use.
    #[must_use]
    pub fn reserved_huge(&self, size: PageSize) -> u64 {
        match size {
            PageSize::Size4K => 0,
            PageSize::Size2M => self.pool.pages_2m.len() as u64,
            PageSize::Size1G => self.pool.pages_1g.len() as u64,
        }
    }
}

impl From<Frames<Boxed>> for Memory {
    fn from(frames: Frames<Boxed>) -> Self {
        Self {
            holes: HoleBitmaps::new(frames.total()),
            pool: Pool::default(),
            sharing: Sharing::default(),
            zeros: Zeros::default(),
            zeroed: 0,
            is_last_try: false,
            objects: Objects::default(),
            rest_segs: RestSegs::default(),
            frames,
        }
    }
}

impl Deref for Memory {
    type Target = Frames<Boxed>;

    fn deref(&self) -> &Self::Target {
        &self.frames
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.frames
    }
}
