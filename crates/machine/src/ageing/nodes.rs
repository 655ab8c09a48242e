//! The memory of a server: one node, or several of the same size, each with its own allocator, its own
//! border and its own kernel threads.
//!
//! Whoever asks runs on a node. A request is met there if it can be, else on the next node, and
//! only when no node has memory at hand is any reclaimed, first where the request came from (Linux,
//! `get_page_from_freelist` and `__alloc_pages_slowpath`; `zone_reclaim_mode` is off by default).

use contigua_frames::{Evict, FrameClass, Group, Request};
use contigua_paging::Memory;
use contigua_units::{Frame, Nanoseconds, Order};

use crate::mover::Mover;

/// A node.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) memory: Memory,
    /// Hardware that moves pages which software cannot move.
    mover: Mover,
}

/// A block on a node.
#[derive(Clone, Copy)]
pub(super) struct Place {
    node: usize,
    frame: Frame,
}

/// All nodes, and the one that runs.
#[derive(Clone)]
pub(super) struct Nodes {
    list: Vec<Node>,
    local: usize,
    /// Requests that were met on another node than the one that ran.
    remote: u64,
}

impl Nodes {
    pub(super) fn new(memories: Vec<Memory>) -> Self {
        let node = |memory| Node {
            memory,
            mover: Mover::default(),
        };
        Self {
            list: memories.into_iter().map(node).collect(),
            local: 0,
            remote: 0,
        }
    }

    /// Whoever asks next runs on this node, counted around.
    pub(super) fn run_on(&mut self, number: usize) {
        self.local = number % self.list.len();
    }

    /// Whoever asks next runs on the node after this one.
    pub(super) fn run_on_next(&mut self) {
        self.run_on(self.local + 1);
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.list.iter().map(|node| &node.memory)
    }

    pub(super) fn memories_mut(&mut self) -> impl Iterator<Item = &mut Memory> {
        self.list.iter_mut().map(|node| &mut node.memory)
    }

    pub(super) fn into_first(mut self) -> Memory {
        self.list.swap_remove(0).memory
    }

    /// The memory of the first node.
    pub(super) fn first_mut(&mut self) -> &mut Memory {
        &mut self.list[0].memory
    }

    fn here(&mut self) -> &mut Memory {
        &mut self.list[self.local].memory
    }

    /// Numbers of the nodes, the one that runs first.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.list.len();
        let local = self.local;
        (0..count).map(move |step| (local + step) % count)
    }

    /// The first that a node has, the one that runs being asked first.
    fn first<T>(&mut self, mut ask: impl FnMut(&mut Memory) -> Option<T>) -> Option<(usize, T)> {
        self.order()
            .find_map(|node| ask(&mut self.list[node].memory).map(|found| (node, found)))
    }

    fn place(&mut self, found: Option<(usize, Frame)>) -> Option<Place> {
        let (node, frame) = found?;
        self.remote += u64::from(node != self.local);
        Some(Place { node, frame })
    }

    /// Takes a block that a node has at hand.
    pub(super) fn allocate(&mut self, request: &Request) -> Option<Place> {
        let found = self.first(|memory| memory.allocate(request));
        self.place(found)
    }

    /// Takes a block, and reclaims where none is at hand.
    pub(super) fn allocate_or_reclaim(&mut self, request: &Request) -> Option<Place> {
        let at_hand = if self.list.len() > 1 {
            self.first(|memory| memory.allocate(request))
        } else {
            None
        };
        let found =
            at_hand.or_else(|| self.first(|memory| memory.allocate_or_reclaim(request, &mut ())));
        self.place(found)
    }

    /// Takes an aligned block, whatever has to move for it.
    pub(super) fn allocate_contiguous(&mut self, order: Order, class: FrameClass) -> bool {
        self.first(|memory| memory.allocate_contiguous(order, class, &mut ()))
            .is_some()
    }

    /// Lets a device hold a block, and says whether it can.
    pub(super) fn pin(&mut self, place: Place) -> bool {
        let memory = &mut self.list[place.node].memory;
        memory.pin(place.frame, &mut ()).is_ok()
    }

    pub(super) fn touch(&mut self, place: Place) {
        let _ = self.list[place.node].memory.touch(place.frame);
    }

    pub(super) fn free_oldest(&mut self, group: Group) -> Option<u32> {
        Some(self.first(|memory| memory.free_oldest(group))?.1)
    }

    pub(super) fn free_newest(&mut self, group: Group) -> Option<u32> {
        Some(self.first(|memory| memory.free_newest(group))?.1)
    }

    pub(super) fn frames_in(&self, group: Group) -> u64 {
        self.memories()
            .map(|memory| u64::from(memory.frames_in(group)))
            .sum()
    }

    pub(super) fn frames_of(&self, class: FrameClass) -> u64 {
        self.memories().map(|memory| memory.frames_of(class)).sum()
    }

    pub(super) fn total(&self) -> u64 {
        self.memories().map(|memory| memory.total()).sum()
    }

    pub(super) fn free_frames(&self) -> u64 {
        self.memories().map(|memory| memory.free_frames()).sum()
    }

    pub(super) fn remote(&self) -> u64 {
        self.remote
    }

    pub(super) fn want_compaction(&mut self, order: Order) {
        self.here().want_compaction(order);
    }

    pub(super) fn refault(&mut self, group: Group, frames: u32) {
        self.here().refault(group, frames);
    }

    pub(super) fn stall(&mut self, request: &Request, time: Nanoseconds) {
        self.here().stall(request, time);
    }

    pub(super) fn forget_evicted(&mut self, group: Group) {
        for memory in self.memories_mut() {
            memory.forget_evicted(group);
        }
    }

    pub(super) fn set_evict(&mut self, group: Group, evict: Evict) {
        for memory in self.memories_mut() {
            memory.set_evict(group, evict);
        }
    }

    pub(super) fn set_cpu(&mut self, cpu: usize) {
        for memory in self.memories_mut() {
            memory.set_cpu(cpu);
        }
    }

    pub(super) fn has_background_work(&self) -> bool {
        self.memories().any(|memory| memory.has_background_work())
    }

    pub(super) fn is_clearing(&self) -> bool {
        self.memories().any(|memory| memory.is_clearing())
    }

    /// Lets each node's threads do what is due, and hardware move what they want moved.
    pub(super) fn background(&mut self, now: Nanoseconds) {
        for node in &mut self.list {
            node.memory.background(now, &mut ());
            node.mover.run_until(now, &mut node.memory, &mut ());
        }
    }

    /// Lets hardware move until then.
    pub(super) fn move_until(&mut self, now: Nanoseconds) {
        for node in &mut self.list {
            node.mover.run_until(now, &mut node.memory, &mut ());
        }
    }

    /// Ends what hardware moves, and gives back what CPUs keep at hand.
    pub(super) fn settle(&mut self) {
        for node in &mut self.list {
            node.mover.finish(&mut node.memory, &mut ());
            node.memory.drain_per_cpu();
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        self.list.iter().enumerate().try_for_each(|(number, node)| {
            let checked = node.memory.validate();
            checked.map_err(|problem| format!("node {number}: {problem}"))
        })
    }
}
