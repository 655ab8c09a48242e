//! Does a scan of the machine that runs the tests agree with the kernel's own figures?
//!
//! Takes root, or `CAP_DAC_READ_SEARCH` and `CAP_SYS_ADMIN`; says so and does nothing where those
//! are missing.

use contigua_live::classify::Class;
use contigua_live::proc::System;
use contigua_live::report::{Nobody, Options, Report, look};
use contigua_live::scan::Pace;
use contigua_units::PAGE_BYTES;

fn report() -> Option<Report> {
    let options = Options {
        pace: Pace::default(),
        frames: true,
        sites: false,
    };
    let report = look(&System::running(), options, &mut Nobody).unwrap();
    if report.frames.is_none() {
        println!("skipped: {:?}", report.missing);
        return None;
    }
    Some(report)
}

/// Whether `seen` lies within 1 % of what was true before, after, or in between.
fn agrees(seen: u64, before: u64, after: u64, floor: u64) -> bool {
    let slack = (before.max(after) / 100).max(floor);
    seen + slack >= before.min(after) && seen <= before.max(after) + slack
}

/// What `/proc/slabinfo` says: slabs times their pages.
fn slab_bytes(system: &System) -> u64 {
    // Who may not read it may not look at frames, either, and is told so there.
    let Ok(text) = system.text("proc/slabinfo") else {
        return 0;
    };
    let caches = text.as_str().lines().skip(2).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        number(5) * number(14)
    });
    caches.sum::<u64>() * PAGE_BYTES
}

/// Bytes of anonymous huge pages that are mapped in part (Linux 6.13 and later).
fn partly_mapped() -> u64 {
    let count =
        "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";
    let count = std::fs::read_to_string(count).unwrap_or_default();
    count.trim().parse::<u64>().unwrap_or(0) * (2 << 20)
}

#[test]
fn frames_add_up() {
    let system = System::running();
    // Others use this machine: what they allocate while we look is neither right nor wrong. Ten
    // looks without a quiet one would be.
    let mut said = String::new();
    for _ in 0..10 {
        let before = system.meminfo().unwrap();
        let slabs_before = slab_bytes(&system);
        let Some(report) = report() else { return };
        let after = system.meminfo().unwrap();
        let seen = report.frames.unwrap();
        let frames = &seen.classes;
        let bytes = |class| frames.of(class) * PAGE_BYTES;
        let meminfo = |names: &[&str]| {
            let sum = |of: &contigua_live::proc::Meminfo| -> u64 {
                names.iter().map(|name| of.number(name).unwrap_or(0)).sum()
            };
            (sum(&before), sum(&after))
        };
        let mut failures = Vec::new();
        // A floor of 2 MB for figures that are themselves that small.
        let mut check = |name: &str, seen: u64, (before, after): (u64, u64)| {
            if !agrees(seen, before, after, 2 << 20) {
                failures.push(format!(
                    "{name}: {seen} by frames, {before} and {after} by the kernel"
                ));
            }
        };
        let [buddy_before, buddy_after] = seen.buddy_free.map(|frames| frames * PAGE_BYTES);
        check("free", bytes(Class::Free), (buddy_before, buddy_after));
        check(
            "slab",
            bytes(Class::Slab),
            (slabs_before, slab_bytes(&system)),
        );
        // Blocks of 16 KB and more from `kmalloc` are no slabs, but meminfo counts them as such.
        let (low, high) = meminfo(&["Slab"]);
        let seen_slab = bytes(Class::Slab).max(low.min(bytes(Class::Slab) + bytes(Class::Kernel)));
        check("slab and large blocks", seen_slab, (low, high));
        let tables = meminfo(&["PageTables", "SecPageTables"]);
        check("page tables", bytes(Class::PageTable), tables);
        // The kernel counts a huge page here as long as it is mapped as one; what a program gave
        // back a part of is one until it is split.
        let (low, high) = meminfo(&["AnonHugePages", "ShmemHugePages", "FileHugePages"]);
        let huge = (low, high + partly_mapped());
        check("huge pages", bytes(Class::Thp), huge);
        check("HugeTLB", bytes(Class::HugeTlb), meminfo(&["Hugetlb"]));
        let zones: u64 = report.zones.iter().map(|zone| zone.present).sum();
        let present = zones * PAGE_BYTES;
        check("all", frames.memory() * PAGE_BYTES, (present, present));
        if failures.is_empty() {
            assert_eq!(seen.outcome.problem_count, 0, "{:?}", seen.outcome.problems);
            assert_eq!(seen.outcome.unknown_bits, 0);
            return;
        }
        said = failures.join("; ");
    }
    panic!("{said}");
}

#[test]
fn bounds_hold_the_truth() {
    let Some(report) = report() else { return };
    let seen = report.frames.unwrap();
    for size in &seen.sizes {
        assert!(size.potential_blocks.certain <= size.potential_blocks.possible);
        assert!(size.unmovable_blocks.certain >= size.unmovable_blocks.possible);
        assert!(size.free_blocks.certain <= size.potential_blocks.certain);
        assert!(size.blocks > 0);
    }
    assert!(seen.seconds > 0.0);
}
