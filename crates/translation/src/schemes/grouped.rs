//! Structures of the schemes that keep aligned groups of pages in TLB entries. They differ in when
//! pages form a group, and in whether the kernel helps.

use std::ops::RangeInclusive;

use contigua_paging::{Leaf, SpaceId};
use contigua_state::Plain;
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::radix::{Radix, allows, group_of, page};
use crate::tlb::{Entry, Kind};
use crate::{
    Error, Hardware, MemoryPort, Request, Tables, Translation, Translator, TranslatorCounters,
};

/// When an aligned group of pages is one entry.
pub(super) trait Rule: Plain + Send {
    /// log2 of the pages of the group around an access, which was just translated to `leaf`, that share an entry; 0 for
    /// a page alone.
    fn order(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> u32;
}

/// An L2 TLB that holds groups beside pages, in the array of the 4 KB pages.
#[derive(contigua_state::State)]
pub(super) struct Grouped<R> {
    radix: Radix,
    /// log2 of the pages of a group in the first level.
    #[state(skip)]
    group: u32,
    /// log2 of the pages of groups in the L2 TLB, which may hold several sizes.
    #[state(skip)]
    orders: RangeInclusive<u32>,
    #[state(skip)]
    rule: R,
    group_hits: u64,
    groups_entered: u64,
}

impl<R: Rule> Grouped<R> {
    /// With groups of one size.
    pub(super) fn new(hardware: &Hardware<'_>, group: u32, rule: R) -> Result<Self, Error> {
        Self::with_orders(hardware, group, group..=group, rule)
    }

    /// With groups of several sizes in the L2 TLB.
    pub(super) fn with_orders(
        hardware: &Hardware<'_>,
        group: u32,
        orders: RangeInclusive<u32>,
        rule: R,
    ) -> Result<Self, Error> {
        Ok(Self {
            radix: Radix::with_groups(hardware, *orders.end())?,
            group,
            orders,
            rule,
            group_hits: 0,
            groups_entered: 0,
        })
    }

    /// The page of a group that the L2 TLB has, and the group's size.
    fn look_up_group(&mut self, request: &Request) -> Option<(Leaf, u32)> {
        let array = self.radix.l2.array(PageSize::Size4K)?;
        for order in self.orders.clone().rev() {
            let kind = Kind::Group(order);
            let Some(entry) = array.lookup(request.address, request.space, kind) else {
                continue;
            };
            let (_, part) = group_of(request.address, order);
            let leaf = Leaf::new(entry.frame.offset(part), PageSize::Size4K, entry.writable);
            if allows(leaf, request.access) {
                return Some((leaf, order));
            }
            array.remove(request.address, request.space, kind);
        }
        None
    }
}

impl<R: Rule> Translator for Grouped<R> {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let first = self.group;
        let joined = |leaf, order, latency, walked| Translation::Page {
            leaf,
            latency,
            walked,
            group: order >= first,
        };
        if let Some((leaf, order)) = self.look_up_group(request) {
            self.group_hits += 1;
            self.radix.walker.counters.hit(PageSize::Size4K);
            return joined(leaf, order, self.radix.latency(), false);
        }
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let (leaf, latency) = match self.radix.walk(request, tables, port) {
            Ok(found) => found,
            Err(fault) => return fault,
        };
        let Request { address, space, .. } = *request;
        let order = match leaf.size {
            PageSize::Size4K => self.rule.order(request, leaf, tables),
            _ => 0,
        };
        if order == 0 {
            self.radix.fill(request, leaf);
            return page(leaf, latency, true);
        }
        self.groups_entered += 1;
        let (_, part) = group_of(address, order);
        if let Some(array) = self.radix.l2.array(PageSize::Size4K) {
            let entry = Entry {
                frame: Frame::new(leaf.frame.get() - part),
                ..Entry::of(leaf)
            };
            array.remove(address, space, Kind::Group(order));
            array.insert(address, space, Kind::Group(order), entry);
        }
        joined(leaf, order, latency, true)
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn group(&self) -> u32 {
        self.group
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("group_hits", self.group_hits),
            ("groups_entered", self.groups_entered),
        ]
    }

    fn reset_counters(&mut self) {
        self.group_hits = 0;
        self.groups_entered = 0;
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        // One bit tells a group from a page: its size is in bits of the page's number that it does not need.
        self.radix.storage_bits() + self.radix.l2.capacity_for(PageSize::Size4K)
    }
}

/// log2 of the pages of the largest aligned group around a page, of at most two to the power of `largest`, whose frames
/// are contiguous and as aligned, and whose entries are alike.
pub(super) fn aligned_run(request: &Request, leaf: Leaf, largest: u32, tables: &Tables<'_>) -> u32 {
    let (page, frame) = (request.address.page().get(), leaf.frame.get());
    let is_alike = |other: u64| {
        let expected = frame.wrapping_add((other.wrapping_sub(page)) as u32);
        let found = tables.resolve(VirtAddr::new(other * PAGE_BYTES));
        found.is_some_and(|found| {
            found.frame.get() == expected
                && (found.writable && found.dirty) == leaf.writable
                && found.accessed
        })
    };
    // Pages and frames differ in no lower bit.
    let most = (page as u32 ^ frame).trailing_zeros().min(largest);
    (0..most)
        .find(|&order| {
            // The other half of the group that is twice as large.
            let other = (page >> order ^ 1) << order;
            !(other..other + (1 << order)).all(is_alike)
        })
        .unwrap_or(most)
}
