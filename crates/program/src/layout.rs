//! Addresses that Linux 6.18 gives to mappings, for processes whose addresses are not randomized
//! (`setarch -R`).
//!
//! [`Areas`] says where a process begins to look, [`Mappings`] which addresses are taken, and
//! [`Mappings::place`] where the next mapping goes: below the mapping base, as high as there is room
//! (`unmapped_area_topdown`, `mm/vma.c`), at a multiple of 2 MB where that can make a huge page
//! (`__get_unmapped_area`, `mm/mmap.c`; `__thp_get_unmapped_area`, `mm/huge_memory.c`).

use std::collections::BTreeMap;

use crate::syscall::Architecture;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of a huge page (`PMD_SIZE`).
const HUGE: u64 = 2 << 20;
/// Bytes that the kernel maps below the interpreter: `[vvar]`, `[vvar_vclock]` and `[vdso]`
/// (`arch/x86/entry/vdso/vma.c`).
pub const VDSO: u64 = 8 * PAGE;
/// Least distance of the mapping base from the end of the addresses (`SZ_128M` in `mmap_base`,
/// `arch/x86/mm/mmap.c`).
const LEAST_GAP: u64 = 128 << 20;
/// Distance that is kept between the stack and other mappings (`stack_guard_gap`).
const STACK_GUARD: u64 = 256 * PAGE;

/// Where a process's mappings begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// Start of a position-independent program that has an interpreter.
    pub program: u64,
    /// End of the highest mapping whose address the kernel chooses.
    pub base: u64,
    /// End of the main thread's stack.
    pub stack: u64,
}

impl Areas {
    /// Areas of a program that may have a stack of `stack_limit` bytes (`RLIMIT_STACK`).
    ///
    /// QEMU and the program share one address space, in which QEMU has Linux's own places. So every
    /// area lies lower than under Linux, by a multiple of 16 TiB (48 TiB on x86-64): neither the order
    /// of mappings, nor their distances within an area, nor their alignment changes.
    #[must_use]
    pub fn of(architecture: Architecture, stack_limit: u64) -> Self {
        // Linux: 0x7fff_ffff_f000 and 0x5555_5555_4000; 0x1_0000_0000_0000 and 0xaaaa_aaaa_a000
        // (`STACK_TOP` and `ELF_ET_DYN_BASE`).
        let (stack, program) = match architecture {
            Architecture::X86_64 => (0x4fff_ffff_f000, 0x2555_5555_4000),
            Architecture::Aarch64 => (0x5000_0000_0000, 0x2aaa_aaaa_a000),
        };
        let most = stack / 6 * 5;
        let gap = stack_limit.saturating_add(STACK_GUARD);
        let base = (stack - gap.clamp(LEAST_GAP, most)) & !(PAGE - 1);
        Self {
            program,
            base,
            stack,
        }
    }
}

/// Memory behind a new mapping, as far as it decides about addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private memory without a file.
    Anonymous,
    /// A file from an offset on, on a file system with large folios (ext4, XFS, Btrfs).
    File(u64),
    /// Anything that is only page-aligned: shared memory while `shmem_enabled` is `never`, devices.
    Other,
    /// Huge pages of so many bytes (`MAP_HUGETLB`).
    HugePages(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    end: u64,
    anonymous: bool,
}

/// The addresses that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// By start. Neighbors differ, or have a gap between them.
    taken: BTreeMap<u64, Taken>,
}

impl Mappings {
    /// Takes addresses, instead of what was there.
    pub fn insert(&mut self, start: u64, end: u64, anonymous: bool) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut start, mut end) = (start, end);
        if let Some((&before, &taken)) = self.taken.range(..start).next_back()
            && taken
                == (Taken {
                    end: start,
                    anonymous,
                })
        {
            self.taken.remove(&before);
            start = before;
        }
        if let Some(&after) = self.taken.get(&end)
            && after.anonymous == anonymous
        {
            self.taken.remove(&end);
            end = after.end;
        }
        self.taken.insert(start, Taken { end, anonymous });
    }

    /// Frees addresses.
    pub fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, &taken)) = self.taken.range(..end).next_back()
            && taken.end > start
        {
            self.taken.remove(&first);
            if taken.end > end {
                self.taken.insert(end, taken);
            }
            if first < start {
                self.taken.insert(
                    first,
                    Taken {
                        end: start,
                        ..taken
                    },
                );
            }
        }
    }

    /// Returns true if `address` lies in private memory without a file.
    #[must_use]
    pub fn is_anonymous(&self, address: u64) -> bool {
        let last = self.taken.range(..=address).next_back();
        last.is_some_and(|(_, taken)| taken.end > address && taken.anonymous)
    }

    /// Address for a new mapping of `length` bytes, a multiple of the page size, below `base`; `None`
    /// where there is no room.
    #[must_use]
    pub fn place(&self, length: u64, backing: Backing, base: u64) -> Option<u64> {
        let aligned = match backing {
            Backing::Anonymous if length.is_multiple_of(HUGE) => self.huge_aligned(length, 0, base),
            Backing::File(offset) => self.huge_aligned(length, offset, base),
            Backing::HugePages(size) => return self.highest(length, size - 1, base),
            Backing::Anonymous | Backing::Other => None,
        };
        aligned.or_else(|| self.highest(length, 0, base))
    }

    /// Lowest address from `low` on for a mapping that has to end by `high` (`unmapped_area`).
    #[must_use]
    pub fn place_low(&self, length: u64, low: u64, high: u64) -> Option<u64> {
        let before = self.taken.range(..=low).next_back();
        let mut start = before.map_or(low, |(_, taken)| taken.end.max(low));
        for (&next, taken) in self.taken.range(start.min(high)..high) {
            if next - start >= length {
                break;
            }
            start = taken.end;
        }
        (start.checked_add(length)? <= high).then_some(start)
    }

    /// Address at which multiples of 2 MB in the file lie at multiples of 2 MB in memory
    /// (`__thp_get_unmapped_area`); `None` where no 2 MB do, or where there is no room for padding.
    fn huge_aligned(&self, length: u64, offset: u64, base: u64) -> Option<u64> {
        let first = offset.checked_next_multiple_of(HUGE)?;
        if offset.checked_add(length)? < first.checked_add(HUGE)? {
            return None;
        }
        let found = self.highest(length.checked_add(HUGE)?, 0, base)?;
        match offset.wrapping_sub(found) % HUGE {
            0 => Some(found + HUGE),
            up => Some(found + up),
        }
    }

    /// Address in the highest gap below `base` that is large enough (`unmapped_area_topdown`).
    fn highest(&self, length: u64, mask: u64, base: u64) -> Option<u64> {
        let room = length.checked_add(mask)?;
        let mut end = base;
        let mut lower = self.taken.range(..base).rev();
        loop {
            let next = lower.next();
            let start = next.map_or(PAGE, |(_, taken)| taken.end);
            if end.checked_sub(start).is_some_and(|gap| gap >= room) {
                return Some((end - length) & !mask);
            }
            end = end.min(*next?.0);
        }
    }
}
