//! Is a scan what a list of frames says, and does it survive memory that goes away?

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use contigua_contiguity::FrameKind;
use contigua_live::census::Census;
use contigua_live::classify::{Class, bit, classify};
use contigua_live::frames::{Area, PageFile, PageSource};
use contigua_live::proc::FrameRange;
use contigua_live::scan::{Pace, Run, Sink, scan};
use proptest::prelude::*;

/// Recorded words; some of the reads fail.
#[derive(Default)]
struct Recorded {
    flags: Vec<u64>,
    counts: Vec<u64>,
    cgroups: Vec<u64>,
    /// Memory ends here for reads of flags.
    ends_at: Option<usize>,
    /// Reads of this file that begin at or beyond this frame fail.
    fails: Option<(PageFile, u64)>,
    reads: AtomicU64,
}

impl PageSource for Recorded {
    fn read(&self, file: PageFile, start: u64, words: &mut [u64]) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self
            .fails
            .is_some_and(|(failing, from)| failing == file && start >= from)
        {
            return Err(io::Error::other("Input/output error"));
        }
        let from = match file {
            PageFile::Flags => &self.flags[..self.ends_at.unwrap_or(self.flags.len())],
            PageFile::Counts => &self.counts,
            PageFile::Cgroups => &self.cgroups,
        };
        let from = from.get(start as usize..).unwrap_or_default();
        let count = from.len().min(words.len());
        words[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn has(&self, file: PageFile) -> bool {
        match file {
            PageFile::Flags => true,
            PageFile::Counts => !self.counts.is_empty(),
            PageFile::Cgroups => !self.cgroups.is_empty(),
        }
    }
}

#[derive(Default)]
struct List(Vec<Run>);

impl Sink for List {
    fn take(&mut self, run: Run) -> io::Result<()> {
        self.0.push(run);
        Ok(())
    }
}

fn online(start: u64, end: u64) -> Area {
    Area {
        frames: FrameRange { start, end },
        zone: Some(0),
        is_online: true,
    }
}

fn pace(threads: usize) -> Pace {
    Pace {
        threads,
        pause: Duration::ZERO,
    }
}

/// Flags of a few kinds, in runs.
fn flags() -> impl Strategy<Value = Vec<u64>> {
    let kinds = prop_oneof![
        Just(bit::BUDDY),
        Just(bit::LRU | bit::UPTODATE),
        Just(bit::ANON | bit::LRU | bit::MMAP),
        Just(bit::SLAB),
        Just(bit::RESERVED),
        Just(0),
        Just(bit::NOPAGE),
        any::<u64>(),
    ];
    prop::collection::vec((kinds, 1..2000_usize), 1..40).prop_map(|runs| {
        let runs = runs.into_iter();
        runs.flat_map(|(flags, count)| std::iter::repeat_n(flags, count))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(64)))]
    #[test]
    fn runs_are_the_frames_in_order_whatever_the_number_of_threads(
        flags in flags(), hole in 0..70_000_u64, threads in 1..5_usize, owned in any::<bool>()
    ) {
        let mut source = Recorded {
            flags: vec![0; hole as usize],
            ..Recorded::default()
        };
        source.flags.extend(&flags);
        let end = source.flags.len() as u64;
        if owned {
            source.cgroups = (0..end).map(|frame| frame % 3).collect();
        }
        let mut list = List::default();
        let outcome = scan(&source, &[online(hole, end)], pace(threads), &mut list).unwrap();

        let frames: u64 = list.0.iter().map(|run| run.frames).sum();
        prop_assert_eq!(frames, end);
        let mut at = 0_u64;
        for run in &list.0 {
            for frame in at..at + run.frames {
                let word = source.flags[frame as usize];
                let class = if frame < hole { Class::Hole } else { classify(word) };
                let is_unmovable = class.kind() == FrameKind::Unmovable;
                let cgroup = if is_unmovable && owned { frame % 3 } else { 0 };
                let class = match class {
                    Class::Unexplained if cgroup != 0 => Class::Kernel,
                    // Random words do not make huge pages.
                    class => class,
                };
                prop_assert_eq!((run.class, run.cgroup), (class, cgroup), "frame {}", frame);
            }
            at += run.frames;
        }
        let key = |run: &Run| (run.class, run.cgroup, run.zone);
        let joined = list.0.windows(2).all(|pair| key(&pair[0]) != key(&pair[1]));
        prop_assert!(joined, "neighbors that are alike are one run");
        let unknown = flags.iter().filter(|&&word| word & !bit::KNOWN != 0);
        prop_assert_eq!(outcome.unknown_bit_frames, unknown.count() as u64);
        prop_assert_eq!(outcome.problem_count, 0);
    }

    #[test]
    fn a_census_adds_up(flags in flags(), threads in 1..3_usize) {
        let end = flags.len() as u64;
        let source = Recorded {
            cgroups: (0..end).map(|frame| 10 + frame / 700 % 2).collect(),
            flags,
            ..Recorded::default()
        };
        let mut census = Census::new(1, 20);
        scan(&source, &[online(0, end)], pace(threads), &mut census).unwrap();
        let summary = census.finish();

        let classes: Vec<Class> = source.flags.iter().map(|&word| match classify(word) {
            // All are charged to somebody.
            Class::Unexplained => Class::Kernel,
            class => class,
        }).collect();
        for class in Class::ALL {
            let expected = classes.iter().filter(|&&other| other == class).count() as u64;
            prop_assert_eq!(summary.frames.of(class), expected);
            prop_assert_eq!(summary.zones[0].of(class), expected);
            let share = summary.classes.iter().find(|share| share.class == class);
            let blocks = classes.chunks_exact(512).filter(|block| block.contains(&class));
            let blocks = if class.pollutes() { blocks.count() } else { 0 };
            prop_assert_eq!(share.map_or(0, |share| share.polluted[0].1.blocks as usize), blocks);
        }
        for share in &summary.cgroups {
            let is_of = |frame: usize| {
                source.cgroups[frame] == share.inode && classes[frame].kind() == FrameKind::Unmovable
            };
            let frames = (0..classes.len()).filter(|&frame| is_of(frame));
            prop_assert_eq!(share.frames, frames.clone().count() as u64);
            let blocks: std::collections::BTreeSet<usize> = frames.map(|frame| frame / 512).collect();
            prop_assert_eq!(share.blocks_2m, blocks.len() as u64);
        }
        let kinds = summary.contiguity;
        prop_assert_eq!(kinds.certain.managed_frames(), kinds.possible.managed_frames());
        prop_assert!(kinds.certain.blocks_2m.potential <= kinds.possible.blocks_2m.potential);
        prop_assert!(kinds.certain.blocks_2m.unmovable >= kinds.possible.blocks_2m.unmovable);
    }

    #[test]
    fn memory_that_ends_or_fails_in_the_middle_is_said_skipped_and_counted(
        at in 0..100_000_usize, fails in any::<bool>(), threads in 1..4_usize
    ) {
        const FRAMES: usize = 100_000;
        let mut source = Recorded {
            flags: vec![bit::SLAB; FRAMES],
            ..Recorded::default()
        };
        if fails {
            source.fails = Some((PageFile::Flags, at as u64));
        } else {
            source.ends_at = Some(at);
        }
        let mut list = List::default();
        let area = online(0, FRAMES as u64);
        let outcome = scan(&source, &[area], pace(threads), &mut list).unwrap();
        // A read that fails loses its chunk from its beginning.
        let read = if fails { at.next_multiple_of(32_768).min(FRAMES) } else { at };
        let of = |class| list.0.iter().filter(|run| run.class == class).map(|run| run.frames).sum::<u64>();
        prop_assert_eq!(of(Class::Slab), read as u64);
        prop_assert_eq!(of(Class::Unread), (FRAMES - read) as u64);
        prop_assert_eq!(outcome.problem_count > 0, read < FRAMES);
        if let Some(problem) = outcome.problems.first() {
            prop_assert_eq!(problem.start, read as u64);
            prop_assert_eq!(problem.file, "proc/kpageflags");
        }
    }
}

#[test]
fn a_cgroup_file_that_fails_costs_the_cgroups_and_no_more() {
    let source = Recorded {
        flags: vec![bit::SLAB; 70_000],
        cgroups: vec![7; 70_000],
        fails: Some((PageFile::Cgroups, 40_000)),
        ..Recorded::default()
    };
    let mut census = Census::new(1, 20);
    let outcome = scan(&source, &[online(0, 70_000)], pace(2), &mut census).unwrap();
    let summary = census.finish();
    assert_eq!(summary.frames.of(Class::Slab), 70_000);
    assert_eq!(outcome.problem_count, 1);
    assert_eq!(outcome.problems[0].file, "proc/kpagecgroup");
    assert_eq!(summary.cgroups[0].frames, 65_536);
}

#[test]
fn offline_memory_is_not_asked_about() {
    let source = Recorded {
        flags: vec![bit::BUDDY; 65_536],
        ..Recorded::default()
    };
    let mut census = Census::new(1, 20);
    let offline = Area {
        is_online: false,
        ..online(32_768, 65_536)
    };
    scan(&source, &[online(0, 32_768), offline], pace(1), &mut census).unwrap();
    let summary = census.finish();
    assert_eq!(summary.frames.of(Class::Offline), 32_768);
    assert_eq!(summary.frames.of(Class::Free), 32_768);
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
    assert_eq!(summary.contiguity.certain.blocks_2m.free, 64);
}

#[test]
fn the_worst_ranges_are_those_that_few_frames_pollute() {
    const GIGABYTE: usize = 1 << 18;
    let mut flags = vec![bit::BUDDY; 4 * GIGABYTE];
    flags[5] = bit::SLAB;
    flags[6] = bit::SLAB;
    flags[GIGABYTE + 7] = bit::PGTABLE;
    flags[2 * GIGABYTE..3 * GIGABYTE].fill(bit::SLAB);
    let mut census = Census::new(1, 2);
    let source = Recorded {
        cgroups: vec![9; flags.len()],
        counts: vec![2; flags.len()],
        flags,
        ..Recorded::default()
    };
    let areas = [online(0, 4 * GIGABYTE as u64)];
    scan(&source, &areas, pace(2), &mut census).unwrap();
    let summary = census.finish();
    assert_eq!(summary.polluted_ranges, 3);
    let worst: Vec<_> = summary
        .worst
        .iter()
        .map(|range| (range.gigabyte, range.unmovable, range.blocks_2m))
        .collect();
    assert_eq!(worst, [(1, 1, 1), (0, 2, 1)]);
    assert_eq!(summary.worst[0].polluters[0].class, Class::PageTable);
    assert_eq!(summary.worst[0].polluters[0].cgroup, 9);
    assert_eq!(summary.contiguity.certain.blocks_1g.free, 1);
}

#[test]
fn memory_far_up_costs_no_more_than_memory_down_here() {
    struct Far;
    impl PageSource for Far {
        fn read(&self, _: PageFile, _: u64, words: &mut [u64]) -> io::Result<usize> {
            words.fill(bit::BUDDY);
            Ok(words.len())
        }
        fn has(&self, file: PageFile) -> bool {
            file == PageFile::Flags
        }
    }
    // A gigabyte at the end of 52 bits of physical address.
    let end = 1_u64 << 40;
    let mut census = Census::new(1, 20);
    let areas = [online(end - (1 << 18), end)];
    scan(&Far, &areas, pace(1), &mut census).unwrap();
    let summary = census.finish();
    assert_eq!(summary.contiguity.certain.blocks_1g.free, 1);
    assert_eq!(summary.contiguity.certain.blocks_2m.total, 512);
}

#[test]
fn a_worker_that_panics_ends_the_scan_for_all() {
    struct Faulty;
    impl PageSource for Faulty {
        fn read(&self, _: PageFile, start: u64, words: &mut [u64]) -> io::Result<usize> {
            assert!(start < 1 << 16, "a fault of ours");
            words.fill(bit::BUDDY);
            Ok(words.len())
        }
        fn has(&self, file: PageFile) -> bool {
            file == PageFile::Flags
        }
    }
    let areas = [online(0, 1 << 20)];
    for threads in [1, 3] {
        let scanned =
            std::panic::catch_unwind(|| scan(&Faulty, &areas, pace(threads), &mut List::default()));
        assert!(scanned.is_err());
    }
}
