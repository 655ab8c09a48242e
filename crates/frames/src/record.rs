//! Record of a frame, in 16 bytes.

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order, VirtPage};

/// Names a group: an index into the records that the caller supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Group(pub u16);

/// Use of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
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
    /// Buffers in which file systems compress and decompress.
    FileSystem,
    /// Other memory of the kernel.
    KernelOther,
    /// Not available to the allocator.
    Reserved,
}

impl FrameClass {
    /// All classes.
    pub const ALL: [Self; 9] = [
        Self::Free,
        Self::Anonymous,
        Self::PageCache,
        Self::PageTable,
        Self::Slab,
        Self::NetworkBuffer,
        Self::FileSystem,
        Self::KernelOther,
        Self::Reserved,
    ];

    /// Its name, as reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Anonymous => "anonymous",
            Self::PageCache => "page_cache",
            Self::PageTable => "page_table",
            Self::Slab => "slab",
            Self::NetworkBuffer => "network_buffer",
            Self::FileSystem => "file_system",
            Self::KernelOther => "kernel_other",
            Self::Reserved => "reserved",
        }
    }

    /// Mobility of frames of this class (Contiguitas, section 2.5: network buffers, slab,
    /// file-system buffers and page tables are unmovable on servers).
    #[must_use]
    pub const fn kind(self) -> FrameKind {
        match self {
            Self::Free => FrameKind::Free,
            Self::Anonymous | Self::PageCache => FrameKind::Movable,
            Self::PageTable
            | Self::Slab
            | Self::NetworkBuffer
            | Self::FileSystem
            | Self::KernelOther => FrameKind::Unmovable,
            Self::Reserved => FrameKind::Reserved,
        }
    }

    /// Returns true if Contiguitas' hardware can move such a frame while it is in use: its
    /// translation can change although its access cannot be blocked (Contiguitas, section 2.1, the
    /// second type). Frames that the kernel reaches through its linear map stay.
    #[must_use]
    pub const fn is_hardware_movable(self) -> bool {
        matches!(self, Self::NetworkBuffer)
    }

    /// Returns true if nothing can move such a frame while it is in use.
    pub(crate) const fn stays(self) -> bool {
        matches!(self.kind(), FrameKind::Unmovable) && !self.is_hardware_movable()
    }
}

/// Page and address space that a frame backs: the reverse mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Owner {
    /// Number of the address space.
    pub space: u16,
    /// The page, below 2^36 (a 48-bit address space).
    pub page: VirtPage,
}

/// The state of one frame. Only the first frame of a block has a meaningful one.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct FrameRecord {
    /// Neighbors in a list (free, per-CPU or grouped block), or the owner.
    link: u64,
    /// Number of users that share an allocated block.
    references: u16,
    /// The group of a grouped block.
    group: u16,
    class: FrameClass,
    order: u8,
    role: Role,
    flags: u8,
}

/// Role of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) enum Role {
    /// A frame within a block, described by the block's first frame.
    #[default]
    Inside,
    /// First frame of a free block.
    Free,
    /// A free frame that a CPU keeps at hand.
    PerCpu,
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

/// The block is in a group, and `link` holds its neighbors there.
const GROUPED: u8 = 1;
/// A device uses the block: it must not move, whatever its class.
const PINNED: u8 = 2;
/// The block was used since reclaim last looked at it.
const REFERENCED: u8 = 4;
/// Reclaim has passed the block over because it was used: it is part of a working set.
const WORKING_SET: u8 = 8;

impl FrameRecord {
    pub(crate) fn linked(role: Role, order: Order) -> Self {
        let mut record = Self {
            role,
            order: order.get(),
            ..Self::default()
        };
        record.unlink();
        record
    }

    pub(crate) fn allocated(order: Order, class: FrameClass) -> Self {
        Self {
            references: 1,
            class,
            order: order.get(),
            role: Role::Allocated,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    #[inline]
    pub(crate) fn order(&self) -> Order {
        Order::new(self.order)
    }

    pub(crate) fn set_order(&mut self, order: Order) {
        self.order = order.get();
    }

    pub(crate) fn class(&self) -> FrameClass {
        self.class
    }

    pub(crate) fn references(&self) -> u32 {
        u32::from(self.references)
    }

    /// Changes the number of users; says whether it could be stored.
    pub(crate) fn set_references(&mut self, references: u32) -> bool {
        let stored = u16::try_from(references);
        self.references = stored.unwrap_or(self.references);
        stored.is_ok()
    }

    /// Mobility of a frame of this block.
    pub(crate) fn kind(&self) -> FrameKind {
        if self.flags & PINNED != 0 {
            FrameKind::Unmovable
        } else {
            self.class.kind()
        }
    }

    /// Returns true if its move can be reported: one user has it, and its place in that user's
    /// table or group is known.
    fn can_be_followed(&self) -> bool {
        self.role == Role::Allocated
            && self.references == 1
            && (self.flags & GROUPED != 0 || self.link & OWNED != 0)
    }

    /// Returns true if software can move it.
    pub(crate) fn can_move(&self) -> bool {
        self.kind() == FrameKind::Movable && self.can_be_followed()
    }

    /// Returns true if hardware could move it although software cannot.
    pub(crate) fn can_move_in_use(&self) -> bool {
        self.can_be_followed() && self.is_in_use_movable()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.flags & PINNED != 0
    }

    pub(crate) fn set_pinned(&mut self, pinned: bool) {
        self.flags = self.flags & !PINNED | if pinned { PINNED } else { 0 };
    }

    pub(crate) fn is_referenced(&self) -> bool {
        self.flags & REFERENCED != 0
    }

    pub(crate) fn is_working_set(&self) -> bool {
        self.flags & WORKING_SET != 0
    }

    pub(crate) fn set_working_set(&mut self) {
        self.flags |= WORKING_SET;
    }

    pub(crate) fn set_referenced(&mut self, referenced: bool) {
        self.flags = self.flags & !REFERENCED | if referenced { REFERENCED } else { 0 };
    }

    pub(crate) fn group(&self) -> Option<Group> {
        (self.flags & GROUPED != 0).then_some(Group(self.group))
    }

    /// Puts the block in a group, between nobody, or takes it out.
    pub(crate) fn set_group(&mut self, group: Option<Group>) {
        if let Some(group) = group {
            self.group = group.0;
            self.flags |= GROUPED;
            self.unlink();
        } else {
            self.flags &= !GROUPED;
            self.link = 0;
        }
    }

    fn unlink(&mut self) {
        self.link = u64::from(NONE) << 32 | u64::from(NONE);
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
        (self.flags & GROUPED == 0 && self.link & OWNED != 0).then(|| Owner {
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
