//! Users of a block: their number, its owner, its group, and pins by devices.

use contigua_units::{Frame, Order, VirtPage};

use crate::Error;
use crate::allocator::Frames;
use crate::groups::{Evict, GroupRecord};
use crate::record::{FrameClass, FrameRecord, Group, Owner};
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    fn record_mut(&mut self, frame: Frame) -> &mut FrameRecord {
        &mut self.storage.parts_mut().frames[frame.index()]
    }

    /// Turns an allocated block into single frames, each with the block's class and number of
    /// users, and consecutive pages of its owner, or in its place in its group.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn split(&mut self, frame: Frame) -> Result<(), Error> {
        self.split_to(frame, Order::BASE)
    }

    /// Turns an allocated block into blocks of a smaller order, or of its own, in the same way.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn split_to(&mut self, frame: Frame, order: Order) -> Result<(), Error> {
        let block = self.allocated(frame)?;
        if block.order() <= order {
            return Ok(());
        }
        let parts = self.storage.parts_mut();
        let step = order.frames();
        let count = block.order().frames() / step;
        for i in 0..count {
            let mut part = block;
            part.set_order(order);
            if block.group().is_some() {
                if i > 0 {
                    part.set_previous(Some(frame.offset((i - 1) * step)));
                }
                if i + 1 < count {
                    part.set_next(Some(frame.offset((i + 1) * step)));
                }
            } else {
                part.set_owner(block.owner().map(|owner| Owner {
                    page: VirtPage::new(owner.page.get() + u64::from(i * step)),
                    ..owner
                }));
            }
            parts.frames[frame.offset(i * step).index()] = part;
        }
        if let Some(group) = block.group() {
            let last = frame.offset((count - 1) * step);
            let chain = &mut parts.groups[usize::from(group.0)].chain;
            match block.next() {
                Some(next) => parts.frames[next.index()].set_previous(Some(last)),
                None => chain.oldest = Some(last),
            }
            chain.length += count - 1;
        }
        Ok(())
    }

    /// Adds a user to a block.
    ///
    /// # Errors
    /// [`Error::NotAllocated`], [`Error::TooManyUsers`].
    pub fn add_reference(&mut self, frame: Frame) -> Result<(), Error> {
        let references = self.allocated(frame)?.references() + 1;
        if self.record_mut(frame).set_references(references) {
            Ok(())
        } else {
            Err(Error::TooManyUsers(frame))
        }
    }

    /// Takes a user from a block and frees it with the last one; says whether it did.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn drop_reference(&mut self, frame: Frame) -> Result<bool, Error> {
        let references = self.allocated(frame)?.references();
        if references > 1 {
            self.record_mut(frame).set_references(references - 1);
            return Ok(false);
        }
        self.free(frame)?;
        Ok(true)
    }

    /// Users of a block; 0 when the frame is not the first of an allocated one.
    #[must_use]
    pub fn references(&self, frame: Frame) -> u32 {
        self.allocated(frame)
            .map_or(0, |record| record.references())
    }

    /// Notes which page a block backs. A block in a group leaves it.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn set_owner(&mut self, frame: Frame, owner: Option<Owner>) -> Result<(), Error> {
        let record = self.allocated(frame)?;
        self.leave(frame, &record);
        let record = self.record_mut(frame);
        record.set_group(None);
        record.set_owner(owner);
        Ok(())
    }

    /// Page that a block backs, if that was noted.
    #[must_use]
    pub fn owner(&self, frame: Frame) -> Option<Owner> {
        self.allocated(frame).ok()?.owner()
    }

    /// Use of the allocated block that begins at a frame.
    #[must_use]
    pub fn class(&self, frame: Frame) -> Option<FrameClass> {
        Some(self.allocated(frame).ok()?.class())
    }

    /// Order of the allocated block that begins at a frame.
    #[must_use]
    pub fn order(&self, frame: Frame) -> Option<Order> {
        Some(self.allocated(frame).ok()?.order())
    }

    /// Returns true if a device holds the block that begins at a frame.
    #[must_use]
    pub fn is_pinned(&self, frame: Frame) -> bool {
        self.allocated(frame).is_ok_and(|record| record.is_pinned())
    }

    /// The group that the block at a frame is in.
    #[must_use]
    pub fn group(&self, frame: Frame) -> Option<Group> {
        self.allocated(frame).ok()?.group()
    }

    /// Groups that the storage has room for.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.storage.parts().groups.len()
    }

    fn group_record(&self, group: Group) -> GroupRecord {
        let groups = self.storage.parts().groups;
        groups
            .get(usize::from(group.0))
            .copied()
            .unwrap_or_default()
    }

    /// Frames of a group's blocks.
    #[must_use]
    pub fn frames_in(&self, group: Group) -> u32 {
        self.group_record(group).frames
    }

    /// The block that was put in a group last.
    #[must_use]
    pub fn newest_in(&self, group: Group) -> Option<Frame> {
        self.group_record(group).chain.newest
    }

    /// The block that was put in a group first.
    #[must_use]
    pub fn oldest_in(&self, group: Group) -> Option<Frame> {
        self.group_record(group).chain.oldest
    }

    /// The blocks of a group, the newest first.
    pub fn blocks_in(&self, group: Group) -> impl Iterator<Item = Frame> + '_ {
        let next = |frame: &Frame| self.storage.parts().frames[frame.index()].next();
        core::iter::successors(self.newest_in(group), next)
    }

    /// Says what reclaim may do with a group's blocks. Reclaim looks at all groups up to the highest
    /// that it may evict from, so these should have low numbers.
    ///
    /// # Panics
    /// When the storage has no record for the group.
    pub fn set_evict(&mut self, group: Group, evict: Evict) {
        let number = usize::from(group.0);
        self.storage.parts_mut().groups[number].evict = evict;
        if evict != Evict::Never {
            self.evict_end = self.evict_end.max(number + 1);
        }
    }

    /// Frees the block of a group that was put there last; its frames, or `None` when it is empty.
    pub fn free_newest(&mut self, group: Group) -> Option<u32> {
        self.free_in(self.newest_in(group)?)
    }

    /// Frees the block of a group that was put there first; its frames, or `None` when it is
    /// empty.
    pub fn free_oldest(&mut self, group: Group) -> Option<u32> {
        self.free_in(self.oldest_in(group)?)
    }

    fn free_in(&mut self, frame: Frame) -> Option<u32> {
        let frames = self.order(frame)?.frames();
        // A block in a group has one user.
        self.free(frame).ok()?;
        Some(frames)
    }

    /// Marks a block as used, so that reclaim passes it over once.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn touch(&mut self, frame: Frame) -> Result<(), Error> {
        self.allocated(frame)?;
        self.record_mut(frame).set_referenced(true);
        Ok(())
    }

    /// Puts an allocated block that has no owner into a group, as its newest.
    ///
    /// # Panics
    /// When the storage has no record for the group.
    pub(crate) fn join(&mut self, frame: Frame, group: Group) {
        let parts = self.storage.parts_mut();
        let record = &mut parts.frames[frame.index()];
        record.set_group(Some(group));
        let frames = record.order().frames();
        let group = &mut parts.groups[usize::from(group.0)];
        group.chain.push_newest(parts.frames, frame);
        group.frames += frames;
    }

    /// Takes a block out of its group, if it is in one. Its record is left to the caller.
    #[inline]
    pub(crate) fn leave(&mut self, frame: Frame, record: &FrameRecord) {
        if let Some(group) = record.group() {
            let parts = self.storage.parts_mut();
            let group = &mut parts.groups[usize::from(group.0)];
            group.chain.remove(parts.frames, frame);
            group.frames -= record.order().frames();
        }
    }

    /// Puts a block of a group at its newest end.
    pub(crate) fn rotate(&mut self, frame: Frame) {
        let record = self.storage.parts().frames[frame.index()];
        if let Some(group) = record.group() {
            self.leave(frame, &record);
            self.record_mut(frame).set_referenced(false);
            self.join(frame, group);
        }
    }
}
