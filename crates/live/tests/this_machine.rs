//! Does a scan of the machine that runs the tests agree with the kernel's own figures?
//!
//! Takes root, or `CAP_DAC_READ_SEARCH` and `CAP_SYS_ADMIN`; says so and does nothing where those
//! are missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use contigua_live::classify::Class;
use contigua_live::proc::{System, free_frames};
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
        contigua_testing::skip(&format!("{:?}", report.missing));
        return None;
    }
    Some(report)
}

/// Bytes of slabs by `/proc/slabinfo`: slabs times their pages.
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

const FIGURES: [&str; 5] = ["free", "slab", "page tables", "huge pages", "HugeTLB"];

/// The kernel's own figures in bytes, in the order of [`FIGURES`], then what meminfo counts as slab,
/// and huge pages that are mapped in part.
fn kernel_figures(system: &System) -> [u64; 7] {
    let meminfo = system.meminfo().unwrap();
    let sum = |names: &[&str]| -> u64 {
        let values = names.iter().map(|name| meminfo.number(name).unwrap_or(0));
        values.sum()
    };
    [
        free_frames(&system.buddy_zones().unwrap()) * PAGE_BYTES,
        slab_bytes(system),
        sum(&["PageTables", "SecPageTables"]),
        sum(&["AnonHugePages", "ShmemHugePages", "FileHugePages"]),
        sum(&["Hugetlb"]),
        sum(&["Slab"]),
        partly_mapped(),
    ]
}

/// Looks, while another thread asks the kernel all the time: what frames add up to must lie within
/// 1 % of what the kernel said meanwhile, because others use this machine, too.
fn watched_look(system: &System) -> Option<(Report, [(u64, u64); 7])> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut bounds = kernel_figures(system).map(|value| (value, value));
            loop {
                // After the look, once more.
                let is_last = is_done.load(Ordering::Acquire);
                for (bound, value) in bounds.iter_mut().zip(kernel_figures(system)) {
                    *bound = (bound.0.min(value), bound.1.max(value));
                }
                if is_last {
                    return bounds;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let report = report();
        is_done.store(true, Ordering::Release);
        Some((report?, watcher.join().unwrap()))
    })
}

#[test]
fn frames_of_this_machine_add_up() {
    let system = System::running();
    // A burst between two of the watcher's questions is neither right nor wrong.
    let mut said = String::new();
    for _ in 0..5 {
        let Some((report, bounds)) = watched_look(&system) else {
            return;
        };
        let seen = report.frames.unwrap();
        let frames = &seen.classes;
        let bytes = |class| frames.of(class) * PAGE_BYTES;
        let classes = [
            Class::Free,
            Class::Slab,
            Class::PageTable,
            Class::Thp,
            Class::HugeTlb,
        ];
        let mut failures = Vec::new();
        let mut check = |name: &str, (least, most): (u64, u64), (low, high): (u64, u64)| {
            // A floor of 2 MB for figures that are themselves that small.
            let slack = (high / 100).max(2 << 20);
            if most + slack < low || least > high + slack {
                failures.push(format!(
                    "{name}: {least} to {most} by frames, {low} to {high} by the kernel"
                ));
            }
        };
        // The kernel counts a huge page in meminfo as long as it is mapped as one; what a program
        // gave back a part of is one until it is split.
        let mut bounds = bounds;
        bounds[3].1 += bounds[6].1;
        for ((name, class), bounds) in FIGURES.into_iter().zip(classes).zip(bounds) {
            check(name, (bytes(class), bytes(class)), bounds);
        }
        // Blocks of 16 KB and more from `kmalloc` are no slabs, but meminfo counts them as such.
        let most = bytes(Class::Slab) + bytes(Class::Kernel);
        check(
            "slab with large blocks",
            (bytes(Class::Slab), most),
            bounds[5],
        );
        let present = report.zones.iter().map(|zone| zone.present).sum::<u64>() * PAGE_BYTES;
        let all = frames.memory() * PAGE_BYTES;
        check("all", (all, all), (present, present));
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
fn contiguity_bounds_hold_on_this_machine() {
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
