//! Classification of a frame by its bits in `/proc/kpageflags`.
//!
//! [`classify`] is one rule for the kernels from 5.10 to 6.18, read off their sources and tried on
//! 6.1, 6.12 and 6.18. The first line that fits decides, and their order matters: a slab's frames
//! show the bits of anonymous memory on 6.18, because the word that says so holds something else
//! there, and a free block's frames may still be marked up to date.
//!
//! | | bits | class | can be moved |
//! |---|---|---|---|
//! | 1 | `NOPAGE` | hole | not memory |
//! | 2 | `HWPOISON` | poisoned | no |
//! | 3 | `BUDDY` | free | free |
//! | 4 | `OFFLINE` | offline: a balloon's, or virtio-mem's | not the kernel's |
//! | 5 | `RESERVED`; `ZERO_PAGE`; `SLAB`; `PGTABLE` | reserved; kernel; slab; page table | reserved: not the kernel's; else no |
//! | 6 | `HUGE` | `HugeTLB` | yes |
//! | 7 | `LRU`, `ANON`, `KSM`, `THP`, `SWAPCACHE`, `UNEVICTABLE`, `MLOCKED` | anonymous with `ANON`, `KSM` or `SWAPCACHE`, else page cache | yes |
//! | 8 | `MMAP`, or `SWAPBACKED` with `UPTODATE`, `LOCKED` or `DIRTY` | page cache: on its way to a list | yes |
//! | 9 | `COMPOUND_HEAD`, `COMPOUND_TAIL` | kernel | no |
//! | 10 | anything else | unexplained: kernel memory of single frames, or free on the list of one CPU | no, or free |
//!
//! Not distinguishable:
//!
//! * Line 10. Both readings are carried through all measures as bounds. A frame that is charged
//!   to a cgroup is the kernel's, not free, so `/proc/kpagecgroup` moves some to line 9.
//! * Pins. No bit of a frame says that a device may write to it; only their number is known.
//! * Before folios (5.16), the tails of a transparent huge page are on no list: `THP` says it.
//! * Holes read 0 on 6.18, like line 10, and so does memory whose initialization the kernel has
//!   put off. Frames outside `System RAM` are therefore never asked about.
//! * Reserved frames are the kernel's image, its frame table and the firmware's. They do not move,
//!   but the authors of Contiguitas leave them out of their measures, and so do these: they are never
//!   counted as unmovable, yet a block with one of them cannot become contiguous.

use contigua_contiguity::FrameKind;

/// Bits of `/proc/kpageflags` (the kernel's `include/uapi/linux/kernel-page-flags.h`, and from 32
/// on, `include/linux/kernel-page-flags.h`).
pub mod bit {
    macro_rules! bits {
        ($($(#[$meta:meta])* $name:ident = $number:literal;)*) => {
            $($(#[$meta])* pub const $name: u64 = 1 << $number;)*
            /// Bits that have a meaning on some kernel that is known here.
            pub const KNOWN: u64 = $($name)|*;
        };
    }
    bits! {
        /// Locked, for instance during I/O.
        LOCKED = 0;
        /// Input or output failed.
        ERROR = 1;
        /// Used of late.
        REFERENCED = 2;
        /// Its contents are those of the file.
        UPTODATE = 3;
        /// To be written back.
        DIRTY = 4;
        /// On a list of pages that can be reclaimed.
        LRU = 5;
        /// On the active one.
        ACTIVE = 6;
        /// Kernel objects.
        SLAB = 7;
        /// Being written back.
        WRITEBACK = 8;
        /// To be reclaimed as soon as it is written.
        RECLAIM = 9;
        /// Free, on the allocator's lists.
        BUDDY = 10;
        /// Mapped into a process.
        MMAP = 11;
        /// Anonymous memory.
        ANON = 12;
        /// In the swap cache.
        SWAPCACHE = 13;
        /// Backed by swap rather than by a file.
        SWAPBACKED = 14;
        /// First frame of a block of several.
        COMPOUND_HEAD = 15;
        /// Another frame of such a block.
        COMPOUND_TAIL = 16;
        /// A page of `HugeTLB`.
        HUGE = 17;
        /// Cannot be reclaimed.
        UNEVICTABLE = 18;
        /// Broken hardware.
        HWPOISON = 19;
        /// No memory.
        NOPAGE = 20;
        /// Merged with pages of the same contents.
        KSM = 21;
        /// A transparent huge page, of any size from 6.9 on.
        THP = 22;
        /// Taken away by a balloon or by virtio-mem.
        OFFLINE = 23;
        /// The page of zeros.
        ZERO_PAGE = 24;
        /// Not used since somebody began to watch.
        IDLE = 25;
        /// A page table.
        PGTABLE = 26;
        /// Set aside at boot.
        RESERVED = 32;
        /// Locked by a program.
        MLOCKED = 33;
        /// Its owner's.
        OWNER_2 = 34;
        /// Its owner's.
        PRIVATE = 35;
        /// Its owner's.
        PRIVATE_2 = 36;
        /// Its owner's.
        OWNER_PRIVATE = 37;
        /// The architecture's.
        ARCH = 38;
        /// Mapped without caching.
        UNCACHED = 39;
        /// Written since somebody asked.
        SOFTDIRTY = 40;
        /// The architecture's.
        ARCH_2 = 41;
        /// The architecture's.
        ARCH_3 = 42;
    }
}

/// Class of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Class {
    /// On the allocator's free lists.
    Free,
    /// Memory of programs, in base pages or in blocks below 2 MB.
    Anonymous,
    /// Files and shared memory, in base pages or in blocks below 2 MB.
    PageCache,
    /// A transparent huge page of 2 MB, of programs or of files.
    Thp,
    /// `HugeTLB`, given to a program or not.
    HugeTlb,
    /// Kernel objects.
    Slab,
    /// Page tables.
    PageTable,
    /// Other memory of the kernel: blocks of several frames, or what is charged to a cgroup.
    Kernel,
    /// Kernel memory of a single frame, or free on the list of one CPU.
    Unexplained,
    /// Broken hardware.
    Poisoned,
    /// Set aside at boot.
    Reserved,
    /// In no use: its memory block is offline, or a balloon or virtio-mem has it.
    Offline,
    /// No memory.
    Hole,
    /// Memory that vanished, or failed to be read, during the scan.
    Unread,
}

impl Class {
    /// All classes, by value.
    pub const ALL: [Self; 14] = [
        Self::Free,
        Self::Anonymous,
        Self::PageCache,
        Self::Thp,
        Self::HugeTlb,
        Self::Slab,
        Self::PageTable,
        Self::Kernel,
        Self::Unexplained,
        Self::Poisoned,
        Self::Reserved,
        Self::Offline,
        Self::Hole,
        Self::Unread,
    ];

    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Anonymous => "anonymous",
            Self::PageCache => "page cache",
            Self::Thp => "transparent huge",
            Self::HugeTlb => "HugeTLB",
            Self::Slab => "slab",
            Self::PageTable => "page table",
            Self::Kernel => "other kernel",
            Self::Unexplained => "kernel or CPU-free",
            Self::Poisoned => "poisoned",
            Self::Reserved => "reserved",
            Self::Offline => "offline",
            Self::Hole => "hole",
            Self::Unread => "not read",
        }
    }

    /// The name in metrics and columns.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Anonymous => "anonymous",
            Self::PageCache => "page_cache",
            Self::Thp => "thp",
            Self::HugeTlb => "hugetlb",
            Self::Slab => "slab",
            Self::PageTable => "page_table",
            Self::Kernel => "kernel",
            Self::Unexplained => "unexplained",
            Self::Poisoned => "poisoned",
            Self::Reserved => "reserved",
            Self::Offline => "offline",
            Self::Hole => "hole",
            Self::Unread => "unread",
        }
    }

    /// Mobility of the frame at the worst: unexplained frames count as unmovable.
    #[must_use]
    pub const fn kind(self) -> FrameKind {
        match self {
            Self::Free => FrameKind::Free,
            Self::Anonymous | Self::PageCache | Self::Thp | Self::HugeTlb => FrameKind::Movable,
            Self::Slab | Self::PageTable | Self::Kernel | Self::Unexplained | Self::Poisoned => {
                FrameKind::Unmovable
            }
            Self::Reserved | Self::Offline | Self::Hole | Self::Unread => FrameKind::Reserved,
        }
    }

    /// Returns true if a frame of this class keeps its block from becoming contiguous, though it is
    /// memory.
    #[must_use]
    pub const fn pollutes(self) -> bool {
        matches!(self.kind(), FrameKind::Unmovable)
            || matches!(self, Self::Reserved | Self::Offline | Self::Unread)
    }

    /// Mobility of the frame at the best: unexplained frames count as free.
    #[must_use]
    pub const fn best_kind(self) -> FrameKind {
        match self {
            Self::Unexplained => FrameKind::Free,
            _ => self.kind(),
        }
    }

    /// The class of a value.
    #[must_use]
    pub fn from_value(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }
}

/// Returns the class of a frame with these bits; see the module's table. [`Class::Thp`] takes more
/// than one frame to tell ([`classify_block`]).
#[inline]
#[must_use]
pub const fn classify(flags: u64) -> Class {
    const LISTED: u64 = bit::LRU
        | bit::ANON
        | bit::KSM
        | bit::THP
        | bit::SWAPCACHE
        | bit::UNEVICTABLE
        | bit::MLOCKED;
    const WRITTEN: u64 = bit::UPTODATE | bit::LOCKED | bit::DIRTY;
    const fn any(flags: u64, of: u64) -> bool {
        flags & of != 0
    }
    if any(flags, bit::NOPAGE) {
        Class::Hole
    } else if any(flags, bit::HWPOISON) {
        Class::Poisoned
    } else if any(flags, bit::BUDDY) {
        Class::Free
    } else if any(flags, bit::OFFLINE) {
        Class::Offline
    } else if any(flags, bit::RESERVED) {
        Class::Reserved
    } else if any(flags, bit::ZERO_PAGE) {
        Class::Kernel
    } else if any(flags, bit::SLAB) {
        Class::Slab
    } else if any(flags, bit::PGTABLE) {
        Class::PageTable
    } else if any(flags, bit::HUGE) {
        Class::HugeTlb
    } else if any(flags, LISTED) {
        if any(flags, bit::ANON | bit::KSM | bit::SWAPCACHE) {
            Class::Anonymous
        } else {
            Class::PageCache
        }
    } else if any(flags, bit::MMAP) || any(flags, bit::SWAPBACKED) && any(flags, WRITTEN) {
        Class::PageCache
    } else if any(flags, bit::COMPOUND_HEAD | bit::COMPOUND_TAIL) {
        Class::Kernel
    } else {
        Class::Unexplained
    }
}

/// Returns true if an aligned block of 2 MB is one transparent huge page: a head and nothing but
/// its tails.
///
/// Linux marks smaller blocks of a file or program with the same bit from 6.9 on; `meminfo` does
/// not count those as huge.
#[must_use]
pub fn is_huge(block: &[u64]) -> bool {
    let [head, tails @ ..] = block else {
        return false;
    };
    let part = bit::COMPOUND_HEAD | bit::COMPOUND_TAIL;
    head & bit::THP != 0
        && head & part == bit::COMPOUND_HEAD
        && matches!(classify(*head), Class::Anonymous | Class::PageCache)
        && tails.iter().all(|flags| flags & part == bit::COMPOUND_TAIL)
}

/// The classes of the frames of an aligned block of 2 MB, or of what there is of one.
pub fn classify_block(flags: &[u64], mut each: impl FnMut(Class)) {
    const FRAMES: usize = 512;
    if flags.len() == FRAMES && is_huge(flags) {
        // A single frame of it may be broken.
        for &flags in flags {
            each(match classify(flags) {
                Class::Anonymous | Class::PageCache | Class::Kernel => Class::Thp,
                class => class,
            });
        }
    } else {
        for &flags in flags {
            each(classify(flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table, line by line: numbers of bits, and what they make.
    fn naive(flags: u64) -> Class {
        let has = |names: &[u32]| names.iter().any(|&name| (flags >> name) & 1 == 1);
        let table: [(bool, Class); 15] = [
            (has(&[20]), Class::Hole),
            (has(&[19]), Class::Poisoned),
            (has(&[10]), Class::Free),
            (has(&[23]), Class::Offline),
            (has(&[32]), Class::Reserved),
            (has(&[24]), Class::Kernel),
            (has(&[7]), Class::Slab),
            (has(&[26]), Class::PageTable),
            (has(&[17]), Class::HugeTlb),
            (has(&[12, 21, 13]), Class::Anonymous),
            (has(&[5, 22, 18, 33]), Class::PageCache),
            (has(&[11]), Class::PageCache),
            (has(&[14]) && has(&[3, 0, 4]), Class::PageCache),
            (has(&[15, 16]), Class::Kernel),
            (true, Class::Unexplained),
        ];
        let found = table.into_iter().find(|&(fits, _)| fits);
        found.map_or(Class::Unexplained, |(_, class)| class)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(4096)))]
        #[test]
        fn the_first_line_that_fits_decides(dense in any::<u64>(), mask in any::<u64>(), more in any::<u64>()) {
            for flags in [dense, dense & mask, dense & mask & more, dense & !bit::KNOWN] {
                prop_assert_eq!(classify(flags), naive(flags));
            }
        }
    }

    #[test]
    fn pairs_of_bits_and_all_single_bits_are_as_the_table_says() {
        for one in 0..64 {
            for two in 0..64 {
                let flags = (1_u64 << one) | (1_u64 << two);
                assert_eq!(classify(flags), naive(flags), "{one} {two}");
            }
        }
        assert_eq!(classify(0), Class::Unexplained);
        assert_eq!(classify(bit::SLAB | bit::ANON | bit::KSM), Class::Slab);
        assert_eq!(classify(bit::BUDDY | bit::UPTODATE), Class::Free);
    }

    #[test]
    fn bits_beyond_those_that_are_known_do_not_matter_but_are_told_apart() {
        assert_eq!(bit::KNOWN & (1 << 63), 0);
        assert_eq!(bit::KNOWN & (1 << 27), 0);
        assert_eq!(classify(bit::LRU | 1 << 63), Class::PageCache);
    }

    #[test]
    fn a_huge_page_is_a_head_and_its_tails() {
        let classes = |flags: &[u64]| {
            let mut classes = Vec::new();
            classify_block(flags, |class| classes.push(class));
            classes
        };
        // As 6.18 shows it, with the list's bit on the tails, and as 5.10 does, without.
        for tail in [
            bit::COMPOUND_TAIL | bit::THP | bit::LRU | bit::ANON,
            bit::COMPOUND_TAIL | bit::THP,
        ] {
            let mut block = vec![tail; 512];
            block[0] = bit::COMPOUND_HEAD | bit::THP | bit::LRU | bit::ANON;
            assert_eq!(classes(&block), vec![Class::Thp; 512]);
            block[7] |= bit::HWPOISON;
            assert_eq!(classes(&block)[7], Class::Poisoned);
            // A frame is a head or a tail.
            let mut odd = block.clone();
            odd[9] |= bit::COMPOUND_HEAD;
            assert!(!classes(&odd).contains(&Class::Thp));
            // Two blocks of 1 MB are no huge page.
            block[256] = block[0];
            assert!(!classes(&block).contains(&Class::Thp));
            assert!(!classes(&block[..511]).contains(&Class::Thp));
        }
        let mut hugetlb = vec![bit::HUGE | bit::COMPOUND_TAIL; 512];
        hugetlb[0] = bit::HUGE | bit::COMPOUND_HEAD;
        assert_eq!(classes(&hugetlb), vec![Class::HugeTlb; 512]);
    }

    #[test]
    fn values_and_classes_convert_both_ways() {
        for (value, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, value);
            assert_eq!(Class::from_value(value as u8), Some(class));
        }
        assert_eq!(Class::from_value(14), None);
    }
}
