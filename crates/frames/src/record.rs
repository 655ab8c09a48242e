//! What is known of a frame, in 16 bytes.

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order, VirtPage};

/// What a frame is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameClass {
    /// Nothing.
    #[default]
    Free,
    /// Anonymous memory of processes.
    Anonymous,
    /// Contents of files.
    PageCache,
    /// Page-table nodes.
    PageTable,
    /// The kernel's small objects.
    Slab,
    /// Buffers that network devices read and write.
    NetworkBuffer,
    /// Other memory of the kernel.
    KernelOther,
    /// Not available to the allocator.
    Reserved,
}

impl FrameClass {
    /// All classes.
    pub const ALL: [Self; 8] = [
        Self::Free,
        Self::Anonymous,
        Self::PageCache,
        Self::PageTable,
        Self::Slab,
        Self::NetworkBuffer,
        Self::KernelOther,
        Self::Reserved,
    ];

    /// Whether frames of this class can be moved (paper 000, section 2.5: network buffers, slab,
    /// file-system buffers and page tables are what is unmovable on servers).
    #[must_use]
    pub const fn kind(self) -> FrameKind {
        match self {
            Self::Free => FrameKind::Free,
            Self::Anonymous | Self::PageCache => FrameKind::Movable,
            Self::PageTable | Self::Slab | Self::NetworkBuffer | Self::KernelOther => {
                FrameKind::Unmovable
            }
            Self::Reserved => FrameKind::Reserved,
        }
    }
}

/// Which page of which address space a frame backs: the reverse mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of the address space.
    pub space: u16,
    /// The page, below 2^36 (a 48-bit address space).
    pub page: VirtPage,
}

/// The state of one frame. Only the first frame of a block has a meaningful one.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameRecord {
    /// Free block: previous and next block of its list. Allocated block: its owner.
    link: u64,
    /// How many users share an allocated block.
    references: u32,
    class: FrameClass,
    order: u8,
    role: Role,
}

/// What a record stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// A frame within a block, described by the block's first frame.
    #[default]
    Inside,
    /// First frame of a free block.
    Free,
    /// First frame of an allocated block.
    Allocated,
}

const _: () = assert!(size_of::<FrameRecord>() == 16);

/// Stands for "no frame" in list links.
const NONE: u32 = u32::MAX;
const SPACE_SHIFT: u32 = 40;
const PAGE_BITS: u64 = (1 << 36) - 1;
/// Marks an owner as present, so that an unowned block's link is 0.
const OWNED: u64 = 1 << 36;

impl FrameRecord {
    pub(crate) fn free(order: Order, previous: Option<Frame>, next: Option<Frame>) -> Self {
        let mut record = Self {
            link: 0,
            references: 0,
            class: FrameClass::Free,
            order: order.get(),
            role: Role::Free,
        };
        record.set_previous(previous);
        record.set_next(next);
        record
    }

    pub(crate) fn allocated(order: Order, class: FrameClass) -> Self {
        Self {
            link: 0,
            references: 1,
            class,
            order: order.get(),
            role: Role::Allocated,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn order(&self) -> Order {
        Order::new(self.order)
    }

    pub(crate) fn class(&self) -> FrameClass {
        self.class
    }

    pub(crate) fn references(&self) -> u32 {
        self.references
    }

    pub(crate) fn set_references(&mut self, references: u32) {
        self.references = references;
    }

    pub(crate) fn previous(&self) -> Option<Frame> {
        let raw = (self.link >> 32) as u32;
        (raw != NONE).then(|| Frame::new(raw))
    }

    pub(crate) fn next(&self) -> Option<Frame> {
        let raw = self.link as u32;
        (raw != NONE).then(|| Frame::new(raw))
    }

    pub(crate) fn set_previous(&mut self, frame: Option<Frame>) {
        let raw = frame.map_or(NONE, Frame::get);
        self.link = self.link & u64::from(u32::MAX) | u64::from(raw) << 32;
    }

    pub(crate) fn set_next(&mut self, frame: Option<Frame>) {
        let raw = frame.map_or(NONE, Frame::get);
        self.link = self.link & !u64::from(u32::MAX) | u64::from(raw);
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        (self.link & OWNED != 0).then(|| Owner {
            space: (self.link >> SPACE_SHIFT) as u16,
            page: VirtPage::new(self.link & PAGE_BITS),
        })
    }

    pub(crate) fn set_owner(&mut self, owner: Option<Owner>) {
        self.link = owner.map_or(0, |owner| {
            OWNED | u64::from(owner.space) << SPACE_SHIFT | owner.page.get() & PAGE_BITS
        });
    }
}
