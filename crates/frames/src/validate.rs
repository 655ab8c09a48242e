//! Reconciling fast counters and lists with the frame table.

use core::fmt;

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order};

use crate::allocator::Frames;
use crate::block::{BLOCK_FRAMES, BlockRecord, MigrateType, block_of, blocks_of};
use crate::ordered::ORDERS;
use crate::policies::Shelters;
use crate::record::{FrameClass, Role};
use crate::storage::Storage;

/// Contradiction within a frame table, and its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistency {
    /// The contradiction.
    pub problem: &'static str,
    /// The frame.
    pub frame: Frame,
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.frame, self.problem)
    }
}

/// Statistics of the frame table, to be compared with a count.
struct Census {
    by_class: [u64; FrameClass::ALL.len()],
    listed: [[u32; ORDERS]; MigrateType::LISTED],
    region_free: [u64; 2],
    per_cpu: u64,
    grouped_blocks: u64,
}

impl<S: Storage> Frames<S> {
    /// Checks that blocks tile memory, that the lists hold exactly the free blocks, that no two
    /// free buddies stand apart that could merge, that regions hold what they may, and that all
    /// counters agree with the table.
    ///
    /// # Errors
    /// The first [`Inconsistency`] in address order.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        let mut census = Census {
            by_class: [0; FrameClass::ALL.len()],
            listed: [[0; ORDERS]; MigrateType::LISTED],
            region_free: [0; 2],
            per_cpu: 0,
            grouped_blocks: 0,
        };
        let records = self.storage.parts().frames;
        let mut open = BlockRecord::default();
        let mut at = 0;
        while let Some(record) = records.get(at) {
            let frame = Frame::new(at as u32);
            let order = record.order();
            self.check_block(frame, &mut census)?;
            // The pageblock's counts.
            for number in blocks_of(frame, order) {
                let frames = order.frames().min(BLOCK_FRAMES) as u16;
                if let Some(count) = open.count(record.kind()) {
                    *count += frames;
                }
                if record.role() == Role::Allocated && record.is_in_use_movable() {
                    open.in_use += frames;
                }
                let end = frame.offset(order.frames());
                let block_end = (number as u32 + 1) * BLOCK_FRAMES;
                if end.get() >= block_end.min(self.total) {
                    let counted = self.pageblocks()[number];
                    let same = (
                        counted.free,
                        counted.movable,
                        counted.unmovable,
                        counted.in_use,
                    ) == (open.free, open.movable, open.unmovable, open.in_use);
                    if !same {
                        let problem = "a pageblock's counts differ from the table";
                        return Err(Inconsistency { problem, frame });
                    }
                    open = BlockRecord::default();
                }
            }
            at += order.frames() as usize;
        }
        self.check_counters(&census)
    }

    fn check_block(&self, frame: Frame, census: &mut Census) -> Result<(), Inconsistency> {
        let records = self.storage.parts().frames;
        let record = records[frame.index()];
        let order = record.order();
        let wrong = |problem| Err(Inconsistency { problem, frame });
        if !frame.is_aligned(order) {
            return wrong("a block is not aligned to its size");
        }
        let kind = self.kind_of(frame);
        census.by_class[record.class() as usize] += u64::from(order.frames());
        match record.role() {
            Role::Inside => return wrong("a frame belongs to no block"),
            Role::Allocated if record.references() == 0 => {
                return wrong("an allocated block has no user");
            }
            Role::Allocated => census.grouped_blocks += u64::from(record.group().is_some()),
            Role::PerCpu => census.per_cpu += 1,
            Role::Free => {
                if self.has_free_buddy(frame, order) {
                    return wrong("two free buddies were not merged");
                }
                if let Some(list) = census.listed.get_mut(kind as usize) {
                    list[order.get() as usize] += 1;
                    census.region_free[self.region_of(frame)] += u64::from(order.frames());
                    if !self
                        .lists
                        .is_indexed(self.storage.parts().words, frame, order)
                    {
                        return wrong("a free block is not in the index");
                    }
                }
            }
        }
        for i in 1..order.frames() {
            let inside = records.get(frame.offset(i).index());
            if inside.is_none_or(|r| r.role() != Role::Inside || r.order() != Order::BASE) {
                return wrong("a block overlaps another one or the end of memory");
            }
        }
        if blocks_of(frame, order).any(|n| self.pageblocks()[n].kind != kind)
            && record.role() == Role::Free
        {
            return wrong("a free block lies in pageblocks of different types");
        }
        self.check_region(frame)
    }

    /// No unmovable block lies above the border, no movable one but single sheltered frames below
    /// it, and pageblocks are of their region's type.
    fn check_region(&self, frame: Frame) -> Result<(), Inconsistency> {
        let Some(confinement) = &self.confinement else {
            return Ok(());
        };
        let record = self.storage.parts().frames[frame.index()];
        let above = frame >= self.border;
        let expected = if above {
            MigrateType::Movable
        } else {
            MigrateType::Unmovable
        };
        let kind = self.kind_of(frame);
        let is_cleared = kind == MigrateType::Isolate && self.is_clearing();
        let problem = if kind != expected && !is_cleared {
            "a pageblock is of the other region's type"
        } else if above && record.kind() == FrameKind::Unmovable {
            "an unmovable block lies in the movable region"
        } else if !above
            && record.kind() == FrameKind::Movable
            && (record.order() > Order::BASE || confinement.shelters == Shelters::Never)
        {
            "a movable block lies in the unmovable region"
        } else if self.region_of(frame.offset(record.order().frames() - 1)) != self.region_of(frame)
        {
            "a block lies across the border"
        } else {
            return Ok(());
        };
        Err(Inconsistency { problem, frame })
    }

    fn has_free_buddy(&self, frame: Frame, order: Order) -> bool {
        let buddy = Frame::new(frame.get() ^ order.frames());
        let record = self.record(buddy);
        order < Order::BUDDY_MAX
            && record.is_ok_and(|b| b.role() == Role::Free && b.order() == order)
            && (block_of(frame) == block_of(buddy) || self.kind_of(frame) == self.kind_of(buddy))
    }

    fn check_counters(&self, census: &Census) -> Result<(), Inconsistency> {
        let wrong = |problem| {
            Err(Inconsistency {
                problem,
                frame: Frame::new(0),
            })
        };
        for class in FrameClass::ALL {
            if census.by_class[class as usize] != self.frames_of(class) {
                return wrong("a counter of frames in use differs from the table");
            }
        }
        if !self.lists.is_sound(self.storage.parts(), &census.listed) {
            return wrong("a free list differs from the table");
        }
        if census.region_free != [self.regions[0].free, self.regions[1].free] {
            return wrong("a region's free frames differ from the table");
        }
        let parts = self.storage.parts();
        let mut at_hand = 0;
        for list in parts.cpus.iter().flat_map(|cpu| &cpu.lists) {
            if !list.is_sound(parts.frames, |record| record.role() == Role::PerCpu) {
                return wrong("a per-CPU list differs from the table");
            }
            at_hand += u64::from(list.length);
        }
        if at_hand != census.per_cpu {
            return wrong("a frame at hand is on no CPU's list");
        }
        let mut grouped = 0;
        for (number, group) in parts.groups.iter().enumerate() {
            let mut frames = 0;
            let mut at = group.chain.newest;
            while let Some(record) = at.map(|frame| parts.frames[frame.index()]) {
                frames += record.order().frames();
                at = record.next();
                if frames > group.frames {
                    break;
                }
            }
            let belongs = |record: &crate::FrameRecord| {
                record
                    .group()
                    .is_some_and(|group| usize::from(group.0) == number)
            };
            if frames != group.frames || !group.chain.is_sound(parts.frames, belongs) {
                return wrong("a group differs from the table");
            }
            grouped += u64::from(group.chain.length);
        }
        if grouped != census.grouped_blocks {
            return wrong("a grouped block is in no group");
        }
        Ok(())
    }
}
