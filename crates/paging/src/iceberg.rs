//! Placement of pages by iceberg hashing, as Mosaic Pages use it (Gosakan and others, ASPLOS 2023): hashes of a page and
//! its space name the 104 frames in which it may lie, so that seven bits say in which of them it lies, whatever its
//! neighbors do. No contiguity is needed.
//!
//! Memory consists of buckets of 64 frames: 56 of a front yard, 8 of a back yard. A page takes a frame of the front yard of
//! one bucket; where that is full, of the back yard with the most free frames among those of six buckets, one from each
//! sixth of memory. These sizes and rules are those of the authors' kernel (`mm/iceberg.c` in
//! oscarlab/mosaic-asplos23-artifacts).
//!
//! Where all 104 frames are in use, a page of the page cache that lies in one of them and was not used lately is evicted, as
//! theirs evicts (Horizon LRU: of the pages there, that used least recently).
//!
//! Within a bucket, a page takes the first free frame from one on that a hash says, so that pages use all sets of the
//! caches; theirs takes the first of a list.
//!
//! Simplified: hashes are multiplications, theirs xxHash and, in hardware, tabulation. Buckets are all of memory, whose
//! frames others have, too; theirs were 4 GB set aside at boot. The page that is evicted is the first that may be, and there
//! is no swap: where no page may be, the page allocator places the page anywhere. Only private anonymous pages are placed
//! so: those of files, of shared memory and of parents lie anywhere, too.

use contigua_frames::{FrameClass, Request};
use contigua_units::{Frame, Order, PageSize, VirtAddr};

use crate::Error;
use crate::buckets::{BACK, BUCKET, Buckets, CHOICES, FRONT};
use crate::effects::Effects;
use crate::memory::Memory;
use crate::space::AddressSpace;
use crate::space_id::SpaceId;

impl Buckets {
    /// Takes one of the frames in which a page may lie; `None` if all are in use.
    #[must_use]
    pub fn take(self, space: SpaceId, page: u64, memory: &mut Memory) -> Option<Frame> {
        let request = Request::new(Order::BASE, FrameClass::Anonymous);
        let first = self.front(space, page)? * BUCKET;
        let from = Self::start(space, page);
        let mut front = (0..FRONT).map(|at| Frame::new(first + (from + at) % FRONT));
        let free = front.find(|&frame| memory.is_free(frame));
        if let Some(frame) = free {
            return memory.allocate_frame(frame, &request).then_some(frame);
        }
        let yards = (0..CHOICES).filter_map(|choice| self.back(space, page, choice));
        let mut best = (0, None);
        for bucket in yards {
            let first = bucket * BUCKET + FRONT;
            let free = (0..BACK).map(|at| Frame::new(first + (from + at) % BACK));
            let mut free = free.filter(|&frame| memory.is_free(frame));
            let next = free.next();
            let count = usize::from(next.is_some()) + free.count();
            if count > best.0 {
                best = (count, next);
            }
        }
        let frame = best.1?;
        memory.allocate_frame(frame, &request).then_some(frame)
    }
}

impl AddressSpace {
    /// A single frame for the page at an address: where placement is by hashes and the page is the space's own, one of
    /// those that they name.
    pub(crate) fn obtain_page(
        &mut self,
        address: VirtAddr,
        class: FrameClass,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Frame, Error> {
        if class == FrameClass::Anonymous
            && let Some(frame) = self.obtain_restricted(address, PageSize::Size4K, memory, effects)
        {
            return Ok(frame);
        }
        if class == FrameClass::Anonymous
            && let Some(buckets) = self.table.buckets()
        {
            let page = address.page().get();
            let mut frame = buckets.take(self.id, page, memory);
            if frame.is_none() {
                // Frames that were freed last are not on the free lists.
                memory.drain_per_cpu();
                frame = buckets.take(self.id, page, memory);
            }
            if frame.is_none() {
                effects.conflicts += 1;
                let mut numbers = 0..Buckets::CANDIDATES;
                let evicted = numbers.find_map(|number| {
                    let at = buckets.frame(self.id, page, number)?;
                    memory.reclaim_frame(at).then_some(at)
                });
                if evicted.is_some() {
                    frame = buckets.take(self.id, page, memory);
                }
            }
            if let Some(frame) = frame {
                return Ok(frame);
            }
            effects.misplaced += 1;
        }
        self.obtain_base(class, memory, effects)
    }
}
