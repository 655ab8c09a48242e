//! Translation entry areas (DMT: Zhang and others, ASPLOS 2024): nodes of the tree that lie in memory in the order of
//! their addresses. The page tables of a mapping, and its page directories, have an area each, so a register with
//! the mapping's range and the area's first frame tells where the last entry of a walk is. The tree is whole with and
//! without them.
//!
//! An area is asked for when a mapping that is large enough gets a page table outside of all areas; what the
//! mapping had moves into it. Mappings with few addresses between them share one. Without contiguous memory, half
//! of the addresses gets one, and so on; then tables lie anywhere. A mapping that outgrows its area gets one of
//! at least twice the size elsewhere (the paper's kernel first tries the frames behind it). An area goes when none of
//! its range is mapped.

use contigua_state::Plain;
use contigua_units::{Frame, PageSize, PhysAddr, VirtAddr, VirtRange};

use super::levels::{ENTRY_BYTES, height_of, index_at, shift_of};

/// Sizes of pages whose entries lie in areas.
pub(super) const SIZES: [PageSize; 2] = [PageSize::Size4K, PageSize::Size2M];

/// New nodes outside of all areas after which sizes that failed are tried again (the authors' kernel tries at each of
/// them). Chosen, as for hashed tables.
const RETRY: u64 = 64;

/// The shape of areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
pub struct AreaShape {
    /// Areas of a process at most, one for each register.
    pub registers: u32,
    /// Bytes of a mapping, or of mappings together, that are worth an area.
    pub least: u64,
    /// Part of a range, in percent, that mappings must take to have one area together.
    pub merge_percent: u32,
    /// Pages of 2 MB have areas, too.
    pub has_huge: bool,
    /// In a virtual machine, areas lie in memory that the host takes for them.
    pub is_in_host: bool,
}

/// Contiguous nodes of one height.
#[derive(Clone, Debug, Plain)]
pub(super) struct Area {
    /// Size of the pages that entries map.
    pub(super) size: PageSize,
    /// Addresses for which a register tells of it.
    pub(super) range: VirtRange,
    /// Number of the first node among those of its height, and how many there are.
    pub(super) first: u64,
    pub(super) nodes: u64,
    pub(super) block: Frame,
    /// Nodes that are there.
    pub(super) used: u64,
}

/// The areas of a process.
#[derive(Clone, Debug, Plain)]
pub struct Areas {
    pub(super) shape: AreaShape,
    pub(super) list: Vec<Area>,
    /// Addresses that have entries outside of all areas since the last look.
    pub(super) wanted: Vec<VirtAddr>,
    /// By size: nodes of the largest area that is tried, after larger ones have failed.
    pub(super) most: [u64; SIZES.len()],
    /// By size: nodes outside of all areas since then.
    pub(super) since: [u64; SIZES.len()],
    /// Frames that are no nodes any more; first frames and numbers of those that the host has lent.
    pub(super) released: Vec<Frame>,
    pub(super) returned: Vec<(Frame, u64)>,
}

/// log2 of the bytes that a node with entries of a size maps.
fn node_shift(size: PageSize) -> u32 {
    shift_of(height_of(size) + 1)
}

/// Number of the node with the entry of a size for an address.
pub(super) fn node_of(address: VirtAddr, size: PageSize) -> u64 {
    address.get() >> node_shift(size)
}

pub(super) fn node_start(node: u64, size: PageSize) -> VirtAddr {
    VirtAddr::new(node << node_shift(size))
}

impl Area {
    pub(super) fn end(&self) -> u64 {
        self.first + self.nodes
    }

    pub(super) fn has_node(&self, node: u64) -> bool {
        (self.first..self.end()).contains(&node)
    }

    pub(super) fn slot(&self, node: u64) -> Frame {
        self.block.offset((node - self.first) as u32)
    }

    fn has_frame(&self, frame: Frame) -> bool {
        let distance = u64::from(frame.get()).wrapping_sub(u64::from(self.block.get()));
        distance < self.nodes
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> + use<> {
        let block = self.block;
        (0..self.nodes).map(move |at| block.offset(at as u32))
    }
}

impl Areas {
    pub(super) fn new(shape: AreaShape) -> Self {
        Self {
            shape,
            list: Vec::new(),
            wanted: Vec::new(),
            most: [u64::MAX; SIZES.len()],
            since: [0; SIZES.len()],
            released: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// Their shape.
    #[must_use]
    pub const fn shape(&self) -> AreaShape {
        self.shape
    }

    /// Areas, of all sizes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Address of the entry for the page of a size around an address, if a register tells it.
    #[inline]
    #[must_use]
    pub fn entry(&self, address: VirtAddr, size: PageSize) -> Option<PhysAddr> {
        let mut areas = self.list.iter();
        let area = areas.find(|area| area.size == size && area.range.contains(address))?;
        let index = index_at(address, height_of(size)) as u64;
        Some(area.slot(node_of(address, size)).address() + index * ENTRY_BYTES)
    }

    /// Addresses of the entries for an address that registers tell, one for each size of page.
    pub fn entries(&self, address: VirtAddr) -> impl Iterator<Item = PhysAddr> + '_ {
        SIZES
            .into_iter()
            .filter_map(move |size| self.entry(address, size))
    }

    /// Returns true if pages have entries outside of all areas that want one.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub(super) fn sizes(&self) -> impl Iterator<Item = PageSize> + use<> {
        SIZES.into_iter().take(1 + usize::from(self.shape.has_huge))
    }

    pub(super) fn of_node(&mut self, address: VirtAddr, size: PageSize) -> Option<&mut Area> {
        let node = node_of(address, size);
        let mut areas = self.list.iter_mut();
        areas.find(|area| area.size == size && area.has_node(node))
    }

    /// The frame of a node with entries of a size, which it has now.
    pub(super) fn take_slot(&mut self, address: VirtAddr, height: usize) -> Option<Frame> {
        let size = SIZES.into_iter().find(|&size| height_of(size) == height)?;
        let area = self.of_node(address, size)?;
        area.used += 1;
        Some(area.slot(node_of(address, size)))
    }

    /// Returns true if the node for an address at a height has a place in an area.
    pub(super) fn has_slot(&self, address: VirtAddr, height: usize) -> bool {
        self.list.iter().any(|area| {
            height_of(area.size) == height && area.has_node(node_of(address, area.size))
        })
    }

    /// Takes a node's frame back; says whether it is part of an area.
    pub(super) fn drop_slot(&mut self, frame: Frame) -> bool {
        let area = self.list.iter_mut().find(|area| area.has_frame(frame));
        area.map(|area| area.used -= 1).is_some()
    }

    pub(super) fn has_frame(&self, frame: Frame) -> bool {
        self.list.iter().any(|area| area.has_frame(frame))
    }

    /// A page was mapped; its node is a new one.
    pub(super) fn note(&mut self, address: VirtAddr, size: PageSize) {
        let Some(at) = SIZES.iter().position(|&known| known == size) else {
            return;
        };
        if self.entry(address, size).is_some() {
            return;
        }
        self.since[at] += 1;
        if self.since[at] >= RETRY {
            self.most[at] = u64::MAX;
        }
        if self.most[at] >= self.least_nodes(size) {
            self.wanted.push(address);
        }
    }

    /// Nodes that are worth a register.
    pub(super) fn least_nodes(&self, size: PageSize) -> u64 {
        (self.shape.least >> node_shift(size)).max(1)
    }

    /// Frames of all areas, of this server's memory.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let own = (!self.shape.is_in_host).then_some(&self.list);
        let areas = own.into_iter().flatten().flat_map(Area::frames);
        areas.chain(self.released.iter().copied())
    }

    /// First frames and numbers of those that the host has lent.
    pub(crate) fn lent(&self) -> impl Iterator<Item = (Frame, u64)> + '_ {
        let lent = self.shape.is_in_host.then_some(&self.list);
        let areas = lent.into_iter().flatten();
        areas
            .map(|area| (area.block, area.nodes))
            .chain(self.returned.iter().copied())
    }

    pub(super) fn release(&mut self, area: &Area) {
        if self.shape.is_in_host {
            self.returned.push((area.block, area.nodes));
        } else {
            self.released.extend(area.frames());
        }
    }

    /// The nodes of an area for a cluster of mappings: those of the areas that it has already, which it
    /// replaces, and their number.
    pub(super) fn whole(
        &self,
        cluster: VirtRange,
        at: VirtAddr,
        size: PageSize,
    ) -> (u64, u64, u64) {
        let last = VirtAddr::new(cluster.end.get() - 1);
        let (mut first, mut end) = (node_of(cluster.start, size), node_of(last, size) + 1);
        let mut replaced = 0;
        for area in self.list.iter().filter(|area| area.size == size) {
            if area.first < end && first < area.end() {
                replaced += area.nodes;
                (first, end) = (first.min(area.first), end.max(area.end()));
            }
        }
        let most = 2 * replaced;
        if most > end - first {
            // Room to grow, as far as no other area is in the way.
            let node = node_of(at, size);
            let areas = self.list.iter().filter(|area| area.size == size);
            if end - node <= node - first {
                let next = areas
                    .filter(|area| area.first >= end)
                    .map(|area| area.first)
                    .min();
                end = (first + most).min(next.unwrap_or(u64::MAX));
            } else {
                let before = areas
                    .filter(|area| area.end() <= first)
                    .map(Area::end)
                    .max();
                first = end.saturating_sub(most).max(before.unwrap_or(0));
            }
        }
        (first, end, replaced)
    }

    /// The nodes around one that are in no area, within those of a cluster.
    pub(super) fn rest(&self, cluster: VirtRange, at: VirtAddr, size: PageSize) -> (u64, u64) {
        let (node, last) = (node_of(at, size), VirtAddr::new(cluster.end.get() - 1));
        let (mut first, mut end) = (node_of(cluster.start, size), node_of(last, size) + 1);
        for area in self.list.iter().filter(|area| area.size == size) {
            if area.end() <= node {
                first = first.max(area.end());
            } else {
                end = end.min(area.first);
            }
        }
        (first, end)
    }
}
