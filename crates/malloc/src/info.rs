//! Output of `malloc_info`: glibc's elements with this allocator's values.

use core::fmt::{self, Write};

use crate::classes::{CLASSES, COUNT};
use crate::{front, telemetry};

/// Write the document. One heap; in `sizes`, free objects of each class, wherever they are cached; `fast` is
/// what caches hold, `rest` what is free in spans and in the page heap, `mmap` large objects.
pub fn write_xml(out: &mut impl Write) -> fmt::Result {
    let page = telemetry::collect();
    writeln!(out, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>")?;
    let (mut fast, mut rest) = (0, 0);
    for class in 1..COUNT {
        let (cached, size) = (front::cached(class), CLASSES[class].size as usize);
        fast += (cached.cpu + cached.transfer) / size;
        rest += cached.central / size;
        let total = cached.cpu + cached.transfer + cached.central;
        if total > 0 {
            let (from, count) = (CLASSES[class - 1].size + 1, total / size);
            writeln!(
                out,
                "  <size from=\"{from}\" to=\"{size}\" total=\"{total}\" count=\"{count}\"/>"
            )?;
        }
    }
    let (current, most) = (page.heap_mapped, page.peak_mapped);
    let reserved = page.heap_mapped + page.heap_unmapped;
    let cached = page.cpu_cached + page.transfer_cached;
    let free = page.central_free + page.heap_free_mapped;
    let totals = |out: &mut dyn Write| {
        writeln!(
            out,
            "<total type=\"fast\" count=\"{fast}\" size=\"{cached}\"/>\n\
             <total type=\"rest\" count=\"{rest}\" size=\"{free}\"/>"
        )
    };
    let system = |out: &mut dyn Write| {
        writeln!(
            out,
            "<system type=\"current\" size=\"{current}\"/>\n<system type=\"max\" size=\"{most}\"/>\n\
             <aspace type=\"total\" size=\"{reserved}\"/>\n\
             <aspace type=\"mprotect\" size=\"{reserved}\"/>"
        )
    };
    writeln!(out, "</sizes>")?;
    totals(out)?;
    system(out)?;
    writeln!(out, "</heap>")?;
    totals(out)?;
    let (count, bytes) = (page.large_objects, page.large_in_use);
    writeln!(
        out,
        "<total type=\"mmap\" count=\"{count}\" size=\"{bytes}\"/>"
    )?;
    system(out)?;
    writeln!(out, "</malloc>")
}
