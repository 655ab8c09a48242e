//! Several cores, pages that migrate under them, and a network device: do the properties of
//! mechanisms E-B hold on the whole server?

use crate::common::engine;
use contigua_cache::coherent::MigrationTraffic;
use contigua_cache::migration::{Mode, SwitchOrder};
use contigua_machine::config::{
    Detail, LlcMigration, MigrationConfig, RunConfig, Shootdown, SoftwareMigration,
};
use contigua_machine::{Engine, MigrationReport, Report, Unavailable};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::sources::{Batch, Program};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::{Cycles, Nanoseconds, VirtAddr};
use proptest::prelude::*;

const BASE: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const HEAP: u64 = 0x4000_0000;
const PAGES: u64 = 64;

/// Blocks of four moves from memory.
struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        (block.0 < 16).then_some(BlockCode {
            address: VirtAddr::new(0x40_0000 + 64 * u64::from(block.0)),
            lengths: &[3, 3, 3, 3],
            // mov rax, [rbx]; mov rcx, [rdx]; mov [rsi], rax; mov rdi, [rdi]
            bytes: &[
                0x48, 0x8b, 0x03, 0x48, 0x8b, 0x0a, 0x48, 0x89, 0x06, 0x48, 0x8b, 0x3f,
            ],
        })
    }
}

fn config(cores: u32, rate: f64, migration: MigrationConfig) -> RunConfig {
    let mut design = crate::common::design(BASE);
    design.migration = migration;
    RunConfig {
        detail: Detail::Full,
        cores,
        migrations_per_second: rate,
        seed: 5,
        ..crate::common::config(design, crate::common::machine(256 << 20))
    }
}

fn software() -> MigrationConfig {
    MigrationConfig::default()
}

fn llc() -> MigrationConfig {
    MigrationConfig::Llc(LlcMigration::default())
}

fn syscall(number: u16, arguments: [u64; 6], result: u64) -> Vec<u64> {
    let event = crate::common::syscall(number, arguments, result);
    event.encode().words().to_vec()
}

fn start() -> Vec<u64> {
    let process = ProcessId(0);
    Event::ThreadStart { process }.encode().words().to_vec()
}

/// Words of a thread, with its number.
type Part = (u32, Vec<u64>);

/// Threads that touch the same pages, each in an order of its own.
fn touching(threads: u32, rounds: u64) -> Vec<Part> {
    touching_lines(threads, rounds, 64)
}

/// Touches so many lines of each page.
fn touching_lines(threads: u32, rounds: u64, lines: u64) -> Vec<Part> {
    let map = syscall(9, [0, PAGES * 4096, 3, 0x22, 0, 0], HEAP);
    let mut parts = vec![(0, start()), (0, map)];
    parts.extend((1..threads).map(|thread| (thread, start())));
    for round in 0..rounds {
        for thread in 0..threads {
            parts.push((thread, touches_lines(u64::from(thread), round, lines)));
        }
    }
    parts
}

fn touches(thread: u64, round: u64) -> Vec<u64> {
    touches_lines(thread, round, 64)
}

fn touches_lines(thread: u64, round: u64, lines: u64) -> Vec<u64> {
    let mut words = Vec::new();
    for step in 0..64_u64 {
        words.push(block_word(BlockId((step % 16) as u32)));
        for (instruction, store) in [(0, false), (1, false), (2, true), (3, false)] {
            let mixed = (step * 4 + u64::from(instruction) + thread * 7919 + round * 104_729)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let page = (mixed >> 32) % PAGES;
            let line = (mixed >> 48) % lines;
            let access = Access {
                address: VirtAddr::new(HEAP + page * 4096 + line * 64),
                size_log2: 3,
                store,
                instruction,
            };
            words.push(access.encode());
        }
    }
    // A call that does nothing to memory: an entry into the kernel.
    words.extend(syscall(39, [0; 6], 1));
    words
}

fn run(config: RunConfig, parts: &[Part]) -> Report {
    let mut engine = engine(config);
    for (thread, words) in parts {
        let thread = ThreadId(*thread);
        engine
            .consume(Batch {
                thread,
                words,
                code: &Code,
            })
            .unwrap();
        engine.background();
    }
    engine.finish().unwrap();
    engine.validate().unwrap();
    engine.report()
}

/// The report without its configuration, and without what the hardware of that takes to build.
fn results(report: &Report) -> serde_json::Value {
    let mut value: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.remove("config").unwrap();
    fields.remove("hardware").unwrap();
    value
}

#[test]
fn an_idle_migration_table_changes_nothing() {
    let parts = touching(4, 20);
    let plain = run(config(4, 0.0, software()), &parts);
    let ready = run(config(4, 0.0, llc()), &parts);
    assert_eq!(results(&plain), results(&ready));
}

/// Migrations in a run of so many cores.
fn migrated(config: RunConfig, rounds: u64) -> MigrationReport {
    let parts = touching(config.cores, rounds);
    let report = run(config, &parts);
    let migration = report.migration.unwrap();
    assert!(migration.completed > 0, "{migration:?}");
    assert_eq!(migration.unavailable.count, migration.completed);
    migration
}

/// The growth of software's longest unavailable time with each further TLB, from 8 to 32.
fn software_slope(interrupt_target: u64) -> f64 {
    let longest = |cores| {
        let mut config = config(cores, 50_000.0, software());
        config.machine.kernel.interrupt_target_cycles = Cycles::new(interrupt_target);
        migrated(config, 40).unavailable.max_cycles.get() as f64
    };
    (longest(32) - longest(8)) / 24.0
}

#[test]
fn unavailable_time_in_software_grows_with_the_cost_of_an_interrupt() {
    let (once, twice) = (software_slope(1000), software_slope(2000));
    assert!((900.0..1100.0).contains(&once), "{once}");
    assert!((1.9..2.1).contains(&(twice / once)), "{once} {twice}");
}

#[test]
fn an_access_to_a_page_that_software_moves_waits_for_its_page_fault_too() {
    let migration = migrated(config(8, 50_000.0, software()), 40);
    let costs = crate::common::machine(1 << 20).kernel;
    // Clear, invalidate and interrupt 7 cores, copy at 2 us of 2.1 GHz, write.
    let away = 200 + 200 + 2000 + 7 * 1000 + 4200 + 200;
    let longest = migration.unavailable.max_cycles.get();
    assert!(longest > away, "{longest}");
    assert!(longest <= away + costs.page_fault_cycles.get(), "{longest}");
    assert!(migration.interprocessor_interrupts > 0);
}

/// Hardware's unavailable times on so many cores, where a hop takes this long.
fn hardware_times(cores: u32, hop: u64) -> Unavailable {
    let mut config = config(cores, 50_000.0, llc());
    config.machine.cache.shared.hop_cycles = Cycles::new(hop);
    let migration = migrated(config, 160);
    assert_eq!(migration.interprocessor_interrupts, 0);
    assert_eq!(migration.bytes_copied, migration.completed * 4096);
    migration.unavailable
}

#[test]
fn unavailable_time_in_hardware_does_not_grow_with_the_number_of_tlbs() {
    let times: Vec<_> = [2, 8, 32]
        .into_iter()
        .map(|cores| hardware_times(cores, 2))
        .collect();
    let costs = crate::common::machine(1 << 20).kernel;
    let invalidation = costs.invalidation_cycles.get();
    for times in &times {
        // A core's own invalidation, and at most a line's copy, a recall and a hop (E-B 8).
        assert!(times.min_cycles.get() >= invalidation, "{times:?}");
        assert!(times.max_cycles.get() <= invalidation + 600, "{times:?}");
    }
    let most = |at: usize| times[at].max_cycles.get() as f64;
    assert!(most(2) < 2.0 * most(0), "{times:?}");
}

/// Half of these migrations wait for an entry of the table; a page that waits does not begin again.
#[test]
fn a_page_that_waits_for_the_migration_table_is_not_chosen_again() {
    let migration = migrated(config(2, 5e6, llc()), 160);
    assert!(migration.retries > 100, "{migration:?}");
}

#[test]
fn unavailable_time_in_hardware_grows_with_a_slower_recall() {
    let mean = |times: &Unavailable| times.total_cycles.get() as f64 / times.count as f64;
    let (fast, slow) = (hardware_times(8, 2), hardware_times(8, 40));
    assert!(mean(&slow) > mean(&fast) + 20.0, "{fast:?} {slow:?}");
    assert!(slow.max_cycles > fast.max_cycles, "{fast:?} {slow:?}");
}

/// All cores invalidate what moves, and miss it one after the other: it is one page in use, not 64.
#[test]
fn a_page_that_all_cores_missed_is_one_of_those_in_use() {
    let migration = migrated(config(64, 1_000_000.0, llc()), 60);
    assert!(
        5 * migration.completed > 4 * migration.requested,
        "{migration:?}"
    );
}

#[test]
fn the_last_levels_table_has_traffic_and_software_none() {
    let plain = run(config(4, 0.0, llc()), &touching(4, 20));
    assert_eq!(plain.migration, None);
    assert_eq!(
        migrated(config(4, 50_000.0, software()), 40).traffic,
        MigrationTraffic::default()
    );
    let migration = migrated(config(4, 50_000.0, llc()), 40);
    let traffic = migration.traffic;
    assert!(traffic.forwarded > 0 && traffic.forwarded < traffic.lookups);
    assert_eq!(traffic.lookup_picojoules, traffic.lookups * 17 / 10);
    assert!(traffic.copies_from_memory <= 64 * (migration.completed + 16));
}

#[test]
fn every_way_to_migrate_leaves_the_program_its_accesses() {
    let parts = touching(4, 60);
    let plain = run(config(4, 0.0, software()), &parts);
    let lazy = MigrationConfig::Software(SoftwareMigration {
        shootdown: Shootdown::Lazy,
        ..SoftwareMigration::default()
    });
    let batched = MigrationConfig::Software(SoftwareMigration {
        batch: 4,
        ..SoftwareMigration::default()
    });
    let mut ways = vec![software(), lazy, batched];
    for mode in [Mode::Cacheable, Mode::Noncacheable] {
        for order in [SwitchOrder::CopyThenSwitch, SwitchOrder::SwitchThenCopy] {
            ways.push(MigrationConfig::Llc(LlcMigration { mode, order }));
        }
    }
    for way in ways {
        let report = run(config(4, 200_000.0, way.clone()), &parts);
        assert_eq!(report.executed, plain.executed);
        assert_eq!(report.tlb.data.lookups, plain.tlb.data.lookups);
        assert_eq!(report.program.events, plain.program.events);
        let migration = report.migration.unwrap();
        assert!(
            migration.completed > 0 || migration.requested > 0,
            "{way:?}"
        );
    }
}

fn llc_requests(report: &Report) -> u64 {
    let data = report.cache.as_ref().unwrap().data;
    data.llc + data.memory
}

#[test]
fn pages_that_may_not_be_cached_go_to_the_last_level_more_often() {
    // One line of each page: pages that migrate are used again meanwhile.
    let parts = touching_lines(4, 200, 1);
    let way = |mode| {
        let order = SwitchOrder::CopyThenSwitch;
        MigrationConfig::Llc(LlcMigration { mode, order })
    };
    let cacheable = run(config(4, 1e6, way(Mode::Cacheable)), &parts);
    let noncacheable = run(config(4, 1e6, way(Mode::Noncacheable)), &parts);
    assert!(
        llc_requests(&noncacheable) > llc_requests(&cacheable),
        "{} and {}",
        llc_requests(&noncacheable),
        llc_requests(&cacheable)
    );
}

/// A server whose threads receive and send through sockets.
fn serving(threads: u32, rounds: u64) -> Vec<Part> {
    const SOCKET: u16 = 41;
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    let mut parts = touching(threads, 1);
    parts.push((0, syscall(SOCKET, [2, 1, 0, 0, 0, 0], 7)));
    for round in 0..rounds {
        for thread in 0..threads {
            let mut words = syscall(READ, [7, HEAP, 16_384, 0, 0, 0], 9_000);
            words.extend(touches(u64::from(thread), round));
            words.extend(syscall(WRITE, [7, HEAP, 16_384, 0, 0, 0], 12_000));
            parts.push((thread, words));
        }
    }
    parts
}

#[test]
fn a_device_works_while_processors_go_on() {
    let once = |gigabits_per_second, touched: u64| {
        let mut config = config(1, 0.0, llc());
        config.machine.network.gigabits_per_second = gigabits_per_second;
        let mut parts = serving(1, 1);
        for _ in 0..touched {
            parts.push((0, touches(0, 0)));
        }
        parts.push((0, syscall(1, [7, HEAP, 64, 0, 0, 0], 64)));
        run(config, &parts).devices.unwrap()
    };
    // The call returns before the device has read what it sends.
    let (soon, later) = (once(100, 0), once(100, 4000));
    assert!(soon.bytes_sent < 12_000, "{soon:?}");
    assert_eq!(later.bytes_sent, 12_000, "{later:?}");
    // Meanwhile it writes what will be received next, as much as the last time.
    assert_eq!(later.bytes_received, 2 * 9_000);
    // What comes in slowly is waited for.
    let slow = once(1, 0);
    let (slow, fast) = (slow.wait_cycles.get(), soon.wait_cycles.get());
    assert!(slow > 20 * fast, "{slow} and {fast}");
}

#[test]
fn a_full_queue_holds_the_sender_up() {
    let sending = |calls: u64| {
        let mut parts = serving(1, 0);
        for _ in 0..calls {
            parts.push((0, syscall(1, [7, HEAP, 65_536, 0, 0, 0], 65_536)));
        }
        let devices = run(config(1, 0.0, llc()), &parts).devices.unwrap();
        devices.wait_cycles.get()
    };
    // 512 KB of buffers.
    assert_eq!(sending(8), 0);
    assert!(sending(64) > 0);
}

#[test]
fn a_device_goes_on_while_its_buffers_migrate() {
    let parts = serving(2, 400);
    let plain = run(config(2, 0.0, llc()), &parts);
    let report = run(config(2, 100_000.0, llc()), &parts);
    let migration = report.migration.unwrap();
    assert!(migration.buffers > 0, "{migration:?}");
    let (before, after) = (plain.devices.unwrap(), report.devices.unwrap());
    // But for what it does after the last call.
    let about = |one: u64, other: u64| one.abs_diff(other) <= 16_384;
    assert!(about(before.bytes_received, after.bytes_received));
    assert!(about(before.bytes_sent, after.bytes_sent));
    assert!(after.iotlb_invalidations > 0 && before.iotlb_invalidations == 0);
    assert!(after.iotlb_lookups > 0 && after.iotlb_misses > 0);
    let coherence = report.cache.unwrap().coherence;
    assert!(coherence.device_reads > 0 && coherence.device_writes > 0);
}

#[test]
fn a_buffers_migration_lasts_until_the_iommu_has_invalidated() {
    let parts = serving(2, 400);
    let moved = |cycles, device_tlb_entries| {
        let mut config = config(2, 100_000.0, llc());
        config.machine.iommu.invalidation_cycles = Cycles::new(cycles);
        config.machine.iommu.device_tlb_entries = device_tlb_entries;
        run(config, &parts)
    };
    let (fast, slow, ats) = (moved(0, 0), moved(30_000, 0), moved(0, 16));
    let life = |report: &Report| {
        let migration = report.migration.as_ref().unwrap();
        assert!(migration.buffers > 2, "{migration:?}");
        migration.lifetime_cycles.get() / migration.completed
    };
    assert!(
        life(&slow) > life(&fast) + 3000,
        "{} {}",
        life(&slow),
        life(&fast)
    );
    assert!(life(&ats) > life(&fast), "{} {}", life(&ats), life(&fast));
    // Meanwhile the device uses the old frame, from which it is redirected.
    let redirected = |report: &Report| report.migration.as_ref().unwrap().traffic.forwarded;
    assert!(redirected(&slow) > redirected(&fast));
    let devices = ats.devices.unwrap();
    assert!(devices.device_tlb_lookups > devices.iotlb_lookups);
    assert_eq!(devices.device_tlb_misses, devices.iotlb_lookups);
}

#[test]
fn software_does_not_move_what_a_device_holds() {
    let lazy = MigrationConfig::Software(SoftwareMigration {
        shootdown: Shootdown::Lazy,
        ..SoftwareMigration::default()
    });
    let parts = serving(2, 400);
    for way in [software(), lazy] {
        let report = run(config(2, 100_000.0, way.clone()), &parts);
        let migration = report.migration.unwrap();
        assert_eq!(migration.buffers, 0, "{way:?}");
        assert!(migration.held > 0, "{way:?}: {migration:?}");
        let answered = migration.held + migration.completed + migration.without_page;
        assert_eq!(migration.unavailable.count, migration.completed);
        // Of LATR's, some wait for their tick at the end.
        if way == software() {
            assert_eq!(answered, migration.requested, "{migration:?}");
        }
        assert_eq!(report.devices.unwrap().iotlb_invalidations, 0);
    }
    let hardware = run(config(2, 100_000.0, llc()), &parts);
    let migration = hardware.migration.unwrap();
    assert_eq!(migration.held, 0);
    // The device saw redirections and copies of lines, and no page fault.
    let device = migration.unavailable_to_devices;
    assert!(device.max_cycles.get() > 0, "{device:?}");
    assert!(device.max_cycles.get() < 600, "{device:?}");
}

/// `mover::LIFETIME`, from which ageing servers derive how many pages their hardware moves.
const LIFETIME_NS: f64 = 1_008_000.0;

#[test]
fn an_entry_of_an_ageing_server_is_in_use_as_long_as_one_of_the_engine() {
    // Threads that never enter the kernel: every invalidation waits for the tick.
    let mut parts = touching(4, 0);
    for round in 0..3000 {
        for thread in 0..4 {
            let mut words = touches(u64::from(thread), round);
            let call = syscall(39, [0; 6], 1).len();
            words.truncate(words.len() - call);
            parts.push((thread, words));
        }
    }
    let report = run(config(4, 10_000.0, llc()), &parts);
    let migration = report.migration.unwrap();
    // Those that the end of the run hurried are shorter.
    let ended = migration.completed - migration.hurried;
    assert!(ended > 3, "{migration:?}");
    let clock = f64::from(crate::common::machine(1 << 20).clock.get()) / 1000.0;
    let copy = migration.copy_cycles.get() as f64 / migration.completed as f64 / clock;
    assert!((2_000.0..8_500.0).contains(&copy), "a copy takes {copy} ns");
    let lifetime = migration.lifetime_cycles.get() as f64 / migration.completed as f64 / clock;
    // The mean is below, as migrations at the end are hurried; and an engine looks 16 times a tick.
    assert!(
        lifetime < 1.08 * LIFETIME_NS,
        "an entry is in use for {lifetime} ns"
    );
    assert!(
        lifetime > 0.5 * LIFETIME_NS,
        "an entry is in use for {lifetime} ns"
    );
}

#[test]
fn cores_work_at_the_same_time() {
    let report = run(config(4, 0.0, software()), &touching(4, 100));
    let time = report.time.unwrap();
    let parallel = time.busy_cycles.get() as f64 / time.cycles.get() as f64;
    assert!(parallel > 3.5, "{time:?}");
}

#[test]
fn a_thread_that_was_woken_goes_on_when_its_waker_was_there() {
    const FUTEX: u16 = 202;
    let mut parts = touching(2, 1);
    // Thread 0 works long, then wakes thread 1, which has waited.
    parts.extend((0..50).map(|round| (0, touches(0, round))));
    parts.push((0, syscall(FUTEX, [0x1000, 1, 1, 0, 0, 0], 0)));
    parts.push((1, syscall(FUTEX, [0x1000, 0, 0, 0, 0, 0], 0)));
    parts.push((1, touches(1, 1)));
    let report = run(config(2, 0.0, software()), &parts);
    let [first, second] = &report.cores[..] else {
        panic!("two cores");
    };
    assert!(second.breakdown.idle.get() > 0);
    assert!(second.cycles >= first.cycles);
}

/// Turns of the threads follow each other, so many rounds in each.
fn in_turns(threads: u32, rounds: u64, in_a_turn: u64) -> Vec<Part> {
    let mut parts = touching(threads, 0);
    for turn in 0..rounds / in_a_turn {
        for thread in 0..threads {
            let rounds = turn * in_a_turn..(turn + 1) * in_a_turn;
            let words = rounds.flat_map(|round| touches(u64::from(thread), round));
            parts.push((thread, words.collect()));
        }
    }
    parts
}

#[test]
fn threads_of_a_core_are_switched_when_a_time_slice_is_over() {
    const SLICE: u64 = 25_000;
    let mut config = config(1, 0.0, software());
    let clock = config.machine.clock;
    config.machine.kernel.time_slice = Nanoseconds::new(SLICE);
    let slice = Nanoseconds::new(SLICE).at(clock).get();
    for in_a_turn in [1, 2, 4] {
        let report = run(config.clone(), &in_turns(4, 400, in_a_turn));
        let slices = report.time.unwrap().cycles.get() / slice;
        let switches = report.executed.context_switches;
        assert!(slices > 20, "{slices}");
        // The last three threads that begin are switched to as well. A slice ends with a turn.
        assert!(
            (slices * 8 / 10..=slices + 4).contains(&switches),
            "{switches} in {slices} slices"
        );
    }
}

#[test]
fn a_thread_that_waits_leaves_its_core_and_comes_back() {
    const FUTEX: u16 = 202;
    let plain = touching(2, 4);
    let waits = |rounds: u64| {
        let mut parts = plain.clone();
        for round in 0..rounds {
            parts.push((0, touches(0, round)));
            parts.push((1, syscall(FUTEX, [0x1000, 0, 0, 0, 0, 0], 0)));
        }
        run(config(1, 0.0, software()), &parts)
            .executed
            .context_switches
    };
    assert_eq!(waits(0), 1, "the second thread begins");
    assert_eq!(waits(30), 1 + 2 * 30);
}

#[test]
fn a_timeline_shows_each_core() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timeline.json");
    let mut config = config(2, 100_000.0, llc());
    config.timeline = Some(path.clone());
    let mut server = engine(config);
    for (thread, words) in &touching(2, 60) {
        let thread = ThreadId(*thread);
        let batch = Batch {
            thread,
            words,
            code: &Code,
        };
        server.consume(batch).unwrap();
    }
    server.finish().unwrap();
    server.save_timeline().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = value["traceEvents"].as_array().unwrap();
    for name in ["copy", "wait for invalidations", "invalidation"] {
        assert!(events.iter().any(|event| event["name"] == name), "{name}");
    }
}

#[test]
fn an_impossible_last_level_is_an_error_that_names_the_key() {
    let refused = |change: &dyn Fn(&mut RunConfig)| {
        let mut config = config(2, 0.0, llc());
        change(&mut config);
        let program = Program {
            command: Vec::new(),
            architecture: Architecture::X86_64,
            reports_mappings: true,
            plan: Plan::default(),
            layout: Layout::default(),
        };
        match Engine::new(config, program) {
            Ok(_) => panic!("it was accepted"),
            Err(error) => error.to_string(),
        }
    };
    let entries = refused(&|config| config.machine.cache.shared.migration_entries = 17);
    assert!(entries.contains("migration_entries is 17"), "{entries}");
    let none = refused(&|config| config.machine.cache.shared.migration_entries = 0);
    assert!(none.contains("migration_entries is 0"), "{none}");
    let slices = refused(&|config| config.machine.cache.shared.slices = 7);
    assert!(slices.contains("7 slices"), "{slices}");
    let ways = refused(&|config| {
        config.machine.cache.shared.inclusive = true;
        config.machine.cache.llc.ways = 2;
    });
    assert!(ways.contains("inclusive"), "{ways}");
    let directory = refused(&|config| config.machine.cache.shared.directory_entries = 10);
    assert!(directory.contains("cache.shared.directory"), "{directory}");
}

#[test]
fn options_that_need_full_detail_are_refused_without_it() {
    let mut additive = config(2, 0.0, software());
    additive.detail = Detail::Additive;
    assert!(additive.check().is_err());
    let mut translation = config(1, 10.0, software());
    translation.detail = Detail::Translation;
    let message = translation.check().unwrap_err().to_string();
    assert!(message.contains("--detail full"), "{message}");
    assert!(config(65, 0.0, software()).check().is_err());
    assert!(config(64, 1.0, software()).check().is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(24)))]
    #[test]
    fn the_report_does_not_depend_on_how_the_stream_is_cut(
        threads in 1..5u32, cores in 2..5u32, cuts in prop::collection::vec(1..700usize, 1..20),
        rate in prop::sample::select(vec![0.0, 50_000.0])
    ) {
        // The same words of the same threads in the same order, in other batches.
        let parts = touching(threads, 30);
        let mut cuts = cuts.iter().cycle();
        let mut cut = Vec::new();
        for (thread, words) in &parts {
            if words.len() < 50 {
                cut.push((*thread, words.clone()));
                continue;
            }
            // Records stay whole; the last one is a call.
            let (mut rest, call) = words.split_at(words.len() - 8);
            while !rest.is_empty() {
                let length = (*cuts.next().unwrap()).min(rest.len());
                cut.push((*thread, rest[..length].to_vec()));
                rest = &rest[length..];
            }
            cut.push((*thread, call.to_vec()));
        }
        let whole = run(config(cores, rate, llc()), &parts);
        let pieces = run(config(cores, rate, llc()), &cut);
        prop_assert_eq!(whole.to_json(), pieces.to_json());
    }
}

/// Interrupts of other cores by a call, after `before` ran on two cores.
fn interrupts(before: &[Part], call: &[u64]) -> u64 {
    let mut parts = before.to_vec();
    let without = run(config(2, 0.0, software()), &parts).kernel;
    parts.extend((0..10).map(|_| (0, call.to_vec())));
    // Threads that have something left to do are not idle.
    parts.push((1, touches(1, 3)));
    let with = run(config(2, 0.0, software()), &parts).kernel;
    with.interprocessor_interrupts - without.interprocessor_interrupts
}

const MADVISE: u16 = 28;
const DONT_NEED: u64 = 4;
const POPULATE_WRITE: u64 = 23;

#[test]
fn a_core_that_runs_the_process_is_interrupted_and_one_that_ran_it_is_not() {
    const FUTEX: u16 = 202;
    let pages = PAGES * 4096;
    // The pages of one of two mappings go: their page table stays.
    let mut parts = touching(2, 4);
    // A write to what was read as the zero page interrupts, too.
    let populate = |bytes| syscall(MADVISE, [HEAP, bytes, POPULATE_WRITE, 0, 0, 0], 0);
    parts.insert(2, (0, populate(pages)));
    parts.push((0, touches(0, 9)));
    let discard: Vec<u64> = [
        syscall(MADVISE, [HEAP, pages / 2, DONT_NEED, 0, 0, 0], 0),
        populate(pages / 2),
        touches(0, 5),
    ]
    .concat();
    assert_eq!(interrupts(&parts, &discard), 10);
    // Thread 1 waits for a lock: its core is idle.
    let waits = |parts: &[Part]| {
        let mut parts = parts.to_vec();
        parts.extend((0..10).map(|_| (0, discard.clone())));
        parts.push((1, syscall(FUTEX, [0x1000, 0, 0, 0, 0, 0], 0)));
        parts.push((1, touches(1, 7)));
        run(config(2, 0.0, software()), &parts)
    };
    assert_eq!(waits(&parts).kernel.interprocessor_interrupts, 0);
    // Thread 3 runs on the core of thread 1, in another process.
    let process = ProcessId(1);
    parts.push((0, Event::Fork { child: process }.encode().words().to_vec()));
    parts.push((2, start()));
    parts.push((3, Event::ThreadStart { process }.encode().words().to_vec()));
    parts.push((3, touches(3, 2)));
    let mut elsewhere = parts.clone();
    elsewhere.extend((0..10).map(|_| (0, discard.clone())));
    elsewhere.push((3, touches(3, 3)));
    elsewhere.push((1, touches(1, 3)));
    let report = run(config(2, 0.0, software()), &elsewhere);
    let forked = run(config(2, 0.0, software()), &parts);
    assert_eq!(
        report.kernel.interprocessor_interrupts,
        forked.kernel.interprocessor_interrupts
    );
}

#[test]
fn more_permission_interrupts_nobody_and_less_does() {
    const MPROTECT: u16 = 10;
    let pages = PAGES * 4096;
    let parts = touching(2, 4);
    let less = syscall(MPROTECT, [HEAP, pages, 1, 0, 0, 0], 0);
    let more = syscall(MPROTECT, [HEAP, pages, 3, 0, 0, 0], 0);
    let toggle: Vec<u64> = [less, more, touches(0, 5)].concat();
    // One for what the call takes away, none for the faults that give it back.
    assert_eq!(interrupts(&parts, &toggle), 10);
}
