//! The report for people.

use std::io::{self, Write};

use contigua_input::Printable;
use contigua_live::WorstRange;
use contigua_live::classify::Class;
use contigua_live::report::{FrameReport, PolluterReport, Report};
use contigua_units::Order;

use super::summary;
use crate::text::{Table, between, count, duration, frames, percent, size, whole};

/// Cgroups and sites that are shown; JSON has all.
const SHOWN: usize = 10;

/// Writes a report.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    // Names of hosts, kernels, cgroups and functions are others'.
    let out = &mut Printable(out);
    let machine = &report.machine;
    writeln!(
        out,
        "{}: Linux {}, up {}, {} processors, {} of memory",
        machine.host,
        machine.kernel,
        duration(machine.uptime_seconds),
        machine.processors,
        size(machine.memory_bytes),
    )?;
    for sentence in summary::sentences(report) {
        writeln!(out, "{sentence}")?;
    }
    match &report.frames {
        Some(seen) => write_frames(out, seen)?,
        None => write_lists(out, report)?,
    }
    write_kernel(out, report)?;
    if !report.missing.is_empty() {
        writeln!(out, "\nMissing")?;
        for missing in &report.missing {
            write!(out, "  {}: {}", missing.what, missing.why)?;
            match missing.needs {
                "" => writeln!(out)?,
                needs => writeln!(out, "; it takes {needs}")?,
            }
        }
    }
    Ok(())
}

fn section(out: &mut impl Write, title: &str, table: &Table) -> io::Result<()> {
    writeln!(out, "\n{title}")?;
    table.lines().try_for_each(|line| writeln!(out, "{line}"))
}

fn write_frames(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    let memory = seen.classes.memory().max(1);
    let mut table = Table::default();
    for (class, number) in seen.classes.iter() {
        if number > 0 && class != Class::Hole {
            let share = percent(number as f64 / memory as f64);
            table.row([class.name().to_owned(), frames(number), share]);
        }
    }
    section(out, "Memory by class", &table)?;
    write_unexplained(out, seen)?;
    write_contiguity(out, seen)?;
    write_polluters(out, seen)?;
    write_worst(out, seen)?;
    write_problems(out, seen)
}

fn write_unexplained(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    let unexplained = &seen.unexplained;
    if seen.classes.of(Class::Unexplained) > 0 {
        writeln!(
            out,
            "  \"{}\" is {} or more of the kernel's, up to {} free on lists of CPUs, {} not \
             initialized yet",
            Class::Unexplained.name(),
            frames(unexplained.kernel_at_least),
            frames(unexplained.per_cpu_free),
            frames(unexplained.not_initialized),
        )?;
    }
    match seen.pins_held {
        Some(0) => writeln!(out, "  no page is pinned for long"),
        Some(pins) => writeln!(
            out,
            "  {} long-term pins are held; on which frames, the kernel does not say",
            count(pins)
        ),
        None => Ok(()),
    }
}

fn write_contiguity(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    let mut table = Table::default();
    let sizes = seen.sizes.iter();
    let header = sizes.clone().map(|of| whole(of.block_bytes));
    table.row([String::new()].into_iter().chain(header));
    let mut row = |name: &str, cell: &dyn Fn(&contigua_live::report::SizeReport) -> String| {
        table.row([name.to_owned()].into_iter().chain(sizes.clone().map(cell)));
    };
    let number = |low: u32, high: u32| between(&count(low.into()), &count(high.into()));
    let share = |low: f64, high: f64| between(&percent(low), &percent(high));
    row("blocks with memory", &|of| count(of.blocks.into()));
    row("free blocks", &|of| {
        number(of.free_blocks.certain, of.free_blocks.possible)
    });
    row("  share of free memory", &|of| {
        let of = of.free_share_of_free;
        // Unexplained frames that are free add to free memory, too.
        share(of.certain.min(of.possible), of.certain.max(of.possible))
    });
    row("potential blocks", &|of| {
        number(of.potential_blocks.certain, of.potential_blocks.possible)
    });
    row("  share of memory", &|of| {
        let of = of.potential_share_of_memory;
        share(of.certain, of.possible)
    });
    row("polluted blocks", &|of| {
        number(of.unmovable_blocks.possible, of.unmovable_blocks.certain)
    });
    section(
        out,
        "Contiguity: blocks that are free, and that perfect compaction could free",
        &table,
    )
}

fn write_polluters(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    let mut table = Table::default();
    table.row(["", "frames", "2 MB blocks", "alone", "1 GB blocks", "alone"]);
    let optional = |number: Option<u64>| number.map_or_else(String::new, count);
    let mut add = |name: &str, of: &PolluterReport| {
        table.row([
            name.to_owned(),
            count(of.frames),
            count(of.blocks_2m),
            optional(of.alone_2m),
            optional(of.blocks_1g),
            optional(of.alone_1g),
        ]);
    };
    for of in &seen.polluters {
        let class = Class::ALL.into_iter().find(|class| class.key() == of.owner);
        add(class.map_or(of.owner.as_str(), |class| class.name()), of);
    }
    for of in seen.cgroups.iter().take(SHOWN) {
        add(&format!("kernel memory of cgroup {}", of.owner), of);
    }
    section(out, "What pollutes blocks", &table)?;
    let Some(sites) = &seen.sites else {
        return Ok(());
    };
    let mut table = Table::default();
    for site in sites.sites.iter().take(SHOWN) {
        table.row([
            site.function.clone(),
            count(site.frames),
            count(site.blocks_2m),
        ]);
    }
    section(out, "Allocation sites: frames, 2 MB blocks", &table)
}

fn write_worst(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    if seen.worst.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n1 GB ranges that the fewest pages keep from being free, of {} polluted ones",
        count(seen.polluted_ranges)
    )?;
    for range in &seen.worst {
        writeln!(
            out,
            "  at {:>5} GB: {}, in {} of 512 blocks; {} is free",
            range.gigabyte,
            in_words(range, seen),
            range.blocks_2m,
            frames(range.free),
        )?;
    }
    Ok(())
}

/// Describes the polluters of a range: `3 slab pages and 1 page table of /system.slice`.
fn in_words(range: &WorstRange, seen: &FrameReport) -> String {
    const NAMED: usize = 3;
    let named = range.polluters.iter().take(NAMED).map(|polluter| {
        let many = if polluter.frames == 1 { "" } else { "s" };
        let what = match polluter.class {
            Class::PageTable => format!("page table{many}"),
            Class::Unexplained => format!("page{many} of the kernel or free on a CPU"),
            class => format!("{} page{many}", class.name()),
        };
        let cgroup = seen.cgroup_paths.get(&polluter.cgroup);
        let cgroup = cgroup.map_or_else(String::new, |path| format!(" of {path}"));
        format!("{} {what}{cgroup}", count(polluter.frames))
    });
    let mut named: Vec<String> = named.collect();
    let others: u64 = range.polluters.iter().skip(NAMED).map(|of| of.frames).sum();
    if others > 0 {
        named.push(format!("{} others", count(others)));
    }
    match named.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => String::new(),
    }
}

fn write_problems(out: &mut impl Write, seen: &FrameReport) -> io::Result<()> {
    let outcome = &seen.outcome;
    if outcome.unknown_bits != 0 {
        writeln!(
            out,
            "\nnote: {} frames have bits {:#x}, which this version does not know",
            count(outcome.unknown_bit_frames),
            outcome.unknown_bits
        )?;
    }
    for problem in &outcome.problems {
        writeln!(
            out,
            "warning: /{}: {} frames from {:#x} were skipped: {}",
            problem.file, problem.frames, problem.start, problem.what
        )?;
    }
    let more = outcome.problem_count - outcome.problems.len() as u64;
    if more > 0 {
        writeln!(out, "warning: {} more such problems", count(more))?;
    }
    for block in &seen.changed_blocks {
        writeln!(
            out,
            "warning: memory block {block} went online or offline during the scan"
        )?;
    }
    let mappings = &outcome.mappings;
    writeln!(
        out,
        "\nmovable frames: {} mapped nowhere, {} once, {} more often (at most {} times)",
        count(mappings.none),
        count(mappings.one),
        count(mappings.several),
        count(mappings.most)
    )?;
    writeln!(out, "scanned in {:.2} s", seen.seconds)
}

/// Writes the parts that need no rights.
fn write_lists(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let free: u64 = contigua_live::proc::free_frames(&report.free_lists);
    let mut table = Table::default();
    table.row(["free memory".to_owned(), frames(free)]);
    for order in [Order::HUGE_2M, Order::BUDDY_MAX] {
        let blocks = report.listed_blocks(order);
        let share = blocks as f64 * f64::from(order.frames()) / free.max(1) as f64;
        table.row([
            format!("in free blocks of {}", whole(order.bytes())),
            count(blocks),
            percent(share),
        ]);
    }
    for order in [Order::BLOCK_32M, Order::HUGE_1G] {
        let largest = report.listed_blocks(Order::BUDDY_MAX);
        let most = largest >> (order.get() - Order::BUDDY_MAX.get());
        table.row([
            format!("free blocks of {}", whole(order.bytes())),
            format!("at most {}", count(most)),
        ]);
    }
    section(out, "Contiguity, from the allocator's lists", &table)
}

fn write_kernel(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut table = Table::default();
    if let Some(pressure) = &report.pressure {
        for (name, stall) in [("some", pressure.some), ("full", pressure.full)] {
            table.row([
                format!("pressure, {name} tasks waiting"),
                format!(
                    "{:.2} % of 10 s, {:.2} % of 1 min, {:.2} % of 5 min",
                    stall.avg10, stall.avg60, stall.avg300
                ),
            ]);
        }
    }
    if let Some(enabled) = &report.thp.enabled {
        let defrag = report.thp.defrag.as_deref().unwrap_or("unknown");
        table.row([
            "transparent huge pages".to_owned(),
            format!("{enabled}, defrag {defrag}"),
        ]);
    }
    let meminfo = |name| report.meminfo.number(name).unwrap_or(0);
    table.row([
        "  in use".to_owned(),
        format!(
            "{} anonymous, {} shared, {} of files",
            size(meminfo("AnonHugePages")),
            size(meminfo("ShmemHugePages")),
            size(meminfo("FileHugePages"))
        ),
    ]);
    let counter = |name| report.counters.or_zero(name);
    table.row([
        "  faults with, without one".to_owned(),
        format!(
            "{}, {}",
            count(counter("thp_fault_alloc")),
            count(counter("thp_fault_fallback"))
        ),
    ]);
    for pool in &report.huge_pools {
        if pool.total > 0 {
            table.row([
                format!("HugeTLB pages of {}", whole(pool.page_bytes)),
                format!("{}, {} free", count(pool.total), count(pool.free)),
            ]);
        }
    }
    table.row([
        "compaction: stalls, successes, failures".to_owned(),
        format!(
            "{}, {}, {}",
            count(counter("compact_stall")),
            count(counter("compact_success")),
            count(counter("compact_fail"))
        ),
    ]);
    table.row([
        "pages moved, failed to move".to_owned(),
        format!(
            "{}, {}",
            count(counter("pgmigrate_success")),
            count(counter("pgmigrate_fail"))
        ),
    ]);
    if let Some(types) = &report.page_types {
        let total: u64 = types.zones.iter().map(|of| of.pageblocks).sum();
        let unmovable = types.pageblocks("Unmovable") + types.pageblocks("Reclaimable");
        table.row([
            "pageblocks meant for unmovable memory".to_owned(),
            format!("{} of {}", count(unmovable), count(total)),
        ]);
    }
    section(out, "The kernel's own statistics", &table)
}
