//! Addresses that Linux gives to mappings.
//!
//! [`Layout`] says by which version's rules, and whether addresses are randomized; [`Areas`] where a process
//! begins to look, [`Mappings`] which addresses are taken, and [`Mappings::place`] where the next mapping
//! goes: below the mapping base, as high as there is room (`unmapped_area_topdown`, `mm/vma.c`), at a
//! multiple of 2 MB where that can make a huge page (`__get_unmapped_area`, `mm/mmap.c`;
//! `__thp_get_unmapped_area`, `mm/huge_memory.c`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::syscall::Architecture;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of a huge page (`PMD_SIZE`).
const HUGE: u64 = 2 << 20;
/// Least distance of the mapping base from the end of the addresses (`SZ_128M` in `mmap_base`,
/// `arch/x86/mm/mmap.c`).
const LEAST_GAP: u64 = 128 << 20;
/// Distance that is kept between the stack and other mappings (`stack_guard_gap`).
const STACK_GUARD: u64 = 256 * PAGE;

/// A version of Linux, as far as it decides about addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Linux {
    /// Before THP alignment of memory without a file.
    #[serde(rename = "6.1")]
    V6_1,
    /// All of 2 MB and more is aligned (commit efa7df3e3bb5, in 6.7); `MAP_STACK` has no huge pages
    /// (c4608d1bf7c6, in 6.7).
    #[serde(rename = "6.8")]
    V6_8,
    /// Only whole huge pages are aligned (d4148aeab412, in 6.12).
    #[serde(rename = "6.12")]
    V6_12,
    /// The vDSO has two pages more below it.
    #[default]
    #[serde(rename = "6.18")]
    V6_18,
}

impl Linux {
    /// All versions, the oldest first.
    pub const ALL: [Self; 4] = [Self::V6_1, Self::V6_8, Self::V6_12, Self::V6_18];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_8 => "6.8",
            Self::V6_12 => "6.12",
            Self::V6_18 => "6.18",
        }
    }

    /// Returns true if mappings with `MAP_STACK` may have huge pages (`calc_vm_flag_bits`,
    /// `include/linux/mman.h`).
    #[must_use]
    pub fn stacks_may_be_huge(self) -> bool {
        self < Self::V6_8
    }

    /// Bytes of the kernel's own mappings in every process: `[vvar]`, `[vvar_vclock]` and `[vdso]`
    /// (`arch/x86/entry/vdso/vma.c`, `vdso-layout.lds.S`).
    #[must_use]
    pub fn vdso(self) -> u64 {
        let pages = if self < Self::V6_18 { 6 } else { 8 };
        pages * PAGE
    }

    /// Returns true if private memory of so many bytes without a file is aligned for huge pages.
    fn aligns(self, length: u64) -> bool {
        match self {
            Self::V6_1 => false,
            Self::V6_8 => length >= HUGE,
            Self::V6_12 | Self::V6_18 => length.is_multiple_of(HUGE),
        }
    }
}

/// Shared memory that is aligned for huge pages (`shmem_get_unmapped_area`, `mm/shmem.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AlignedShmem {
    /// None: `shmem_enabled` is `never` or `deny`.
    #[default]
    None,
    /// Memory of `MAP_SHARED`, `shmget` and `memfd_create`: it is `advise`, `within_size` or `always`.
    Unmounted,
    /// Files of a mounted `tmpfs`, too: it is `force`.
    All,
}

impl AlignedShmem {
    const ALL: [Self; 3] = [Self::None, Self::Unmounted, Self::All];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unmounted => "unmounted",
            Self::All => "all",
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Choice of a program's addresses. As text `6.18`, with a seed `6.18+1`, with aligned shared memory
/// `6.18/all` or `6.18+1/all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Layout {
    /// The version of Linux whose rules hold.
    pub linux: Linux,
    /// Seed of a program whose addresses are randomized; `None`: they are not (`setarch -R`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Shared memory that is aligned for huge pages.
    #[serde(skip_serializing_if = "AlignedShmem::is_none")]
    pub aligned_shmem: AlignedShmem,
}

impl Layout {
    /// Returns true if the kernel's own mappings lie above the stack (`map_vdso_randomized`), and not below
    /// the interpreter.
    #[must_use]
    pub fn vdso_follows_stack(self) -> bool {
        self.seed.is_some() && self.linux < Linux::V6_12
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.linux.name())?;
        if let Some(seed) = self.seed {
            write!(f, "+{seed}")?;
        }
        if !self.aligned_shmem.is_none() {
            write!(f, "/{}", self.aligned_shmem.name())?;
        }
        Ok(())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text}: not a layout of addresses, such as 6.18, 6.18+1 or 6.18+1/all");
        let (rest, aligned) = text.split_once('/').unwrap_or((text, "none"));
        let (name, seed) = match rest.split_once('+') {
            Some((name, seed)) => (name, Some(seed.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let linux = Linux::ALL.into_iter().find(|linux| linux.name() == name);
        let mut known = AlignedShmem::ALL.into_iter();
        let aligned_shmem = known.find(|known| known.name() == aligned);
        Ok(Self {
            linux: linux.ok_or_else(wrong)?,
            seed,
            aligned_shmem: aligned_shmem.ok_or_else(wrong)?,
        })
    }
}

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
    /// Areas of a program that may have a stack of `stack_limit` bytes (`RLIMIT_STACK`). Each `process` of
    /// a seed has others.
    ///
    /// QEMU and the program share one address space, in which QEMU has Linux's own places. So every
    /// area lies lower than under Linux, by a multiple of 16 TiB (48 TiB on x86-64): neither the order
    /// of mappings, nor their distances within an area, nor their alignment changes.
    #[must_use]
    pub fn of(
        architecture: Architecture,
        stack_limit: u64,
        seed: Option<u64>,
        process: u32,
    ) -> Self {
        // Linux: 0x7fff_ffff_f000 and 0x5555_5555_4000; 0x1_0000_0000_0000 and 0xaaaa_aaaa_a000
        // (`STACK_TOP` and `ELF_ET_DYN_BASE`).
        let (top, program) = match architecture {
            Architecture::X86_64 => (0x4fff_ffff_f000, 0x2555_5555_4000),
            Architecture::Aarch64 => (0x5000_0000_0000, 0x2aaa_aaaa_a000),
        };
        let random = seed.map(|seed| Random::of(architecture, seed, process));
        let most = top / 6 * 5;
        let pad = STACK_GUARD + random.map_or(0, |random| random.most_stack);
        let gap = stack_limit.saturating_add(pad).clamp(LEAST_GAP, most);
        let Random {
            program: up,
            base: down,
            stack,
            ..
        } = random.unwrap_or_default();
        Self {
            program: program + up,
            base: (top - gap - down) & !(PAGE - 1),
            stack: top - stack,
        }
    }
}

/// Distances by which a program's areas are moved, in bytes.
#[derive(Clone, Copy, Default)]
struct Random {
    /// Upwards (`arch_mmap_rnd` in `load_elf_binary`, `fs/binfmt_elf.c`).
    program: u64,
    /// Downwards (`arch_mmap_rnd` in `arch_pick_mmap_layout`).
    base: u64,
    /// Downwards (`randomize_stack_top`, `mm/util.c`).
    stack: u64,
    /// The most that the stack can be moved by: the mapping base keeps so much distance
    /// (`stack_maxrandom_size`, `arch/x86/mm/mmap.c`; `mmap_base`, `mm/util.c`).
    most_stack: u64,
}

impl Random {
    fn of(architecture: Architecture, seed: u64, process: u32) -> Self {
        // Pages, by bits: `CONFIG_ARCH_MMAP_RND_BITS`, which is the least in `arch/x86/Kconfig` and
        // `arch/arm64/Kconfig` (`vm.mmap_rnd_bits`), and `STACK_RND_MASK` in both `asm/elf.h`.
        let (mapping_bits, stack_bits) = match architecture {
            Architecture::X86_64 => (28, 22),
            Architecture::Aarch64 => (18, 18),
        };
        let mut state = mixed(seed) ^ u64::from(process);
        let mut pages = |bits: u32| {
            state = mixed(state);
            (state >> (u64::BITS - bits)) * PAGE
        };
        Self {
            program: pages(mapping_bits),
            base: pages(mapping_bits),
            stack: pages(stack_bits),
            most_stack: ((1 << stack_bits) - 1) * PAGE,
        }
    }
}

/// Step and finalizer of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
const fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Memory behind a new mapping, as far as it decides about addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private memory without a file.
    Anonymous,
    /// A file from an offset on, on a file system with large folios (ext4, XFS, Btrfs).
    File(u64),
    /// Shared memory from an offset on, which is aligned.
    Shmem(u64),
    /// Anything that is only page-aligned: other shared memory, devices.
    Other,
    /// Huge pages of so many bytes (`MAP_HUGETLB`).
    HugePages(u64),
}

/// Kind of a mapping, as far as later calls for it need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private memory without a file.
    Anonymous,
    /// Huge pages of so many bytes (`HugeTLB`).
    HugePages(u64),
    /// Anything else.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    end: u64,
    kind: Kind,
}

/// The addresses that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    linux: Linux,
    /// By start. Neighbors differ, or have a gap between them.
    taken: BTreeMap<u64, Taken>,
}

impl Mappings {
    /// No mappings, under a version of Linux.
    #[must_use]
    pub fn new(linux: Linux) -> Self {
        Self {
            linux,
            taken: BTreeMap::new(),
        }
    }

    /// Takes addresses, instead of what was there.
    pub fn insert(&mut self, start: u64, end: u64, kind: Kind) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut start, mut end) = (start, end);
        if let Some((&before, &taken)) = self.taken.range(..start).next_back()
            && taken == (Taken { end: start, kind })
        {
            self.taken.remove(&before);
            start = before;
        }
        if let Some(&after) = self.taken.get(&end)
            && after.kind == kind
        {
            self.taken.remove(&end);
            end = after.end;
        }
        self.taken.insert(start, Taken { end, kind });
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

    /// The mapping that `address` lies in.
    #[must_use]
    pub fn kind(&self, address: u64) -> Option<Kind> {
        let (_, last) = self.taken.range(..=address).next_back()?;
        (last.end > address).then_some(last.kind)
    }

    /// Address for a new mapping of `length` bytes, a multiple of the page size, below `base`; `None`
    /// where there is no room.
    #[must_use]
    pub fn place(&self, length: u64, backing: Backing, base: u64) -> Option<u64> {
        let aligned = match backing {
            Backing::Anonymous if self.linux.aligns(length) => self.huge_aligned(length, 0, base),
            Backing::File(offset) => self.huge_aligned(length, offset, base),
            Backing::Shmem(offset) => self.shmem_aligned(length, offset, base),
            Backing::HugePages(size) => {
                let whole = length.checked_next_multiple_of(size)?;
                return self.highest(whole, size - 1, base);
            }
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
            // Since 6.8, as high as possible (96204e15310c).
            0 if self.linux > Linux::V6_1 => Some(found + HUGE),
            up => Some(found + up),
        }
    }

    /// Address at which multiples of 2 MB in shared memory lie at multiples of 2 MB
    /// (`shmem_get_unmapped_area`); `None` where no 2 MB do, where the highest gap is aligned so by itself, or
    /// where there is no room for padding.
    fn shmem_aligned(&self, length: u64, offset: u64, base: u64) -> Option<u64> {
        let within = offset % HUGE;
        let least = if within == 0 { HUGE } else { 2 * HUGE - within };
        if length < least || self.highest(length, 0, base)? % HUGE == within {
            return None;
        }
        let found = self.highest(length.checked_add(HUGE - PAGE)?, 0, base)?;
        Some(found + within.wrapping_sub(found) % HUGE)
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
