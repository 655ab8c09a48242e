//! Doubly linked lists of blocks, through the records of the blocks themselves.

use contigua_units::Frame;

use crate::record::FrameRecord;

/// The two ends of a list. The newest block is the one that was put at the front last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Chain {
    pub(crate) newest: Option<Frame>,
    pub(crate) oldest: Option<Frame>,
    pub(crate) length: u32,
}

impl Chain {
    /// Puts a block, whose record links to nobody, at the front.
    #[inline]
    pub(crate) fn push_newest(&mut self, records: &mut [FrameRecord], frame: Frame) {
        let next = self.newest.replace(frame);
        records[frame.index()].set_next(next);
        match next {
            Some(next) => records[next.index()].set_previous(Some(frame)),
            None => self.oldest = Some(frame),
        }
        self.length += 1;
    }

    /// Puts a block, whose record links to nobody, at the end.
    #[inline]
    pub(crate) fn push_oldest(&mut self, records: &mut [FrameRecord], frame: Frame) {
        let previous = self.oldest.replace(frame);
        records[frame.index()].set_previous(previous);
        match previous {
            Some(previous) => records[previous.index()].set_next(Some(frame)),
            None => self.newest = Some(frame),
        }
        self.length += 1;
    }

    /// Takes a block out. Its own record is left to the caller.
    #[inline]
    pub(crate) fn remove(&mut self, records: &mut [FrameRecord], frame: Frame) {
        let record = records[frame.index()];
        match record.previous() {
            Some(previous) => records[previous.index()].set_next(record.next()),
            None => self.newest = record.next(),
        }
        match record.next() {
            Some(next) => records[next.index()].set_previous(record.previous()),
            None => self.oldest = record.previous(),
        }
        self.length -= 1;
    }

    /// Lets the block `to`, whose record is a copy of `from`'s, take its place.
    pub(crate) fn replace(&mut self, records: &mut [FrameRecord], from: Frame, to: Frame) {
        let record = records[to.index()];
        match record.previous() {
            Some(previous) => records[previous.index()].set_next(Some(to)),
            None => self.newest = Some(to),
        }
        match record.next() {
            Some(next) => records[next.index()].set_previous(Some(to)),
            None => self.oldest = Some(to),
        }
        debug_assert_ne!(from, to);
    }

    /// Returns true if walking the list from either end finds `length` blocks that `belong`.
    pub(crate) fn is_sound(
        &self,
        records: &[FrameRecord],
        belongs: impl Fn(&FrameRecord) -> bool,
    ) -> bool {
        let mut length = 0;
        let mut previous = None;
        let mut at = self.newest;
        while let Some(frame) = at {
            let Some(record) = records.get(frame.index()) else {
                return false;
            };
            if !belongs(record) || record.previous() != previous || length > self.length {
                return false;
            }
            length += 1;
            previous = at;
            at = record.next();
        }
        length == self.length && previous == self.oldest
    }
}
