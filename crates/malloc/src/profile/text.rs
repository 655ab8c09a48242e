//! The profile as text: counts of samples, not yet scaled, with addresses, and the mappings that these lie in.
//!
//! It is gperftools' format (`heap_v2`), which `contigua-node heap --profile` and `pprof` read. They scale the counts,
//! find names and hide the allocator's frames, outside of the process.

use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;

use super::table::{self, Stack};
use crate::files::{self, Writer};
use crate::sys;

/// Samples of a stack that are in use, and all of them.
fn counts(stack: &Stack) -> (u64, u64) {
    // In this order, so that no more are freed than allocated.
    let freed = stack.freed.load(Relaxed);
    let allocated = stack.allocated.load(Relaxed);
    (allocated.saturating_sub(freed), allocated)
}

/// Write the profile to an open file. The system's error number if that fails.
pub fn write(file: i32, rate: u64) -> Result<(), i32> {
    let mut out = Writer::new(file);
    let mut all = [0; 4];
    for stack in table::all() {
        let (live, allocated) = counts(stack);
        let size = stack.size as u64;
        for (sum, more) in all
            .iter_mut()
            .zip([live, live * size, allocated, allocated * size])
        {
            *sum += more;
        }
    }
    let [live, live_bytes, allocated, bytes] = all;
    let _ = writeln!(
        out,
        "heap profile: {live}: {live_bytes} [{allocated}: {bytes}] @ heap_v2/{rate}\n\
         # contigua-malloc {}: process {}, nanoseconds {}, lost samples {}",
        env!("CARGO_PKG_VERSION"),
        sys::process(),
        sys::real_nanoseconds(),
        table::lost()
    );
    for stack in table::all() {
        let (live, allocated) = counts(stack);
        let size = stack.size as u64;
        if allocated == 0 {
            continue;
        }
        let (live_bytes, bytes) = (live * size, allocated * size);
        let _ = write!(out, "{live}: {live_bytes} [{allocated}: {bytes}] @");
        // Readers expect return addresses, and take 1 away.
        for frame in stack.frames() {
            let _ = write!(out, " {:#x}", frame + 1);
        }
        let _ = writeln!(out);
    }
    let _ = writeln!(out, "\nMAPPED_LIBRARIES:");
    files::copy(c"/proc/self/maps", &mut out)?;
    out.finish()
}
