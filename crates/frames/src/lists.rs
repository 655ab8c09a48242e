//! Free lists, one for each order, linked through the records of the free blocks.

use contigua_units::{Frame, Order};

use crate::record::FrameRecord;

/// Orders 0 to 10.
pub(crate) const LISTS: usize = Order::BUDDY_MAX.get() as usize + 1;

/// Heads and lengths of the lists.
#[derive(Clone, Debug)]
pub(crate) struct FreeLists {
    heads: [Option<Frame>; LISTS],
    lengths: [u32; LISTS],
}

impl FreeLists {
    pub(crate) fn new() -> Self {
        Self {
            heads: [None; LISTS],
            lengths: [0; LISTS],
        }
    }

    pub(crate) fn head(&self, order: Order) -> Option<Frame> {
        self.heads[order.get() as usize]
    }

    pub(crate) fn length(&self, order: Order) -> u32 {
        self.lengths[order.get() as usize]
    }

    /// The smallest order of at least `order` that has a free block.
    pub(crate) fn smallest_from(&self, order: Order) -> Option<Order> {
        (order.get()..LISTS as u8)
            .map(Order::new)
            .find(|&order| self.head(order).is_some())
    }

    /// Puts a block at the head of its list and writes its record.
    pub(crate) fn push(&mut self, records: &mut [FrameRecord], frame: Frame, order: Order) {
        let list = order.get() as usize;
        let next = self.heads[list].replace(frame);
        records[frame.index()] = FrameRecord::free(order, None, next);
        if let Some(next) = next {
            records[next.index()].set_previous(Some(frame));
        }
        self.lengths[list] += 1;
    }

    /// Takes a free block out of its list. Its record is left to the caller.
    pub(crate) fn remove(&mut self, records: &mut [FrameRecord], frame: Frame) {
        let record = records[frame.index()];
        let list = record.order().get() as usize;
        match record.previous() {
            Some(previous) => records[previous.index()].set_next(record.next()),
            None => self.heads[list] = record.next(),
        }
        if let Some(next) = record.next() {
            records[next.index()].set_previous(record.previous());
        }
        self.lengths[list] -= 1;
    }
}
