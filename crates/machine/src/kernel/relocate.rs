//! Pages that move to other frames while programs and devices use them: what the kernel does for
//! it to frames and page tables. When it does what, the engine's migrations decide.

use contigua_frames::{FrameClass, Move, Owner, Request};
use contigua_paging::SpaceId;
use contigua_units::{Frame, Order, PageSize, VirtAddr};

use contigua_program::syscall::DescriptorKind;
use contigua_program::wire::{ProcessId, ThreadId};

use super::Kernel;
use crate::processors::Target;

/// A page between two frames.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
pub(crate) struct Relocation {
    pub(crate) target: Target,
    pub(crate) source: Frame,
    pub(crate) destination: Frame,
}

impl Kernel {
    /// Takes a frame for a page to move to. `None` when the page cannot move (it is not mapped in
    /// a 4 KB page of its own, is shared or in use by a device), or there is no memory.
    pub(crate) fn begin_relocation(
        &mut self,
        space: SpaceId,
        page: VirtAddr,
    ) -> Option<Relocation> {
        let slot = self.spaces.get(usize::from(space.0))?;
        let leaf = slot.as_ref()?.table().leaf(page)?;
        let owner = Owner {
            space: space.0,
            page: page.page(),
        };
        let source = leaf.frame;
        let moves = leaf.size == PageSize::Size4K
            && leaf.perforation.is_none()
            && self.memory.owner(source) == Some(owner)
            && self.memory.order(source) == Some(Order::BASE)
            && self.memory.references(source) == 1
            && !self.memory.is_pinned(source);
        let class = self.memory.class(source).filter(|_| moves)?;
        let destination = self.memory.allocate(&Request::new(Order::BASE, class))?;
        Some(Relocation {
            target: Target::Page { space, page },
            source,
            destination,
        })
    }

    /// True if handling a fault may move other pages than the one that faulted: the kernel's threads
    /// were woken, or memory is so short that it may be compacted first.
    pub(crate) fn fault_may_move(&self) -> bool {
        self.may_move_soon() || !self.memory.has_free_block(Order::HUGE_2M)
    }

    /// Takes a frame for a network buffer to move to.
    pub(crate) fn begin_buffer_relocation(&mut self, source: Frame) -> Option<Relocation> {
        let class = self.memory.class(source)?;
        if class != FrameClass::NetworkBuffer || self.memory.order(source) != Some(Order::BASE) {
            return None;
        }
        let destination = self.memory.allocate(&Request::new(Order::BASE, class))?;
        Some(Relocation {
            target: Target::Buffer,
            source,
            destination,
        })
    }

    /// Lets the page tables name the new frame. From now on the old one is nobody's.
    pub(crate) fn switch(&mut self, relocation: &Relocation) {
        let Relocation {
            target,
            source,
            destination,
        } = *relocation;
        if let Target::Page { space, page } = target {
            let moved = Move {
                owner: Owner {
                    space: space.0,
                    page: page.page(),
                },
                from: source,
                to: destination,
                order: Order::BASE,
            };
            let slot = self.spaces[usize::from(space.0)].as_mut();
            let followed = slot.is_some_and(|space| space.follow(&moved));
            debug_assert!(followed, "nothing else moves a page that migrates");
        }
        self.memory
            .transplant(source, destination)
            .expect("the destination was allocated as the source was");
        self.counters.pages_moved += 1;
    }

    /// Frees the frame that a page has left, or one that it did not go to.
    pub(crate) fn free_frame(&mut self, frame: Frame) {
        self.memory
            .free(frame)
            .expect("a frame that was taken for a migration is allocated");
    }

    /// The process of a thread, if it has begun.
    pub(crate) fn process_of(&self, thread: ThreadId) -> Option<ProcessId> {
        self.threads.get(thread.0 as usize).copied()
    }

    /// Returns the kind of a thread's descriptor, where the program has made it.
    pub(crate) fn descriptor(&self, thread: ThreadId, number: u32) -> Option<DescriptorKind> {
        self.demand.descriptor(self.process_of(thread)?, number)
    }

    /// A frame of the kernel's, for a device's buffers or tables; none without memory.
    pub(crate) fn take_for_device(&mut self, class: FrameClass) -> Option<Frame> {
        self.memory.allocate(&Request::new(Order::BASE, class))
    }

    /// Cycles of what a migration makes the kernel do.
    pub(crate) fn costs(&self) -> &crate::config::KernelCosts {
        &self.costs
    }
}
