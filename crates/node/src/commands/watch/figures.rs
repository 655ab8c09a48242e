//! The figures that `watch` serves, from what was seen.

use contigua_contiguity::ORDERS;
use contigua_live::classify::Class;
use contigua_live::proc::{BuddyZone, Counters, Pressure, System, Zone};
use contigua_live::report::{Report, SizeReport};
use contigua_units::{Order, PAGE_BYTES};

use crate::metrics::{Kind, Metrics};

/// Values read anew for each request: some tens of kilobytes of text.
pub struct Summaries {
    kernel: String,
    zones: Vec<Zone>,
    lists: Vec<BuddyZone>,
    counters: Counters,
    pressure: Option<Pressure>,
}

impl Summaries {
    /// Reads them.
    ///
    /// # Errors
    /// When something that everyone may read cannot be read.
    pub fn read(system: &System) -> Result<Self, contigua_live::Error> {
        Ok(Self {
            kernel: system.word("proc/sys/kernel/osrelease").unwrap_or_default(),
            zones: system.zones()?,
            lists: system.buddy_zones()?,
            counters: system.vmstat()?,
            // Kernels without PSI have none.
            pressure: system.memory_pressure().ok(),
        })
    }

    /// Adds their figures.
    pub fn add_to(&self, metrics: &mut Metrics) {
        metrics.family("contigua_node_info", Kind::Gauge, "Which kernel and tool.");
        let labels = [
            ("kernel", self.kernel.as_str()),
            ("version", env!("CARGO_PKG_VERSION")),
        ];
        metrics.figure(&labels, 1);
        self.add_zones(metrics);
        self.add_lists(metrics);
        self.add_free_blocks(metrics);
        self.add_pressure(metrics);
        self.add_counters(metrics);
    }

    fn add_zones(&self, metrics: &mut Metrics) {
        type Value = fn(&Zone) -> u64;
        let families: [(&str, &str, Value); 4] = [
            (
                "contigua_zone_managed_bytes",
                "Memory that the page allocator was given.",
                |zone| zone.managed,
            ),
            (
                "contigua_zone_free_bytes",
                "Memory on free lists.",
                |zone| zone.free,
            ),
            (
                "contigua_zone_per_cpu_free_bytes",
                "Memory that is free on lists of single CPUs.",
                |zone| zone.per_cpu_free,
            ),
            (
                "contigua_zone_cma_bytes",
                "Memory of contiguous memory areas.",
                |zone| zone.cma,
            ),
        ];
        let zones = || self.zones.iter().filter(|zone| zone.managed > 0);
        for (name, help, value) in families {
            metrics.family(name, Kind::Gauge, help);
            for zone in zones() {
                let node = zone.node.to_string();
                let labels = [("node", node.as_str()), ("zone", &zone.name)];
                metrics.figure(&labels, value(zone) * PAGE_BYTES);
            }
        }
        metrics.family(
            "contigua_zone_watermark_bytes",
            Kind::Gauge,
            "Free memory below which the kernel reclaims.",
        );
        for zone in zones() {
            let node = zone.node.to_string();
            let marks = zone.watermarks;
            let marks = [("min", marks.min), ("low", marks.low), ("high", marks.high)];
            for (mark, frames) in marks {
                let labels = [
                    ("node", node.as_str()),
                    ("zone", &zone.name),
                    ("mark", mark),
                ];
                metrics.figure(&labels, frames * PAGE_BYTES);
            }
        }
    }

    fn add_lists(&self, metrics: &mut Metrics) {
        metrics.family(
            "contigua_free_list_blocks",
            Kind::Gauge,
            "Blocks on free lists, by order (a block has 4 KiB times two to its order).",
        );
        for zone in &self.lists {
            let node = zone.node.to_string();
            for (order, blocks) in zone.blocks.iter().enumerate() {
                let order = order.to_string();
                let labels = [
                    ("node", node.as_str()),
                    ("zone", &zone.zone),
                    ("order", &order),
                ];
                metrics.figure(&labels, blocks);
            }
        }
    }

    fn add_free_blocks(&self, metrics: &mut Metrics) {
        metrics.family(
            "contigua_free_listed_bytes",
            Kind::Gauge,
            "Free memory in free blocks of at least a size; 4kB is all of it.",
        );
        for (size, least) in [("4kB", 0), ("2MB", 9), ("4MB", 10)] {
            let frames = self.lists.iter().flat_map(|zone| {
                let large = zone.blocks.iter().enumerate().skip(least);
                large.map(|(order, blocks)| blocks << order)
            });
            metrics.figure(&[("size", size)], frames.sum::<u64>() * PAGE_BYTES);
        }
    }

    fn add_pressure(&self, metrics: &mut Metrics) {
        let Some(pressure) = &self.pressure else {
            return;
        };
        metrics.family(
            "contigua_memory_stalled_seconds_total",
            Kind::Counter,
            "Time in which some or all tasks waited for memory.",
        );
        for (tasks, stall) in [("some", pressure.some), ("full", pressure.full)] {
            metrics.figure(&[("tasks", tasks)], stall.total.as_secs_f64());
        }
    }

    fn add_counters(&self, metrics: &mut Metrics) {
        type Result = (&'static str, &'static str);
        // Families by the kernel's counters: name, label, help, values with their counters.
        let families: [(&str, &str, &str, &[Result]); 6] = [
            (
                "contigua_thp_faults_total",
                "result",
                "Faults that could have had a huge page.",
                &[
                    ("huge", "thp_fault_alloc"),
                    ("fallback", "thp_fault_fallback"),
                ],
            ),
            (
                "contigua_thp_collapses_total",
                "result",
                "Huge pages that khugepaged made, and could not make.",
                &[
                    ("huge", "thp_collapse_alloc"),
                    ("failed", "thp_collapse_alloc_failed"),
                ],
            ),
            (
                "contigua_thp_splits_total",
                "of",
                "Huge pages, and mappings of huge pages, that were split.",
                &[("page", "thp_split_page"), ("mapping", "thp_split_pmd")],
            ),
            (
                "contigua_compactions_total",
                "result",
                "Allocations that waited for compaction.",
                &[("success", "compact_success"), ("failure", "compact_fail")],
            ),
            (
                "contigua_pages_migrated_total",
                "result",
                "Pages that were moved, and could not be moved.",
                &[
                    ("success", "pgmigrate_success"),
                    ("failure", "pgmigrate_fail"),
                ],
            ),
            (
                "contigua_hugetlb_allocations_total",
                "result",
                "Pages that HugeTLB asked of the page allocator.",
                &[
                    ("success", "htlb_buddy_alloc_success"),
                    ("failure", "htlb_buddy_alloc_fail"),
                ],
            ),
        ];
        for (name, label, help, results) in families {
            metrics.family(name, Kind::Counter, help);
            for (result, counter) in results {
                if let Some(value) = self.counters.get(counter) {
                    metrics.figure(&[(label, result)], value);
                }
            }
        }
        if let Some(pins) = self.counters.pins_held() {
            metrics.single(
                "contigua_pins_held",
                Kind::Gauge,
                "Long-term pins that are held.",
                pins,
            );
        }
    }
}

/// The name of a block size in labels.
fn size_name(order: Order) -> &'static str {
    match order {
        Order::HUGE_2M => "2MB",
        Order::BUDDY_MAX => "4MB",
        Order::BLOCK_32M => "32MB",
        _ => "1GB",
    }
}

/// Adds what the last scan of all frames told, or that there was none.
pub fn add_scan(report: Option<&Report>, metrics: &mut Metrics) {
    type Value = fn(&SizeReport) -> contigua_live::census::Bounds<u32>;

    let seen = report.and_then(|report| Some((report, report.frames.as_ref()?)));
    metrics.single(
        "contigua_frames_known",
        Kind::Gauge,
        "1 once all frames were scanned, 0 before, or where the right to is missing.",
        u8::from(seen.is_some()),
    );
    let Some((report, seen)) = seen else { return };
    metrics.single(
        "contigua_scan_timestamp_seconds",
        Kind::Gauge,
        "When all frames were scanned last.",
        report.machine.unix_seconds,
    );
    metrics.single(
        "contigua_scan_duration_seconds",
        Kind::Gauge,
        "How long that took, pauses included.",
        seen.seconds,
    );
    metrics.single(
        "contigua_scan_problems",
        Kind::Gauge,
        "Parts of memory that could not be read.",
        seen.outcome.problem_count,
    );
    metrics.family("contigua_frames_bytes", Kind::Gauge, "Memory by class.");
    for (class, frames) in seen.classes.iter() {
        if class != Class::Hole {
            metrics.figure(&[("class", class.key())], frames * PAGE_BYTES);
        }
    }
    metrics.family(
        "contigua_blocks",
        Kind::Gauge,
        "Aligned blocks with memory in them.",
    );
    for (order, size) in ORDERS.into_iter().zip(&seen.sizes) {
        metrics.figure(&[("size", size_name(order))], size.blocks);
    }
    let families: [(&str, &str, Value); 3] = [
        (
            "contigua_free_blocks",
            "Blocks that are entirely free: at the least (certain), at the most (possible).",
            |size| size.free_blocks,
        ),
        (
            "contigua_potential_blocks",
            "Blocks that perfect compaction could empty: at the least, at the most.",
            |size| size.potential_blocks,
        ),
        (
            "contigua_unmovable_blocks",
            "Blocks with an unmovable frame: at the most (certain), at the least (possible).",
            |size| size.unmovable_blocks,
        ),
    ];
    for (name, help, value) in families {
        metrics.family(name, Kind::Gauge, help);
        for (order, size) in ORDERS.into_iter().zip(&seen.sizes) {
            let bounds = value(size);
            for (bound, blocks) in [("certain", bounds.certain), ("possible", bounds.possible)] {
                metrics.figure(&[("size", size_name(order)), ("bound", bound)], blocks);
            }
        }
    }
    metrics.family(
        "contigua_polluted_blocks",
        Kind::Gauge,
        "Blocks that a class of frames pollutes.",
    );
    for polluter in &seen.polluters {
        let sizes = [
            ("2MB", Some(polluter.blocks_2m)),
            ("1GB", polluter.blocks_1g),
        ];
        for (size, blocks) in sizes {
            if let Some(blocks) = blocks {
                metrics.figure(&[("class", &polluter.owner), ("size", size)], blocks);
            }
        }
    }
}
