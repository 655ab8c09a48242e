//! Restrictive segments (`RestSegs`) of Utopia (Kanellopoulos and others, MICRO 2023): contiguous memory as a
//! set-associative cache of pages. A page's number names a set; a tag array (TAR) says which page lies in which way,
//! and a set filter (SF) how many pages a set has. So a page there is found without a page table.
//!
//! A set is the page's number modulo the number of sets, and frame number `set * ways + way` of the segment has a page, as
//! in the authors' simulator (`common/system/utopia.cc` in CMU-SAFARI/Virtuoso). A first touch takes a free way, and
//! evicts nothing; a page that moves into a full set evicts by SRRIP (Jaleel and others, ISCA 2010), with two bits: their
//! allocator (`physical_memory_allocators/utopia.h`) and configuration.
//!
//! Simplified: the page table keeps the entries of such pages, too, for the kernel's own use. Spaces begin at different
//! sets, and pages look for a free way from one on that a hash says, so that pages use all sets of the caches. A page of
//! 2 MB that is split takes its way away from the segment.

use contigua_state::Plain;
use contigua_units::{Frame, LINE_BYTES, PageSize, PhysAddr, VirtAddr};

use crate::space_id::SpaceId;

/// Ways of a set at most: their tags are one line.
pub const MAX_WAYS: u32 = (LINE_BYTES / RestSeg::TAG_BYTES) as u32;
/// Tag of a way that has no page.
const NONE: u64 = u64::MAX;
/// Predicted interval of a page that is entered, and the longest one: two bits (SRRIP).
const ENTERED: u8 = 2;
const DISTANT: u8 = 3;

/// A segment that a design asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestSegPlan {
    /// Pages that it holds: 4 KB or 2 MB.
    pub size: PageSize,
    /// Bytes, those of its TAR and SF included.
    pub bytes: u64,
    /// Pages of a set, at most [`MAX_WAYS`].
    pub ways: u32,
    /// It is taken when the server boots, else when a program begins.
    pub from_boot: bool,
}

/// Frame of the segment that can hold a page, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
struct Way {
    /// Page and space, as the TAR has them.
    tag: u64,
    /// Predicted interval until the next use.
    interval: u8,
    /// Somebody has the frame. Such a frame without a tag is translated by page tables.
    used: bool,
}

/// A restrictive segment.
#[derive(Clone, Debug, PartialEq, Eq, Plain)]
pub struct RestSeg {
    size: PageSize,
    bytes: u64,
    /// First frame of the first set.
    base: Frame,
    sets: u32,
    ways: u32,
    /// The TAR.
    tags: Vec<Way>,
    /// Ways whose frames somebody has.
    used: u64,
    /// The SF.
    filter: Vec<u8>,
    tar: PhysAddr,
    sf: PhysAddr,
}

/// Where a page can be put into a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A way is free.
    Free,
    /// This page must leave first.
    Behind(SpaceId, VirtAddr),
    /// There is no segment, or nothing in the set may leave.
    None,
}

/// Page number and space in one.
fn tag_of(space: SpaceId, number: u64) -> u64 {
    number | u64::from(space.0) << 45
}

impl RestSeg {
    /// Bytes of an entry of the TAR: 4, with permissions and the space (the authors' simulator).
    pub(crate) const TAG_BYTES: u64 = 4;

    /// An empty segment from a frame on, with its TAR and SF behind its pages.
    pub(crate) fn new(plan: &RestSegPlan, bytes: u64, base: Frame, sets: u32) -> Self {
        let ways = u64::from(sets) * u64::from(plan.ways);
        let tar = base.address() + ways * plan.size.bytes();
        let none = Way {
            tag: NONE,
            interval: DISTANT,
            used: false,
        };
        Self {
            size: plan.size,
            bytes,
            base,
            sets,
            ways: plan.ways,
            tags: vec![none; ways as usize],
            used: 0,
            filter: vec![0; sets as usize],
            tar,
            sf: tar + ways * Self::TAG_BYTES,
        }
    }

    /// Size of its pages.
    #[must_use]
    pub const fn size(&self) -> PageSize {
        self.size
    }

    /// Its memory, tables included.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pages that it can hold.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.sets as u64 * self.ways as u64
    }

    /// Bytes of its free pages.
    #[must_use]
    pub const fn unused(&self) -> u64 {
        (self.capacity() - self.used) * self.size.bytes()
    }

    /// Set of a page.
    fn set_of(&self, space: SpaceId, address: VirtAddr) -> usize {
        /// Ours: distance of the first sets of two spaces, a prime.
        const APART: u64 = 7919;
        let number = (address.get() >> self.size.shift()) + u64::from(space.0) * APART;
        (number % u64::from(self.sets)) as usize
    }

    fn ways_of(&self, set: usize) -> core::ops::Range<usize> {
        let ways = self.ways as usize;
        set * ways..(set + 1) * ways
    }

    fn frame_of(&self, way: usize) -> Frame {
        self.base.offset(way as u32 * self.size.frames())
    }

    /// Number of the way whose first frame this is.
    fn way_at(&self, frame: Frame) -> Option<usize> {
        let behind = frame.get().checked_sub(self.base.get())?;
        let way = (behind / self.size.frames()) as usize;
        (behind.is_multiple_of(self.size.frames()) && way < self.tags.len()).then_some(way)
    }

    /// Address of the SF's entry for a page: enough bits to count the ways, packed.
    #[must_use]
    pub fn filter_address(&self, space: SpaceId, address: VirtAddr) -> PhysAddr {
        let bits = u64::from(self.ways.ilog2()) + 1;
        self.sf + self.set_of(space, address) as u64 * bits / 8
    }

    /// Address of the TAR's entries for a page: those of a set, in one line.
    #[must_use]
    pub fn tags_address(&self, space: SpaceId, address: VirtAddr) -> PhysAddr {
        let tags = self.set_of(space, address) as u64 * u64::from(self.ways);
        self.tar + tags * Self::TAG_BYTES
    }

    /// Pages in a page's set, as the SF counts them.
    #[must_use]
    pub fn pages_in_set(&self, space: SpaceId, address: VirtAddr) -> u8 {
        self.filter[self.set_of(space, address)]
    }

    /// Frame of a page, as the TAR says. The page was used then.
    pub fn find(&mut self, space: SpaceId, address: VirtAddr) -> Option<Frame> {
        let way = self.way_of(space, address)?;
        self.tags[way].interval = 0;
        Some(self.frame_of(way))
    }

    fn way_of(&self, space: SpaceId, address: VirtAddr) -> Option<usize> {
        let tag = tag_of(space, address.get() >> self.size.shift());
        let mut ways = self.ways_of(self.set_of(space, address));
        ways.find(|&way| self.tags[way].tag == tag)
    }

    /// A free way of a page's set that `fits`.
    pub(crate) fn free_way(
        &self,
        space: SpaceId,
        address: VirtAddr,
        fits: impl Fn(Frame) -> bool,
    ) -> Option<usize> {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let number = address.get() >> self.size.shift();
        let from = (number.wrapping_mul(SPREAD) >> 32) as usize;
        let ways = self.ways_of(self.set_of(space, address));
        (0..ways.len())
            .map(|at| ways.start + (from + at) % ways.len())
            .find(|&way| !self.tags[way].used && fits(self.frame_of(way)))
    }

    /// Enters a page in the TAR, if this is a frame of its set that no page is entered for.
    pub(crate) fn enter(&mut self, space: SpaceId, address: VirtAddr, frame: Frame) {
        let set = self.set_of(space, address);
        let Some(way) = self.way_at(frame) else {
            return;
        };
        if self.ways_of(set).contains(&way) && self.tags[way].tag == NONE {
            let tag = tag_of(space, address.get() >> self.size.shift());
            self.tags[way] = Way {
                tag,
                interval: ENTERED,
                used: true,
            };
            self.filter[set] += 1;
        }
    }

    /// Takes a way's frame.
    pub(crate) fn take(&mut self, way: usize) -> Frame {
        self.tags[way].used = true;
        self.used += 1;
        self.frame_of(way)
    }

    /// Takes a frame back that was taken; says whether it was.
    pub(crate) fn give_back(&mut self, frame: Frame) -> bool {
        let Some(way) = self.way_at(frame).filter(|&way| self.tags[way].used) else {
            return false;
        };
        self.clear(way);
        self.tags[way].used = false;
        self.used -= 1;
        true
    }

    /// Removes a page from the TAR that has this frame.
    pub(crate) fn leave(&mut self, space: SpaceId, address: VirtAddr, frame: Frame) {
        if let Some(way) = self.way_of(space, address)
            && self.frame_of(way) == frame
        {
            self.clear(way);
        }
    }

    /// Returns true if a frame is one of its pages', or lies in one.
    pub(crate) fn contains(&self, frame: Frame) -> bool {
        let frames = self.capacity() * u64::from(self.size.frames());
        let behind = frame.get().checked_sub(self.base.get());
        behind.is_some_and(|behind| u64::from(behind) < frames)
    }

    /// Removes what the TAR has for a way.
    fn clear(&mut self, way: usize) {
        if std::mem::replace(&mut self.tags[way].tag, NONE) != NONE {
            self.filter[way / self.ways as usize] -= 1;
        }
    }

    /// The page that leaves a full set: one of those that are used last.
    pub(crate) fn victim(
        &mut self,
        space: SpaceId,
        address: VirtAddr,
    ) -> Option<(SpaceId, VirtAddr)> {
        let ways = self.ways_of(self.set_of(space, address));
        let entered = self.tags[ways].iter_mut().filter(|way| way.tag != NONE);
        let mut entered: Vec<_> = entered.collect();
        let most = entered.iter().map(|way| way.interval).max()?;
        for way in &mut entered {
            way.interval += DISTANT - most;
        }
        let way = entered.iter().find(|way| way.interval == DISTANT)?;
        let number = way.tag & ((1 << 45) - 1);
        let address = VirtAddr::new(number << self.size.shift());
        Some((SpaceId((way.tag >> 45) as u16), address))
    }

    /// Checks that the SF counts the TAR's pages, each in its own set.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        let used = self.tags.iter().filter(|way| way.used).count();
        if used as u64 != self.used {
            return Err(format!("{} ways are counted and {used} used", self.used));
        }
        for set in 0..self.sets as usize {
            let ways = &self.tags[self.ways_of(set)];
            let pages = ways.iter().filter(|way| way.tag != NONE);
            if pages.clone().count() != usize::from(self.filter[set]) {
                return Err(format!("the filter of set {set} miscounts"));
            }
            for way in pages {
                let address = VirtAddr::new((way.tag & ((1 << 45) - 1)) << self.size.shift());
                if self.set_of(SpaceId((way.tag >> 45) as u16), address) != set || !way.used {
                    return Err(format!("set {set} has the page at {address}"));
                }
            }
        }
        Ok(())
    }

    /// Pages in the TAR: space, address, frame.
    pub fn pages(&self) -> impl Iterator<Item = (SpaceId, VirtAddr, Frame)> {
        let ways = self.tags.iter().enumerate();
        ways.filter(|(_, way)| way.tag != NONE)
            .map(|(number, way)| {
                let address = VirtAddr::new((way.tag & ((1 << 45) - 1)) << self.size.shift());
                let space = SpaceId((way.tag >> 45) as u16);
                (space, address, self.frame_of(number))
            })
    }
}

/// The segments of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Plain)]
pub struct RestSegs {
    /// Smaller pages first.
    pub segments: Vec<RestSeg>,
}

impl RestSegs {
    pub(crate) fn of(&mut self, size: PageSize) -> Option<&mut RestSeg> {
        self.segments.iter_mut().find(|seg| seg.size == size)
    }
}
