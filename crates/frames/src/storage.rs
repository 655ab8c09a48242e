//! Storage of all metadata: buffers that the caller supplies.

use crate::block::{BLOCK_FRAMES, BlockRecord};
use crate::groups::GroupRecord;
use crate::ordered;
use crate::per_cpu::CpuRecord;
use crate::record::FrameRecord;

/// Numbers of elements of each buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Frames of memory: records in [`Parts::frames`].
    pub frames: usize,
    /// Pageblocks, the last perhaps partial: records in [`Parts::blocks`].
    pub blocks: usize,
    /// Words of the address-ordered index.
    pub words: usize,
    /// Groups that users can put their blocks in.
    pub groups: usize,
    /// CPUs with lists of their own.
    pub cpus: usize,
}

impl Layout {
    /// For a memory of `frames`, with room for `groups` groups and `cpus` CPUs.
    #[must_use]
    pub fn new(frames: usize, groups: usize, cpus: usize) -> Self {
        Self {
            frames,
            blocks: frames.div_ceil(BLOCK_FRAMES as usize),
            words: ordered::words(frames),
            groups,
            cpus,
        }
    }

    /// Bytes of all buffers.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.frames * size_of::<FrameRecord>()
            + self.blocks * size_of::<BlockRecord>()
            + self.words * size_of::<u64>()
            + self.groups * size_of::<GroupRecord>()
            + self.cpus * size_of::<CpuRecord>()
    }
}

/// The buffers.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// One for each frame.
    pub frames: &'a [FrameRecord],
    /// One for each pageblock.
    pub blocks: &'a [BlockRecord],
    /// The address-ordered index.
    pub words: &'a [u64],
    /// One for each group.
    pub groups: &'a [GroupRecord],
    /// One for each CPU.
    pub cpus: &'a [CpuRecord],
}

/// The buffers, to be changed.
pub struct PartsMut<'a> {
    /// One for each frame.
    pub frames: &'a mut [FrameRecord],
    /// One for each pageblock.
    pub blocks: &'a mut [BlockRecord],
    /// The address-ordered index.
    pub words: &'a mut [u64],
    /// One for each group.
    pub groups: &'a mut [GroupRecord],
    /// One for each CPU.
    pub cpus: &'a mut [CpuRecord],
}

/// Owns the buffers.
pub trait Storage {
    /// All buffers.
    fn parts(&self) -> Parts<'_>;
    /// All buffers, to be changed.
    fn parts_mut(&mut self) -> PartsMut<'_>;
}

/// Buffers in boxes.
#[cfg(feature = "alloc")]
#[derive(Clone)]
#[cfg_attr(feature = "state", derive(contigua_state::State))]
pub struct Boxed {
    #[cfg_attr(feature = "state", state(fixed))]
    frames: alloc::boxed::Box<[FrameRecord]>,
    #[cfg_attr(feature = "state", state(fixed))]
    blocks: alloc::boxed::Box<[BlockRecord]>,
    #[cfg_attr(feature = "state", state(fixed))]
    words: alloc::boxed::Box<[u64]>,
    #[cfg_attr(feature = "state", state(fixed))]
    groups: alloc::boxed::Box<[GroupRecord]>,
    #[cfg_attr(feature = "state", state(fixed))]
    cpus: alloc::boxed::Box<[CpuRecord]>,
}

#[cfg(feature = "alloc")]
impl Boxed {
    /// Buffers of a layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        fn buffer<T: Clone + Default>(length: usize) -> alloc::boxed::Box<[T]> {
            alloc::vec![T::default(); length].into_boxed_slice()
        }
        Self {
            frames: buffer(layout.frames),
            blocks: buffer(layout.blocks),
            words: buffer(layout.words),
            groups: buffer(layout.groups),
            cpus: buffer(layout.cpus),
        }
    }
}

#[cfg(feature = "alloc")]
impl Storage for Boxed {
    #[inline]
    fn parts(&self) -> Parts<'_> {
        Parts {
            frames: &self.frames,
            blocks: &self.blocks,
            words: &self.words,
            groups: &self.groups,
            cpus: &self.cpus,
        }
    }

    #[inline]
    fn parts_mut(&mut self) -> PartsMut<'_> {
        PartsMut {
            frames: &mut self.frames,
            blocks: &mut self.blocks,
            words: &mut self.words,
            groups: &mut self.groups,
            cpus: &mut self.cpus,
        }
    }
}
