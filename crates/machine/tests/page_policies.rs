//! Do Ingens, HawkEye, Trident and Translation Ranger do what they should, when programs run on them?

use crate::common::NoCode;

use contigua_machine::config::{Detail, RunConfig};
use contigua_machine::{Engine, Report};
use contigua_program::sources::Batch;
use contigua_program::wire::{Access, ThreadId};
use contigua_units::VirtAddr;
use proptest::prelude::*;

const THP: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const INGENS: &str = include_str!("../../../python/contigua/data/designs/ingens.toml");
const HAWKEYE: &str = include_str!("../../../python/contigua/data/designs/hawkeye.toml");
const TRIDENT: &str = include_str!("../../../python/contigua/data/designs/trident.toml");
const RANGER: &str = include_str!("../../../python/contigua/data/designs/ranger.toml");

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const PARTS: u64 = 512;
/// 2 MB ranges of the mapping.
const RANGES: u64 = 5;

struct Server(Engine);

impl Server {
    fn new(design: &str, more: &str) -> Self {
        Self::sized(design, more, 64 << 20, RANGES * PARTS * PAGE)
    }

    /// A server with so much memory, and a mapping of a length.
    fn sized(design: &str, more: &str, memory: u64, length: u64) -> Self {
        let design = crate::common::design(&format!("{design}{more}\n"));
        let config = crate::common::config(design, crate::common::machine(memory));
        let mut server = Self(crate::common::engine(RunConfig {
            detail: Detail::Additive,
            ..config
        }));
        server.call(9, [0, length, 3, 0x22, 0, 0], BASE);
        server
    }

    fn consume(&mut self, words: &[u64]) {
        let batch = Batch {
            thread: ThreadId(0),
            words,
            code: &NoCode,
        };
        self.0.consume(batch).unwrap();
    }

    fn call(&mut self, number: u16, arguments: [u64; 6], result: u64) {
        let event = crate::common::syscall(number, arguments, result);
        self.consume(event.encode().words());
    }

    fn access(&mut self, page: u64, store: bool) {
        let access = Access {
            address: VirtAddr::new(BASE + page * PAGE + page % 64 * 8),
            size_log2: 3,
            store,
            instruction: 0,
        };
        self.consume(&[access.encode()]);
    }

    fn touch(&mut self, pages: std::ops::Range<u64>) {
        pages.for_each(|page| self.access(page, true));
    }

    /// The report after the kernel's threads have run.
    fn after_background(&mut self) -> Report {
        self.0.background();
        self.0.validate().unwrap();
        self.0.report()
    }
}

#[test]
fn ingens_promotes_a_range_that_is_used_to_nine_tenths() {
    let used = |more: &str| {
        let mut server = Server::new(INGENS, more);
        server.touch(0..461);
        server.touch(PARTS..PARTS + 460);
        server.touch(2 * PARTS..2 * PARTS + 1);
        let report = server.after_background();
        assert_eq!(report.kernel.faults_anonymous_2m, 0, "faults map 4 KB");
        report.kernel.huge_page_collapses
    };
    let soon = "interval = \"1us\"\nlook_interval = \"1us\"";
    assert_eq!(used(&format!("{soon}\naggressive_below_percent = 0")), 1);
    assert_eq!(used(soon), 3, "while free memory is not fragmented");
    assert_eq!(used(&format!("{soon}\nenabled = \"never\"")), 0);
}

fn kernel_cycles(report: &Report) -> u64 {
    let time = report.time.as_ref().expect("cycles are counted");
    time.breakdown.kernel.get()
}

/// Threads of HawkEye that run at once.
const AT_ONCE: &str = "look_interval = \"1us\"\nlook_window = \"1us\"\nrecovery_interval = \"1us\"
above_percent = 1\nuntil_percent = 0";

#[test]
fn hawkeye_takes_back_what_was_not_written() {
    let mut server = Server::new(HAWKEYE, AT_ONCE);
    server.touch(0..100);
    // Loads leave zeros as they are, before and after the store that maps the page.
    server.access(200, false);
    server.access(PARTS, true);
    (PARTS..PARTS + 50).for_each(|page| server.access(page, false));
    server.touch(2 * PARTS..3 * PARTS);
    let report = server.after_background();
    assert_eq!(report.kernel.faults_anonymous_2m, 3);
    assert_eq!(report.kernel.zeros_recovered, 412 + 511);
    assert_eq!(report.kernel.huge_page_splits, 2, "a full one stays");
    // What was taken back faults again when it is written.
    let faults = report.kernel.faults_anonymous_4k;
    server.touch(100..200);
    server.touch(0..100);
    let report = server.after_background();
    assert_eq!(report.kernel.faults_anonymous_4k, faults + 100);
}

#[test]
fn reading_what_is_taken_back_costs_what_zeroing_it_does() {
    let cost = |written: u64| {
        let mut server = Server::new(HAWKEYE, AT_ONCE);
        server.touch(0..written);
        let before = kernel_cycles(&server.0.report());
        let report = server.after_background();
        assert_eq!(report.kernel.zeros_recovered, PARTS - written);
        kernel_cycles(&report) - before
    };
    let zeroing = crate::common::machine(64 << 20).kernel.zero_4k_cycles.get();
    assert!(
        cost(1) - cost(501) >= 500 * zeroing,
        "{} {}",
        cost(1),
        cost(501)
    );
}

#[test]
fn parameters_of_hawkeye_that_contradict_each_other_are_refused() {
    for (more, said) in [
        (
            "look_window = \"2s\"\nlook_interval = \"1s\"",
            "hawkeye.look_window is 2s; it is at most look_interval, 1s",
        ),
        (
            "until_percent = 86",
            "hawkeye.until_percent is 86; it is at most above_percent, 85",
        ),
    ] {
        let design = crate::common::design(&format!("{HAWKEYE}{more}\n"));
        let config = crate::common::config(design, crate::common::machine(64 << 20));
        let Err(error) = Engine::new(config, crate::common::program()) else {
            panic!("{more} is taken");
        };
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn hawkeye_recovers_only_above_the_watermark() {
    let recovered = |percent: u32| {
        let more = AT_ONCE.replace(
            "above_percent = 1\n",
            &format!("above_percent = {percent}\n"),
        );
        let mut server = Server::new(HAWKEYE, &more);
        server.touch(0..1);
        server.after_background().kernel.zeros_recovered
    };
    assert_eq!((recovered(1), recovered(90)), (511, 0));
}

#[test]
fn faults_do_not_zero_what_was_zeroed_ahead() {
    let work = |rate: u64| {
        let mut server = Server::new(HAWKEYE, &format!("zeroed_per_second = {rate}"));
        server.touch(0..1);
        server.after_background();
        let before = server.0.report();
        server.touch(PARTS..PARTS + 1);
        let after = server.0.report();
        (
            after.kernel.prezeroed_pages - before.kernel.prezeroed_pages,
            kernel_cycles(&after) - kernel_cycles(&before),
        )
    };
    let (none, zeroing) = work(0);
    let (all, ahead) = work(100_000_000);
    assert_eq!((none, all), (0, 512));
    assert!(ahead * 4 < zeroing, "{ahead} of {zeroing}");
}

/// The kernel's report of a process that uses a few pages of an aligned gigabyte.
fn trident(more: &str, memory: u64) -> contigua_machine::KernelReport {
    let mut server = Server::sized(TRIDENT, more, memory, 1 << 30);
    server.touch(0..3);
    server.after_background();
    server.touch(PARTS..PARTS + 3);
    server.after_background().kernel
}

#[test]
fn trident_maps_1_gb_where_it_is_free() {
    let kernel = trident("", 3 << 30);
    let faults = kernel.faults_anonymous_4k + kernel.faults_anonymous_2m;
    assert_eq!((kernel.giant_pages, faults), (1, 1), "all is mapped by one");
    let kernel = trident("at_faults = false", 3 << 30);
    assert_eq!((kernel.giant_pages, kernel.faults_anonymous_2m), (0, 2));
    let kernel = trident("", 1 << 30);
    let all = (kernel.giant_pages, kernel.giant_page_fallbacks);
    assert_eq!(all, (0, 1), "memory is as large as the page");
    assert_eq!(kernel.faults_anonymous_2m, 2);
}

#[test]
fn trident_makes_1_gb_of_what_is_used_enough() {
    let promoted = |more: &str| {
        let soon = format!("at_faults = false\ninterval = \"1us\"\n{more}");
        trident(&soon, 3 << 30).giant_page_promotions
    };
    assert_eq!(promoted("used_percent = 0"), 1);
    assert_eq!(promoted("used_percent = 1"), 0, "2 MB of 1 GB are 0.2 %");
    assert_eq!(promoted("used_percent = 0\npages = 0"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(20)))]
    /// Stores are followed without a trace in what is simulated.
    #[test]
    fn hawkeye_and_trident_whose_threads_sleep_are_linux(
        accesses in proptest::collection::vec((0..RANGES * PARTS, any::<bool>()), 1..300),
    ) {
        let run = |design: &str, more: &str| {
            let mut server = Server::new(design, more);
            for &(page, store) in &accesses {
                server.access(page, store);
            }
            let report = server.after_background();
            (report.translation, report.kernel, report.time)
        };
        let linux = run(THP, "");
        prop_assert_eq!(&run(HAWKEYE, "zeroed_per_second = 0"), &linux);
        prop_assert_eq!(run(TRIDENT, "zeroed_per_second = 0"), linux);
    }
}

/// Translation Ranger's report of a process that uses small pages in descending order, which lie in ascending frames.
fn ranger(more: &str) -> contigua_machine::RangerReport {
    let soon = "interval = \"1us\"\nalign = \"2m\"";
    let small = RANGER.replace("\"always\"", "\"madvise\"");
    let mut server = Server::new(&small, &format!("{soon}\n{more}"));
    (0..RANGES * PARTS)
        .rev()
        .for_each(|page| server.access(page, true));
    let report = server.after_background();
    let work = report.time.as_ref().expect("cycles are counted");
    let ranger = report.ranger.expect("the design has the thread");
    assert!(work.breakdown.kernel.get() >= ranger.work_cycles);
    ranger
}

#[test]
fn ranger_makes_a_mapping_one_run() {
    let least = "least = \"2MiB\"";
    let still = ranger(&format!("{least}\nmoves = false"));
    assert_eq!((still.passes, still.work_cycles), (0, 0));
    assert!(still.runs.runs > 100, "{still:?}");
    let all = ranger(least);
    assert!(all.runs.covering_99_percent <= 3, "{all:?}");
    assert!(
        all.runs.bytes_in_2m > (RANGES - 1) * PARTS * PAGE,
        "{all:?}"
    );
    assert!(all.moved_pages + all.exchanged_pages > 0 && all.work_cycles > 0);
    assert_eq!(
        all.huge_pages_made, 0,
        "the program does not ask for huge pages"
    );
    assert!(ranger("").runs.runs > 100, "the mapping is too small");
}
