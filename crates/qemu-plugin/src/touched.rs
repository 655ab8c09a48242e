//! Pages that the process has touched since they were mapped, during fast-forward.
//!
//! A byte for each page of 4 KB of the 48 bits of addresses: 64 GB are reserved, and only what is
//! written takes memory. Threads share it without order: at worst a page is told twice.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use contigua_program::syscall::Call;
use contigua_program::wire::ADDRESS_MASK;
use contigua_units::{PAGE_BYTES, VirtRange};

/// Bits of an address.
const ADDRESS_BITS: u32 = ADDRESS_MASK.count_ones();
/// Bytes of the map.
const BYTES: usize = (ADDRESS_MASK as usize + 1) / PAGE_BYTES as usize;
/// Ranges of the map from this length on are given back to the host instead of written.
const LARGE: usize = 1 << 16;

/// The page was read.
const READ: u8 = 1;
/// The page was written, and so may be read.
const WRITTEN: u8 = 2;
/// The page's code was executed.
const EXECUTED: u8 = 4;

/// Any of these: a load is known.
pub const LOADED: u8 = READ | WRITTEN;
/// Any of these: a store is known.
pub const STORED: u8 = WRITTEN;

static MAP: OnceLock<usize> = OnceLock::new();
/// End of the heap at the last `brk`.
static BREAK: AtomicU64 = AtomicU64::new(u64::MAX);

/// Reserves the map.
pub fn reserve() -> Result<(), String> {
    // SAFETY: a private mapping at an address of the kernel's choice.
    let map = unsafe {
        libc::mmap(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(format!(
            "no {} GB of addresses to fast-forward with: {error}; raise the limit (ulimit -v)",
            BYTES >> 30
        ));
    }
    // Pages of 2 MB would make the map as large as the program's memory where it is sparse. Where
    // the host does not know the advice there are none.
    // SAFETY: the mapping made above.
    unsafe { libc::madvise(map, BYTES, libc::MADV_NOHUGEPAGE) };
    MAP.set(map as usize)
        .map_err(|_| "installed twice".to_owned())
}

fn entry(map: usize, address: u64) -> &'static AtomicU8 {
    // The 36 bits below the sign's, by two shifts: a mask of so many would be an instruction more.
    let index =
        (address << (64 - ADDRESS_BITS) >> (64 - ADDRESS_BITS + PAGE_BYTES.ilog2())) as usize;
    // SAFETY: the index has 36 bits, and the map as many bytes, which stay mapped.
    unsafe { &*(map as *const AtomicU8).add(index) }
}

/// Address of the map; 0 if it was not reserved.
pub fn map() -> usize {
    MAP.get().copied().unwrap_or(0)
}

/// In which ways the page of `address` was touched; `map` is that of [`map`], and not 0.
#[inline]
pub fn kinds(map: usize, address: u64) -> u8 {
    entry(map, address).load(Ordering::Relaxed)
}

/// Notes an access to the page of `address`; whether it is the first of its kind.
#[inline]
pub fn is_first(address: u64, store: bool) -> bool {
    let Some(&map) = MAP.get() else {
        return true;
    };
    let (wanted, leaves) = if store {
        (STORED, WRITTEN)
    } else {
        (LOADED, READ)
    };
    let entry = entry(map, address);
    let before = entry.load(Ordering::Relaxed);
    if before & wanted != 0 {
        return false;
    }
    entry.store(before | leaves, Ordering::Relaxed);
    true
}

/// Returns whether this is the first fetch from the page.
pub fn is_first_fetch(address: u64) -> bool {
    let Some(&map) = MAP.get() else {
        return true;
    };
    entry(map, address).fetch_or(EXECUTED, Ordering::Relaxed) & EXECUTED == 0
}

/// Forgets what a system call may have unmapped or protected.
pub fn forget_changed(call: &Call) {
    if MAP.get().is_none() {
        return;
    }
    match *call {
        Call::Map { range, .. }
        | Call::Unmap { range }
        | Call::Protect { range, .. }
        | Call::Advise { range, .. } => forget(range),
        Call::Remap { from, to, .. } => {
            forget(from);
            forget(to);
        }
        // Of these the size is not known here.
        Call::Attach { .. } | Call::Detach { .. } => forget_all(),
        Call::Break { end } => {
            let before = BREAK.swap(end.get(), Ordering::Relaxed);
            if end.get() < before && before != u64::MAX {
                forget(VirtRange::new(
                    end.align_down(PAGE_BYTES),
                    contigua_units::VirtAddr::new(before),
                ));
            }
        }
        _ => {}
    }
}

/// Forgets everything: after a fork, pages are shared until they are written.
pub fn forget_all() {
    if let Some(&map) = MAP.get() {
        give_back(map, 0, BYTES);
    }
}

fn forget(range: VirtRange) {
    let Some(&map) = MAP.get() else {
        return;
    };
    let page = PAGE_BYTES as usize;
    let from = (range.start.get() / PAGE_BYTES) as usize;
    let to = (range.end.get().div_ceil(PAGE_BYTES) as usize).min(BYTES);
    if from >= to {
        return;
    }
    let (mut first, mut last) = (from, to);
    if to - from >= LARGE {
        (first, last) = (from.next_multiple_of(page), to / page * page);
        give_back(map, first, last - first);
    }
    let rest = if to - from >= LARGE {
        (from..first, last..to)
    } else {
        (from..to, to..to)
    };
    for index in rest.0.chain(rest.1) {
        entry(map, (index as u64) * PAGE_BYTES).store(0, Ordering::Relaxed);
    }
}

/// Makes whole pages of the map zero.
fn give_back(map: usize, from: usize, bytes: usize) {
    // SAFETY: whole pages of the private mapping that `reserve` made; other threads see zeros.
    let done = unsafe { libc::madvise((map + from) as *mut _, bytes, libc::MADV_DONTNEED) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        crate::fail(&format!("the map of touched pages: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use contigua_units::VirtAddr;

    use super::*;

    fn range(start: u64, bytes: u64) -> VirtRange {
        VirtRange::with_length(VirtAddr::new(start), bytes)
    }

    #[test]
    fn a_page_is_told_once_of_each_kind_until_it_is_forgotten() {
        reserve().unwrap();
        for base in [0, 0x5555_0000_0000, 0x7fff_ffff_0000] {
            assert!(is_first(base + 8, false) && !is_first(base + 4095, false));
            assert!(is_first(base + 16, true) && !is_first(base, true) && !is_first(base, false));
            // What was written may be read.
            assert!(is_first(base + 4096, true) && !is_first(base + 4097, false));
            assert!(is_first_fetch(base) && !is_first_fetch(base + 1));
        }
        for bytes in [8192, 1 << 30] {
            let base = 0x1000_0000_3000;
            let last = base + bytes - 4096;
            for address in [base - 4096, base, last, last + 4096] {
                is_first(address, true);
            }
            forget_changed(&Call::Unmap {
                range: range(base, bytes),
            });
            assert!(!is_first(base - 4096, false) && !is_first(last + 4096, false));
            assert!(is_first(base, false) && is_first(last, false));
        }
        for end in [0x20_0000, 0x30_0000] {
            let end = VirtAddr::new(end);
            forget_changed(&Call::Break { end });
        }
        assert!(is_first(0x28_0000, true) && is_first(0x10_0000, true));
        let end = VirtAddr::new(0x20_0000);
        forget_changed(&Call::Break { end });
        assert!(is_first(0x28_0000, true) && !is_first(0x10_0000, true));
        forget_all();
        assert!(is_first(0x28_0000, false) && is_first(0x7fff_ffff_0000, false));
    }
}
