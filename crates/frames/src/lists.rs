//! Free lists: one for each order and migrate type, in one of two disciplines.

use contigua_units::{Frame, Order};

use crate::block::MigrateType;
use crate::chain::Chain;
use crate::ordered::{ORDERS, Ordered};
use crate::storage::PartsMut;

/// Choice among several free blocks of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// The one that was freed last, as in Linux.
    Recency,
    /// The one farthest from the border between two regions: the lowest address of the unmovable
    /// region, the highest of the movable one.
    FarFromBorder,
}

/// Heads and lengths of the lists.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::State))]
pub(crate) struct FreeLists {
    #[cfg_attr(feature = "state", state(skip))]
    discipline: Discipline,
    chains: [[Chain; ORDERS]; MigrateType::LISTED],
    /// Orders of a type that have a block, a bit each.
    filled: [u16; MigrateType::LISTED],
    ordered: Ordered,
}

impl FreeLists {
    pub(crate) fn new(discipline: Discipline, frames: usize) -> Self {
        Self {
            discipline,
            chains: [[Chain::default(); ORDERS]; MigrateType::LISTED],
            filled: [0; MigrateType::LISTED],
            ordered: Ordered::new(frames),
        }
    }

    pub(crate) fn discipline(&self) -> Discipline {
        self.discipline
    }

    pub(crate) fn length(&self, kind: MigrateType, order: Order) -> u32 {
        self.chains[kind as usize][order.get() as usize].length
    }

    /// The orders from `order` on that have a block of a type, smallest first.
    #[inline]
    pub(crate) fn orders_from(
        &self,
        kind: MigrateType,
        order: Order,
    ) -> impl DoubleEndedIterator<Item = Order> + use<> {
        let filled = self.filled[kind as usize];
        (order.get()..ORDERS as u8)
            .filter(move |&order| filled >> order & 1 == 1)
            .map(Order::new)
    }

    /// The smallest order of at least `order` that has a block of a type.
    #[inline]
    pub(crate) fn smallest_from(&self, kind: MigrateType, order: Order) -> Option<Order> {
        let filled = u32::from(self.filled[kind as usize]) >> order.get() << order.get();
        (filled != 0).then(|| Order::new(filled.trailing_zeros() as u8))
    }

    /// The block of a type and order that the discipline takes next.
    #[inline]
    pub(crate) fn next(&self, words: &[u64], kind: MigrateType, order: Order) -> Option<Frame> {
        let chain = &self.chains[kind as usize][order.get() as usize];
        if chain.length == 0 {
            return None;
        }
        match self.discipline {
            Discipline::Recency => chain.newest,
            // Blocks below the border are never movable ones, and those above always are.
            Discipline::FarFromBorder if kind == MigrateType::Movable => {
                self.ordered.highest(words, order)
            }
            Discipline::FarFromBorder => self.ordered.lowest(words, order),
        }
    }

    /// The block of an order with the highest address that ends at `end` or before, whatever its type.
    pub(crate) fn highest_below(&self, words: &[u64], order: Order, end: Frame) -> Option<Frame> {
        self.ordered.highest_below(words, order, end)
    }

    /// Lists a free block, whose record has been written and links to nobody.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        parts: &mut PartsMut<'_>,
        frame: Frame,
        order: Order,
        kind: MigrateType,
        at_end: bool,
    ) {
        let (list, slot) = (kind as usize, order.get() as usize);
        let chain = &mut self.chains[list][slot];
        match self.discipline {
            Discipline::Recency if at_end => chain.push_oldest(parts.frames, frame),
            Discipline::Recency => chain.push_newest(parts.frames, frame),
            Discipline::FarFromBorder => {
                self.ordered.insert(parts.words, frame, order);
                chain.length += 1;
            }
        }
        self.filled[list] |= 1 << slot;
    }

    /// Takes a free block out of its list. Its record is left to the caller.
    #[inline]
    pub(crate) fn remove(
        &mut self,
        parts: &mut PartsMut<'_>,
        frame: Frame,
        order: Order,
        kind: MigrateType,
    ) {
        let (list, slot) = (kind as usize, order.get() as usize);
        let chain = &mut self.chains[list][slot];
        match self.discipline {
            Discipline::Recency => chain.remove(parts.frames, frame),
            Discipline::FarFromBorder => {
                self.ordered.remove(parts.words, frame, order);
                chain.length -= 1;
            }
        }
        if chain.length == 0 {
            self.filled[list] &= !(1 << slot);
        }
    }

    /// Returns true if the lists hold exactly `counts` blocks, each of which the table knows to be
    /// free.
    pub(crate) fn is_sound(
        &self,
        parts: crate::storage::Parts<'_>,
        counts: &[[u32; ORDERS]; MigrateType::LISTED],
    ) -> bool {
        let by_address = self.discipline == Discipline::FarFromBorder;
        let sound = |kind: usize, order: usize| {
            let chain = &self.chains[kind][order];
            let walks = by_address
                || chain.is_sound(parts.frames, |record| {
                    record.role() == crate::record::Role::Free
                        && record.order().get() as usize == order
                });
            let marked = (self.filled[kind] >> order & 1 == 1) == (chain.length > 0);
            chain.length == counts[kind][order] && walks && marked
        };
        let lists = (0..MigrateType::LISTED).flat_map(|k| (0..ORDERS).map(move |o| (k, o)));
        let indexed = (0..ORDERS).all(|order| {
            let listed: u32 = self.chains.iter().map(|chains| chains[order].length).sum();
            let order = Order::new(order as u8);
            !by_address || self.ordered.count(parts.words, order, parts.frames.len()) == listed
        });
        lists.into_iter().all(|(kind, order)| sound(kind, order)) && indexed
    }

    /// Returns true if a block is in the index by address.
    pub(crate) fn is_indexed(&self, words: &[u64], frame: Frame, order: Order) -> bool {
        self.discipline == Discipline::Recency || self.ordered.contains(words, frame, order)
    }
}
