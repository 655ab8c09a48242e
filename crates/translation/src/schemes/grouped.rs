//! Structures of the schemes that keep aligned groups of pages in TLB entries. They differ in when
//! pages form a group, and in whether the kernel helps.

use contigua_paging::{Leaf, SpaceId};
use contigua_state::Plain;
use contigua_units::{Frame, PageSize, VirtRange};

use crate::radix::{Radix, allows, group_of, page};
use crate::tlb::{Entry, Kind};
use crate::{
    Error, Hardware, MemoryPort, Request, Tables, Translation, Translator, TranslatorCounters,
};

/// When an aligned group of pages is one entry.
pub(super) trait Rule: Plain + Send {
    /// Returns true if the group around an access, which was just translated to `leaf`, shares an
    /// entry.
    fn joins(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> bool;
}

/// An L2 TLB that holds groups beside pages, in the array of the 4 KB pages.
#[derive(contigua_state::State)]
pub(super) struct Grouped<R> {
    radix: Radix,
    #[state(skip)]
    group: u32,
    #[state(skip)]
    rule: R,
    group_hits: u64,
    groups_entered: u64,
}

impl<R: Rule> Grouped<R> {
    pub(super) fn new(hardware: &Hardware<'_>, group: u32, rule: R) -> Result<Self, Error> {
        Ok(Self {
            radix: Radix::with_groups(hardware, group)?,
            group,
            rule,
            group_hits: 0,
            groups_entered: 0,
        })
    }

    fn look_up_group(&mut self, request: &Request) -> Option<Leaf> {
        let (_, part) = group_of(request.address, self.group);
        let kind = Kind::Group(self.group);
        let array = self.radix.l2.array(PageSize::Size4K)?;
        let entry = array.lookup(request.address, request.space, kind)?;
        let leaf = Leaf::new(entry.frame.offset(part), PageSize::Size4K, entry.writable);
        if allows(leaf, request.access) {
            return Some(leaf);
        }
        array.remove(request.address, request.space, kind);
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
        let joined = |answer| match answer {
            Translation::Page {
                leaf,
                latency,
                walked,
                ..
            } => Translation::Page {
                leaf,
                latency,
                walked,
                group: true,
            },
            fault @ Translation::Fault { .. } => fault,
        };
        if let Some(leaf) = self.look_up_group(request) {
            self.group_hits += 1;
            self.radix.walker.counters.hit(PageSize::Size4K);
            return joined(page(leaf, self.radix.latency(), false));
        }
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let (leaf, latency) = match self.radix.walk(request, tables, port) {
            Ok(found) => found,
            Err(fault) => return fault,
        };
        let Request { address, space, .. } = *request;
        let answer = page(leaf, latency, true);
        if leaf.size != PageSize::Size4K || !self.rule.joins(request, leaf, tables) {
            self.radix.fill(request, leaf);
            return answer;
        }
        self.groups_entered += 1;
        let (_, part) = group_of(address, self.group);
        if let Some(array) = self.radix.l2.array(PageSize::Size4K) {
            let entry = Entry {
                frame: Frame::new(leaf.frame.get() - part),
                ..Entry::of(leaf)
            };
            array.remove(address, space, Kind::Group(self.group));
            array.insert(address, space, Kind::Group(self.group), entry);
        }
        joined(answer)
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
        // One bit tells a group from a page.
        self.radix.storage_bits() + self.radix.l2.capacity_for(PageSize::Size4K)
    }
}
