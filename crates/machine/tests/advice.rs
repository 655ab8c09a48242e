//! Does `madvise` do to a program's memory what a list of pages says it should?

use crate::common::NoCode;
use std::collections::{BTreeMap, BTreeSet};

use contigua_machine::config::{Age, Detail, RunConfig};
use contigua_machine::{AdviceReport, Engine};
use contigua_program::sources::Batch;
use contigua_program::wire::{Access, ThreadId};
use contigua_units::{Bytes, VirtAddr};
use proptest::prelude::*;

const ALWAYS: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const MADVISE: &str = include_str!("../../../python/contigua/data/designs/linux-thp-madvise.toml");
const PERFORATED: &str = include_str!("../../../python/contigua/data/designs/perforated.toml");
const BASE_ONLY: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const PARTS: u64 = 512;
/// Pages of the mapping, which ends in the middle of a 2 MB range.
const PAGES: u64 = 6 * PARTS + 100;

const DONT_NEED: u64 = 4;
const HUGE: u64 = 14;
const NO_HUGE: u64 = 15;
const COLLAPSE: u64 = 25;

#[derive(Clone, Debug)]
enum Step {
    Touch(u64),
    Advise(u64, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let edge = prop_oneof![0..PAGES, (0..6u64).prop_map(|chunk| chunk * PARTS)];
    let length = prop_oneof![1..1500u64, (1..4u64).prop_map(|chunks| chunks * PARTS)];
    let advice = prop::sample::select(vec![DONT_NEED, DONT_NEED, HUGE, NO_HUGE, COLLAPSE]);
    prop_oneof![
        3 => (0..PAGES).prop_map(Step::Touch),
        1 => (edge, length, advice).prop_map(|(at, pages, advice)| {
            Step::Advise(at, pages.min(PAGES - at), advice)
        }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Always,
    Madvise,
    Never,
}

/// Mapped pages.
struct Model {
    when: When,
    /// By page: the advice it was given.
    advice: Vec<u64>,
    /// By page: whether it is mapped with 2 MB.
    mapped: BTreeMap<u64, bool>,
    /// First pages of the 2 MB ranges that have a page table, which stays.
    tables: BTreeSet<u64>,
    faults: [u64; 2],
    counts: AdviceReport,
    given_back: u64,
    given_back_whole: u64,
}

impl Model {
    fn new(when: When) -> Self {
        Self {
            when,
            advice: vec![0; PAGES as usize],
            mapped: BTreeMap::new(),
            tables: BTreeSet::new(),
            faults: [0, 0],
            counts: AdviceReport::default(),
            given_back: 0,
            given_back_whole: 0,
        }
    }

    /// The 2 MB around a page, if one mapping has all of it.
    fn chunk(&self, page: u64) -> Option<std::ops::Range<u64>> {
        let start = page / PARTS * PARTS;
        let pages = start..start + PARTS;
        let alike = |other: u64| self.advice.get(other as usize) == self.advice.get(page as usize);
        pages.clone().all(alike).then_some(pages)
    }

    fn split(&mut self, page: u64) {
        let start = page / PARTS * PARTS;
        self.tables.insert(start);
        for part in start..start + PARTS {
            self.mapped.insert(part, false);
        }
    }

    /// Makes small pages where a huge one reaches across the beginning of a page.
    fn split_before(&mut self, page: u64) -> u64 {
        let across = !page.is_multiple_of(PARTS) && self.mapped.get(&page) == Some(&true);
        if across {
            self.split(page);
        }
        u64::from(across)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Touch(page) => self.touch(page),
            Step::Advise(at, pages, DONT_NEED) => self.release(at, at + pages),
            Step::Advise(at, pages, COLLAPSE) => self.collapse(at, at + pages),
            Step::Advise(at, pages, advice) => {
                if advice == HUGE {
                    self.counts.huge += 1;
                } else {
                    self.counts.no_huge += 1;
                }
                let before = self.advice.clone();
                for page in at..at + pages {
                    self.advice[page as usize] = advice;
                }
                // Where a mapping ends that did not before, no page reaches across.
                let changed = |page: u64| {
                    let page = page as usize;
                    page < before.len() && before[page] != self.advice[page]
                };
                let edges = at..=at + pages;
                let cuts: Vec<u64> = edges
                    .filter(|&edge| changed(edge) || edge > 0 && changed(edge - 1))
                    .filter(|&edge| {
                        let kind = |page: u64| (before.get(page as usize), changed(page));
                        edge == 0 || kind(edge) != kind(edge - 1)
                    })
                    .collect();
                for edge in cuts {
                    self.split_before(edge);
                }
            }
        }
    }

    fn touch(&mut self, page: u64) {
        if self.mapped.contains_key(&page) {
            return;
        }
        let advice = self.advice[page as usize];
        let wanted = match self.when {
            When::Always => advice != NO_HUGE,
            When::Madvise => advice == HUGE,
            When::Never => false,
        };
        let chunk = self
            .chunk(page)
            .filter(|chunk| wanted && chunk.clone().all(|part| !self.mapped.contains_key(&part)))
            .filter(|chunk| !self.tables.contains(&chunk.start));
        let huge = chunk.is_some();
        if !huge {
            self.tables.insert(page / PARTS * PARTS);
        }
        for part in chunk.unwrap_or(page..page + 1) {
            self.mapped.insert(part, huge);
        }
        self.faults[usize::from(huge)] += 1;
    }

    fn release(&mut self, start: u64, end: u64) {
        self.counts.dont_need += 1;
        self.counts.huge_pages_broken += self.split_before(start) + self.split_before(end);
        for page in start..end {
            if let Some(huge) = self.mapped.remove(&page) {
                self.given_back += PAGE;
                self.given_back_whole += PAGE * u64::from(huge);
            }
        }
    }

    fn collapse(&mut self, start: u64, end: u64) {
        self.counts.collapse += 1;
        for first in (start.next_multiple_of(PARTS)..).step_by(PARTS as usize) {
            if first + PARTS > end {
                return;
            }
            let small = (first..first + PARTS).any(|part| self.mapped.get(&part) == Some(&false));
            let allowed = self.when != When::Never && self.advice[first as usize] != NO_HUGE;
            if let Some(chunk) = self.chunk(first)
                && small
                && allowed
            {
                self.counts.collapsed += 1;
                self.tables.remove(&first);
                for part in chunk {
                    self.mapped.insert(part, true);
                }
            }
        }
    }
}

fn server(design: &str) -> Engine {
    let design = crate::common::design(design);
    crate::common::engine(crate::common::config(
        design,
        crate::common::machine(256 << 20),
    ))
}

fn syscall(number: u16, arguments: [u64; 6], result: u64) -> Vec<u64> {
    let event = crate::common::syscall(number, arguments, result);
    event.encode().words().to_vec()
}

fn words(step: &Step) -> Vec<u64> {
    match *step {
        Step::Touch(page) => {
            let access = Access {
                address: VirtAddr::new(BASE + page * PAGE),
                size_log2: 3,
                store: true,
                instruction: 0,
            };
            vec![access.encode()]
        }
        Step::Advise(at, pages, advice) => {
            syscall(28, [BASE + at * PAGE, pages * PAGE, advice, 0, 0, 0], 0)
        }
    }
}

fn consume(engine: &mut Engine, words: &[u64]) {
    let batch = Batch {
        thread: ThreadId(0),
        words,
        code: &NoCode,
    };
    engine.consume(batch).unwrap();
}

proptest! {
    #[test]
    fn advice_agrees_with_a_list_of_pages(
        steps in prop::collection::vec(step(), 1..120),
        choice in 0..3usize,
    ) {
        let designs = [
            (ALWAYS, When::Always),
            (MADVISE, When::Madvise),
            (BASE_ONLY, When::Never),
        ];
        let (design, when) = designs[choice];
        let mut engine = server(design);
        let mut model = Model::new(when);
        consume(&mut engine, &syscall(9, [0, PAGES * PAGE, 3, 0x22, 0, 0], BASE));
        for step in &steps {
            consume(&mut engine, &words(step));
            model.step(step);
            let report = engine.report();
            let faults = [report.kernel.faults_anonymous_4k, report.kernel.faults_anonymous_2m];
            prop_assert_eq!(faults, model.faults, "after {:?}", step);
            let expected = AdviceReport {
                given_back: Bytes::new(model.given_back),
                given_back_whole: Bytes::new(model.given_back_whole),
                ..model.counts
            };
            prop_assert_eq!(report.advice, expected, "after {:?}", step);
        }
        engine.validate().unwrap();
    }
}

/// A collapse needs a block of 2 MB, and one that fails changes nothing.
#[test]
fn is_a_collapse_without_memory_counted_and_harmless() {
    let mut engine = server(MADVISE);
    let mapped = 300 << 20;
    consume(&mut engine, &syscall(9, [0, mapped, 3, 0x22, 0, 0], BASE));
    // Small pages in nearly all memory, of which each second one is given back, but in the last.
    let pages = (230 << 20) / PAGE;
    for page in 0..pages {
        consume(&mut engine, &words(&Step::Touch(page)));
    }
    let before = engine.report();
    assert_eq!(before.kernel.faults_anonymous_2m, 0);
    let chunks = 4;
    consume(
        &mut engine,
        &words(&Step::Advise(0, chunks * PARTS, COLLAPSE)),
    );
    let after = engine.report().advice;
    assert_eq!(after.collapse, 1);
    assert_eq!(after.collapsed + after.collapses_failed, chunks);
    engine.validate().unwrap();
    for page in 0..pages {
        consume(&mut engine, &words(&Step::Touch(page)));
    }
    assert_eq!(
        engine.report().kernel.faults_anonymous_4k,
        before.kernel.faults_anonymous_4k
    );
}

/// Linux frees page tables with mappings only: where one is left, faults map 4 KB until the
/// background pass collapses.
#[test]
fn a_huge_page_that_was_given_back_in_part_is_small_until_it_is_collapsed() {
    let mut engine = server(ALWAYS);
    consume(
        &mut engine,
        &syscall(9, [0, 4 * PARTS * PAGE, 3, 0x22, 0, 0], BASE),
    );
    let faults = |engine: &Engine| {
        let kernel = engine.report().kernel;
        [kernel.faults_anonymous_4k, kernel.faults_anonymous_2m]
    };
    let touch = |engine: &mut Engine, page| consume(engine, &words(&Step::Touch(page)));
    touch(&mut engine, 0);
    touch(&mut engine, PARTS);
    assert_eq!(faults(&engine), [0, 2]);
    // The first one in two halves, the second one whole.
    for (at, pages) in [(0, PARTS / 2), (PARTS / 2, PARTS / 2), (PARTS, PARTS)] {
        consume(&mut engine, &words(&Step::Advise(at, pages, DONT_NEED)));
    }
    touch(&mut engine, 5);
    touch(&mut engine, PARTS + 5);
    assert_eq!(faults(&engine), [1, 3]);
    consume(&mut engine, &words(&Step::Advise(0, PARTS, COLLAPSE)));
    consume(&mut engine, &words(&Step::Advise(0, PARTS, DONT_NEED)));
    touch(&mut engine, 5);
    assert_eq!(faults(&engine), [1, 4]);
    // A new mapping has new page tables.
    consume(&mut engine, &words(&Step::Advise(0, PARTS / 2, DONT_NEED)));
    consume(
        &mut engine,
        &words(&Step::Advise(PARTS / 2, PARTS / 2, DONT_NEED)),
    );
    consume(
        &mut engine,
        &syscall(9, [0, 4 * PARTS * PAGE, 3, 0x22, 0, 0], BASE),
    );
    touch(&mut engine, 5);
    assert_eq!(faults(&engine), [1, 5]);
    engine.validate().unwrap();
}

/// Effort of a fault where no 2 MB block is free: by `defrag`, in memory with advice and without.
#[test]
fn defrag_setting_decides_who_compacts_for_a_huge_page() {
    let compactions = |defrag: &str, is_advised: bool| {
        // A boost would have the background compact before the fault, in vain, and defer the fault's.
        let memory = format!("[memory]\nboosts_wake = false\ndefrag = \"{defrag}\"\n");
        let design = crate::common::design(&format!("{ALWAYS}\n{memory}"));
        let mut config = crate::common::config(design, crate::common::machine(256 << 20));
        // Unmovable frames in every block.
        config.age = Age::Scattered(0.03);
        let mut engine = crate::common::engine(config);
        consume(
            &mut engine,
            &syscall(9, [0, 4 * PARTS * PAGE, 3, 0x22, 0, 0], BASE),
        );
        if is_advised {
            consume(&mut engine, &words(&Step::Advise(0, 4 * PARTS, HUGE)));
        }
        consume(&mut engine, &words(&Step::Touch(0)));
        engine.background();
        let report = engine.report();
        assert_eq!(report.kernel.faults_anonymous_4k, 1);
        [
            report.frames.direct_compactions,
            report.frames.background_compactions,
        ]
    };
    for (defrag, elsewhere, advised) in [
        ("always", [1, 0], [1, 0]),
        ("defer", [0, 1], [0, 1]),
        ("defer+madvise", [0, 1], [1, 0]),
        ("madvise", [0, 0], [1, 0]),
        ("never", [0, 0], [0, 0]),
    ] {
        assert_eq!(compactions(defrag, false), elsewhere, "{defrag}");
        assert_eq!(compactions(defrag, true), advised, "{defrag}, advised");
    }
}

/// A fault that compacts moves what can move out of a block, and maps it without the frames that stay.
#[test]
fn a_fault_makes_a_perforated_page_around_what_cannot_move() {
    let perforations = |defrag: &str| {
        let memory = format!("[memory]\nboosts_wake = false\ndefrag = \"{defrag}\"\n");
        let design = crate::common::design(&format!("{PERFORATED}\n{memory}"));
        let mut config = crate::common::config(design, crate::common::machine(256 << 20));
        // 15 unmovable frames in every block.
        config.age = Age::Scattered(0.03);
        let mut engine = crate::common::engine(config);
        consume(
            &mut engine,
            &syscall(9, [0, 300 << 20, 3, 0x22, 0, 0], BASE),
        );
        // Small pages of which each second one is given back.
        let pages = (200 << 20) / PAGE;
        consume(&mut engine, &words(&Step::Advise(0, pages, NO_HUGE)));
        (0..pages).for_each(|page| consume(&mut engine, &words(&Step::Touch(page))));
        for page in (0..pages).step_by(2) {
            consume(&mut engine, &words(&Step::Advise(page, 1, DONT_NEED)));
        }
        // Blocks of which little is in use go first.
        let mut chunks = (0..40).map(|chunk| pages + chunk * PARTS);
        let mut before = engine.report();
        loop {
            consume(&mut engine, &words(&Step::Touch(chunks.next()?)));
            let after = engine.report();
            if after.kernel.pages_moved > 0
                || after.kernel.perforations == before.kernel.perforations
            {
                engine.validate().unwrap();
                let made = after.kernel.perforations - before.kernel.perforations;
                return Some((made, after.kernel.pages_moved));
            }
            before = after;
        }
    };
    assert_eq!(perforations("never"), Some((0, 0)));
    let (made, moved) = perforations("always").unwrap();
    assert_eq!(made, 1);
    assert!((1..PARTS).contains(&moved), "{moved}");
}

/// khugepaged compacts memory by itself, whatever `defrag` says.
#[test]
fn khugepaged_compacts_memory_for_its_pages() {
    let design = format!(
        "{ALWAYS}scan_interval = \"1us\"\n[memory]\ndefrag = \"never\"\ncompaction_proactiveness = 0\n"
    );
    let config = crate::common::config(
        crate::common::design(&design),
        crate::common::machine(256 << 20),
    );
    let mut engine = crate::common::engine(RunConfig {
        detail: Detail::Additive,
        ..config
    });
    // Small pages in most memory and huge ones in the rest, until no block is free. Then each second
    // small page is given back, but in the first 16 MB.
    let (pages, kept) = ((200 << 20) / PAGE, 8 * PARTS);
    consume(
        &mut engine,
        &syscall(9, [0, 300 << 20, 3, 0x22, 0, 0], BASE),
    );
    consume(&mut engine, &words(&Step::Advise(0, pages, NO_HUGE)));
    (0..pages).for_each(|page| consume(&mut engine, &words(&Step::Touch(page))));
    (0..30).for_each(|chunk| consume(&mut engine, &words(&Step::Touch(pages + chunk * PARTS))));
    assert!(engine.report().kernel.huge_page_fallbacks > 0);
    for page in (kept..pages).step_by(2) {
        consume(&mut engine, &words(&Step::Advise(page, 1, DONT_NEED)));
    }
    consume(&mut engine, &words(&Step::Advise(0, kept, HUGE)));
    let before = engine.report();
    assert_eq!(before.frames.direct_compactions, 0);
    engine.background();
    let after = engine.report();
    assert!(after.frames.direct_compactions > 0);
    assert!(after.kernel.pages_moved > 0 && after.kernel.huge_page_collapses > 0);
    engine.validate().unwrap();
}
