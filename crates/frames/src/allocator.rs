//! The buddy allocator.
//!
//! Blocks of orders 0 to 10, as in Linux: the smallest block that fits is split, most recently
//! freed first, and a freed block merges with its free buddy as far as that goes.

use core::fmt;

use contigua_contiguity::{Contiguity, Scan};
use contigua_units::{Frame, Order};

use crate::Error;
use crate::lists::FreeLists;
use crate::record::{FrameClass, FrameRecord, Owner, Role};

/// All frames of a machine, with their records in a buffer `B` of the caller's.
#[derive(Clone, Debug)]
pub struct Frames<B> {
    records: B,
    lists: FreeLists,
    free: u64,
    by_class: [u64; FrameClass::ALL.len()],
}

/// How a frame table contradicts itself, and at which frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistency {
    /// What is wrong.
    pub problem: &'static str,
    /// Where.
    pub frame: Frame,
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.frame, self.problem)
    }
}

impl<B: AsRef<[FrameRecord]> + AsMut<[FrameRecord]>> Frames<B> {
    /// A machine with one frame for each record of the buffer, all of them free.
    ///
    /// # Errors
    /// [`Error::Size`] when the buffer is empty or has more records than frame numbers can name.
    pub fn new(mut buffer: B) -> Result<Self, Error> {
        let records = buffer.as_mut();
        let Some(total) = u32::try_from(records.len())
            .ok()
            .filter(|&n| n > 0 && n < u32::MAX)
        else {
            return Err(Error::Size(records.len()));
        };
        records.fill(FrameRecord::default());
        let mut lists = FreeLists::new();
        // From the end, so that the lists begin with the lowest addresses.
        let mut end = total;
        while end > 0 {
            let alignment = end.trailing_zeros().min(u32::from(Order::BUDDY_MAX.get()));
            let order = Order::new(alignment as u8);
            end -= order.frames();
            lists.push(records, Frame::new(end), order);
        }
        Ok(Self {
            records: buffer,
            lists,
            free: u64::from(total),
            by_class: [0; FrameClass::ALL.len()],
        })
    }

    fn record(&self, frame: Frame) -> Result<FrameRecord, Error> {
        let records = self.records.as_ref();
        records
            .get(frame.index())
            .copied()
            .ok_or(Error::NoSuchFrame(frame))
    }

    fn allocated(&mut self, frame: Frame) -> Result<&mut FrameRecord, Error> {
        let records = self.records.as_mut();
        let record = records
            .get_mut(frame.index())
            .ok_or(Error::NoSuchFrame(frame))?;
        if record.role() == Role::Allocated {
            Ok(record)
        } else {
            Err(Error::NotAllocated(frame))
        }
    }

    fn count(&mut self, class: FrameClass, order: Order) {
        self.free -= u64::from(order.frames());
        self.by_class[class as usize] += u64::from(order.frames());
    }

    /// Takes a block of `order`, at most 10, for one user. `None` when there is no such block.
    #[inline]
    pub fn allocate(&mut self, order: Order, class: FrameClass) -> Option<Frame> {
        let records = self.records.as_mut();
        let mut have = self.lists.smallest_from(order)?;
        let frame = self.lists.head(have)?;
        self.lists.remove(records, frame);
        while have > order {
            have = Order::new(have.get() - 1);
            self.lists.push(records, frame.offset(have.frames()), have);
        }
        records[frame.index()] = FrameRecord::allocated(order, class);
        self.count(class, order);
        Some(frame)
    }

    /// Takes this very frame.
    ///
    /// # Errors
    /// [`Error::NoSuchFrame`], or [`Error::InUse`] when it is not free.
    pub fn allocate_at(&mut self, frame: Frame, class: FrameClass) -> Result<(), Error> {
        self.record(frame)?;
        let (mut head, mut order) = self.free_block_around(frame).ok_or(Error::InUse(frame))?;
        let records = self.records.as_mut();
        self.lists.remove(records, head);
        while order > Order::BASE {
            order = Order::new(order.get() - 1);
            let upper = head.offset(order.frames());
            let (keep, give) = if frame >= upper {
                (upper, head)
            } else {
                (head, upper)
            };
            records[keep.index()] = FrameRecord::default();
            self.lists.push(records, give, order);
            head = keep;
        }
        records[frame.index()] = FrameRecord::allocated(Order::BASE, class);
        self.count(class, Order::BASE);
        Ok(())
    }

    /// The free block that a frame lies in.
    fn free_block_around(&self, frame: Frame) -> Option<(Frame, Order)> {
        (0..=Order::BUDDY_MAX.get())
            .map(Order::new)
            .find_map(|order| {
                let head = frame.align_down(order);
                let record = self.record(head).ok()?;
                let covers = record.role() == Role::Free && record.order() >= order;
                (covers && frame.get() - head.get() < record.order().frames())
                    .then_some((head, record.order()))
            })
    }

    /// Gives a block back that has one user.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] when the frame is not the first of an allocated block, which
    /// includes one that was freed before; [`Error::Shared`] when it has several users.
    pub fn free(&mut self, frame: Frame) -> Result<(), Error> {
        let record = *self.allocated(frame)?;
        if record.references() > 1 {
            return Err(Error::Shared(frame));
        }
        let mut order = record.order();
        self.free += u64::from(order.frames());
        self.by_class[record.class() as usize] -= u64::from(order.frames());
        let records = self.records.as_mut();
        let mut head = frame;
        records[head.index()] = FrameRecord::default();
        while order < Order::BUDDY_MAX {
            let buddy = Frame::new(head.get() ^ order.frames());
            let merges = records
                .get(buddy.index())
                .is_some_and(|b| b.role() == Role::Free && b.order() == order);
            if !merges {
                break;
            }
            self.lists.remove(records, buddy);
            records[buddy.index()] = FrameRecord::default();
            head = head.min(buddy);
            order = Order::new(order.get() + 1);
        }
        self.lists.push(records, head, order);
        Ok(())
    }

    /// Turns an allocated block into single frames, each with the block's class and number of
    /// users, and consecutive pages of its owner.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn split(&mut self, frame: Frame) -> Result<(), Error> {
        let block = *self.allocated(frame)?;
        let records = self.records.as_mut();
        for i in 0..block.order().frames() {
            let record = &mut records[frame.offset(i).index()];
            *record = FrameRecord::allocated(Order::BASE, block.class());
            record.set_references(block.references());
            record.set_owner(block.owner().map(|owner| Owner {
                page: contigua_units::VirtPage::new(owner.page.get() + u64::from(i)),
                ..owner
            }));
        }
        Ok(())
    }

    /// Adds a user to a block.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn add_reference(&mut self, frame: Frame) -> Result<(), Error> {
        let record = self.allocated(frame)?;
        record.set_references(record.references() + 1);
        Ok(())
    }

    /// Takes a user from a block and frees it with the last one; says whether it did.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn drop_reference(&mut self, frame: Frame) -> Result<bool, Error> {
        let record = self.allocated(frame)?;
        if record.references() > 1 {
            record.set_references(record.references() - 1);
            return Ok(false);
        }
        self.free(frame)?;
        Ok(true)
    }

    /// Users of a block; 0 when the frame is not the first of an allocated one.
    #[must_use]
    pub fn references(&self, frame: Frame) -> u32 {
        let record = self.record(frame).ok();
        record
            .filter(|r| r.role() == Role::Allocated)
            .map_or(0, |r| r.references())
    }

    /// Notes which page a block backs.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn set_owner(&mut self, frame: Frame, owner: Option<Owner>) -> Result<(), Error> {
        self.allocated(frame)?.set_owner(owner);
        Ok(())
    }

    /// Which page a block backs, if that was noted.
    #[must_use]
    pub fn owner(&self, frame: Frame) -> Option<Owner> {
        let record = self.record(frame).ok()?;
        (record.role() == Role::Allocated).then(|| record.owner())?
    }

    /// What the allocated block that begins at a frame is used for.
    #[must_use]
    pub fn class(&self, frame: Frame) -> Option<FrameClass> {
        let record = self.record(frame).ok()?;
        (record.role() == Role::Allocated).then(|| record.class())
    }

    /// Order of the allocated block that begins at a frame.
    #[must_use]
    pub fn order(&self, frame: Frame) -> Option<Order> {
        let record = self.record(frame).ok()?;
        (record.role() == Role::Allocated).then(|| record.order())
    }

    /// All frames.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.records.as_ref().len() as u64
    }

    /// Free frames.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free
    }

    /// Frames in use for a class; for [`FrameClass::Free`], those that are free.
    #[must_use]
    pub fn frames_of(&self, class: FrameClass) -> u64 {
        match class {
            FrameClass::Free => self.free,
            class => self.by_class[class as usize],
        }
    }

    /// Whether a block of `order`, at most 10, could be allocated.
    #[must_use]
    pub fn has_free_block(&self, order: Order) -> bool {
        self.lists.smallest_from(order).is_some()
    }

    /// Blocks, free and allocated, in address order: class, first frame, frames.
    pub fn blocks(&self) -> impl Iterator<Item = (FrameClass, Frame, u32)> + '_ {
        let mut at = 0_usize;
        core::iter::from_fn(move || {
            let record = self.records.as_ref().get(at)?;
            let frame = Frame::new(at as u32);
            let frames = record.order().frames();
            at += frames as usize;
            Some((record.class(), frame, frames))
        })
    }

    /// How contiguous memory is.
    #[must_use]
    pub fn contiguity(&self) -> Contiguity {
        let mut scan = Scan::new();
        for (class, _, frames) in self.blocks() {
            scan.push(class.kind(), u64::from(frames));
        }
        scan.finish()
    }

    /// Checks that blocks tile memory, that the lists hold exactly the free blocks, that no two
    /// free buddies stand apart, and that the fast counters agree with the table.
    ///
    /// # Errors
    /// The first [`Inconsistency`] in address order.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        let records = self.records.as_ref();
        let mut by_class = [0; FrameClass::ALL.len()];
        let mut by_order = [0; crate::lists::LISTS];
        let mut at = 0;
        while let Some(record) = records.get(at) {
            let frame = Frame::new(at as u32);
            let wrong = |problem| Err(Inconsistency { problem, frame });
            let frames = record.order().frames();
            if !frame.is_aligned(record.order()) {
                return wrong("a block is not aligned to its size");
            }
            match record.role() {
                Role::Inside => return wrong("a frame belongs to no block"),
                Role::Allocated if record.references() == 0 => {
                    return wrong("an allocated block has no user");
                }
                Role::Free if self.has_free_buddy(frame, record.order()) => {
                    return wrong("two free buddies were not merged");
                }
                Role::Free => by_order[record.order().get() as usize] += 1,
                Role::Allocated => {}
            }
            by_class[record.class() as usize] += u64::from(frames);
            for i in 1..frames {
                let inside = records.get(frame.offset(i).index());
                if inside.is_none_or(|r| r.role() != Role::Inside) {
                    return wrong("a block overlaps another one or the end of memory");
                }
            }
            at += frames as usize;
        }
        let at_start = |problem| {
            Err(Inconsistency {
                problem,
                frame: Frame::new(0),
            })
        };
        for class in FrameClass::ALL {
            if by_class[class as usize] != self.frames_of(class) {
                return at_start("a counter of frames in use differs from the table");
            }
        }
        for (order, &count) in by_order.iter().enumerate() {
            let order = Order::new(order as u8);
            if self.lists.length(order) != count || self.list_length(order) != Some(count) {
                return at_start("a free list differs from the table");
            }
        }
        Ok(())
    }

    fn has_free_buddy(&self, frame: Frame, order: Order) -> bool {
        let buddy = self.record(Frame::new(frame.get() ^ order.frames()));
        order < Order::BUDDY_MAX
            && buddy.is_ok_and(|b| b.role() == Role::Free && b.order() == order)
    }

    /// Length of a list, walked; `None` when it holds something that does not belong there.
    fn list_length(&self, order: Order) -> Option<u32> {
        let mut length = 0;
        let mut previous = None;
        let mut at = self.lists.head(order);
        while let Some(frame) = at {
            let record = self.record(frame).ok()?;
            let belongs = record.role() == Role::Free && record.order() == order;
            if !belongs || record.previous() != previous || u64::from(length) > self.total() {
                return None;
            }
            length += 1;
            previous = at;
            at = record.next();
        }
        Some(length)
    }
}
