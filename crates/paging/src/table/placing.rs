//! Places nodes of the tree in areas: makes areas, and moves what mappings had into them.

use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use super::PageTable;
use super::areas::{Area, AreaShape, Areas, SIZES, node_of, node_start};
use super::entry::{Entry, LEAF, PRESENT};
use super::hashed::Growth;
use super::levels::{ENTRIES, height_of, shift_of, size_at};

impl PageTable {
    /// The table with areas for its last nodes.
    #[must_use]
    pub fn with_areas(self, shape: Option<AreaShape>) -> Self {
        Self {
            areas: shape.map(Areas::new),
            ..self
        }
    }

    /// The areas of its last nodes, if it has some.
    #[inline]
    #[must_use]
    pub fn areas(&self) -> Option<&Areas> {
        self.areas.as_ref()
    }

    /// Addresses with entries outside of all areas, since the last call.
    pub(crate) fn take_wanted(&mut self) -> Vec<VirtAddr> {
        let areas = self.areas.as_mut();
        areas.map_or_else(Vec::new, |areas| std::mem::take(&mut areas.wanted))
    }

    /// Makes areas for a cluster of mappings around an address that has none, of runs of frames that `take` gives.
    pub fn make_areas(
        &mut self,
        cluster: VirtRange,
        at: VirtAddr,
        mut take: impl FnMut(u64) -> Option<Frame>,
    ) -> Growth {
        let mut growth = Growth::default();
        let sizes = self.areas.as_ref().map(Areas::sizes);
        for size in sizes.into_iter().flatten() {
            self.make_area(cluster, at, size, &mut take, &mut growth);
        }
        growth
    }

    fn make_area(
        &mut self,
        cluster: VirtRange,
        at: VirtAddr,
        size: PageSize,
        take: &mut dyn FnMut(u64) -> Option<Frame>,
        growth: &mut Growth,
    ) {
        let Some(areas) = &mut self.areas else {
            return;
        };
        if let Some(area) = areas.of_node(at, size) {
            // Mappings that share a node share its area's register.
            let nodes = VirtRange {
                start: node_start(area.first, size),
                end: node_start(area.end(), size),
            };
            area.range.start = area.range.start.min(cluster.start.max(nodes.start));
            area.range.end = area.range.end.max(cluster.end.min(nodes.end));
            return;
        }
        let least = areas.least_nodes(size);
        let mut attempt = |areas: &mut Areas, first: u64, end: u64| {
            let nodes = end - first;
            growth.largest_block = growth.largest_block.max(nodes * PAGE_BYTES);
            let block = take(nodes);
            if block.is_none() {
                (areas.most[size as usize], areas.since[size as usize]) = (nodes / 2, 0);
                growth.failures += 1;
            }
            block.map(|block| (first, end, block))
        };
        let (first, end, replaced) = areas.whole(cluster, at, size);
        let has_register = (areas.list.len() as u64) < u64::from(areas.shape.registers);
        let mut made = None;
        if end - first <= areas.most[size as usize] && (has_register || replaced > 0) {
            made = attempt(areas, first, end);
        }
        let (mut first, mut end) = areas.rest(cluster, at, size);
        let node = node_of(at, size);
        while made.is_none() && has_register && end - first >= least {
            let middle = first + (end - first) / 2;
            if end - first <= areas.most[size as usize] {
                made = attempt(areas, first, end);
            } else if node < middle {
                end = middle;
            } else {
                first = middle;
            }
        }
        let Some((first, end, block)) = made else {
            return;
        };
        growth.tables += 1;
        growth.frames += end - first;
        let mut area = Area {
            size,
            range: cluster.intersection(VirtRange {
                start: node_start(first, size),
                end: node_start(end, size),
            }),
            first,
            nodes: end - first,
            block,
            used: 0,
        };
        growth.copied += self.move_nodes(&mut area);
        let Some(areas) = &mut self.areas else {
            return;
        };
        let replaced = |old: &mut Area| old.size == size && old.first < end && first < old.end();
        let old: Vec<Area> = areas.list.extract_if(.., replaced).collect();
        for old in &old {
            areas.release(old);
        }
        areas.list.push(area);
    }

    /// Moves the nodes that an area has places for into it; how many.
    fn move_nodes(&mut self, area: &mut Area) -> u64 {
        let above = size_at(height_of(area.size) + 1);
        for number in area.first..area.end() {
            let Some((parent, index)) = self.find(node_start(number, area.size), above) else {
                continue;
            };
            let entry = self.entry(parent, index);
            if !entry.has(PRESENT) || entry.has(LEAF) {
                continue;
            }
            let (child, frame) = (entry.child(), area.slot(number));
            let old = std::mem::replace(&mut self.frames[child], frame);
            self.set(parent, index, Entry::node(frame, child));
            area.used += 1;
            if let Some(areas) = &mut self.areas
                && !areas.has_frame(old)
            {
                areas.released.push(old);
            }
        }
        area.used
    }

    /// Gives up areas without nodes of whose range nothing is mapped.
    pub(crate) fn release_areas(&mut self, is_mapped: impl Fn(VirtRange) -> bool) {
        let Some(areas) = &mut self.areas else {
            return;
        };
        let unused = |area: &mut Area| area.used == 0 && !is_mapped(area.range);
        let gone: Vec<Area> = areas.list.extract_if(.., unused).collect();
        if !gone.is_empty() {
            areas.most = [u64::MAX; SIZES.len()];
        }
        for area in &gone {
            areas.release(area);
        }
    }

    /// Frames of areas that are not needed any more, and of nodes that have moved into one, since the last call; and
    /// those that go back to the host.
    pub(crate) fn take_area_frames(&mut self) -> (Vec<Frame>, Vec<(Frame, u64)>) {
        let areas = self.areas.as_mut();
        areas.map_or_else(Default::default, |areas| {
            let released = std::mem::take(&mut areas.released);
            (released, std::mem::take(&mut areas.returned))
        })
    }

    /// Checks that a node lies in its place in an area, if there is one for it, and nowhere else in areas.
    pub(super) fn validate_areas(&self) -> Result<(), String> {
        let Some(areas) = &self.areas else {
            return Ok(());
        };
        let mut used = vec![0; areas.list.len()];
        let mut open = vec![(0, self.top(), 0_u64)];
        while let Some((node, height, start)) = open.pop() {
            let frame = self.frames[node];
            let number = start >> shift_of(height + 1);
            let is_place = |area: &Area| height_of(area.size) == height && area.has_node(number);
            match areas.list.iter().position(is_place) {
                Some(at) if areas.list[at].slot(number) != frame => {
                    return Err(format!("node {node} lies outside of its area"));
                }
                Some(at) => used[at] += 1,
                None if areas.has_frame(frame) => {
                    return Err(format!("node {node} lies in an area of others"));
                }
                None => {}
            }
            for index in (0..ENTRIES).filter(|_| height > 0) {
                let entry = self.entry(node, index);
                if entry.has(PRESENT) && !entry.has(LEAF) {
                    let start = start + ((index as u64) << shift_of(height));
                    open.push((entry.child(), height - 1, start));
                }
            }
        }
        for (area, used) in areas.list.iter().zip(used) {
            if area.used != used {
                return Err(format!(
                    "{} nodes of an area are counted, {used} used",
                    area.used
                ));
            }
        }
        if areas.list.len() > areas.shape.registers as usize {
            return Err(format!("{} areas have registers", areas.list.len()));
        }
        Ok(())
    }
}
