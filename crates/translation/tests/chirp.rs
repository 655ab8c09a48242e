//! Do signatures of control flow keep entries of the L2 TLB that are used again, and is the L2 TLB as before without
//! predictions?

use contigua_translation::{Access, Branches};
use contigua_units::{PAGE_BYTES, VirtAddr, VirtRange};
use proptest::prelude::*;

use crate::common::{Recorder, counter};
use crate::rivals::{PAGES, SPACE, START, World};

const NEVER: &str = "huge = { enabled = \"never\" }";
/// Pages that are used again and again: two thirds of what the L2 TLB holds.
const USED: u64 = 1000;

/// Walks for pages that are used again, in rounds in which as many others are read once. Instructions 1 and `reader`
/// read them, behind branches of their own.
fn walks_for_used(name: &str, more: &str, reader: u64) -> u64 {
    let mut world = World::new(
        name,
        &format!("{more}\n{}", if name == "base" { "" } else { NEVER }),
        false,
    );
    let mut walks = 0;
    for round in 0..16 {
        let before = world.mmu.translator_counters().walks();
        world.branches.conditional = 0x1234_5678;
        for page in 0..USED {
            world.read_through(page, 1, &mut Recorder::default());
        }
        if round >= 8 {
            walks += world.mmu.translator_counters().walks() - before;
        }
        // First it learns what is used.
        if round < 4 {
            continue;
        }
        world.branches.conditional = 0x8765_4321;
        for page in 0..USED {
            let page = USED + (round * USED + page) % (PAGES - USED);
            world.read_through(page, reader, &mut Recorder::default());
        }
    }
    walks
}

#[test]
fn entries_that_are_used_once_go_first() {
    // Between two uses of a page, 2,000 are read: LRU keeps none.
    assert_eq!(walks_for_used("base", "", 2), 8 * USED);
    let walks = walks_for_used("chirp", "", 2);
    assert!(walks < USED, "{walks} of {} walks", 8 * USED);
    // Without predictions, it is LRU.
    assert_eq!(walks_for_used("chirp", "threshold = 4", 2), 8 * USED);
}

#[test]
fn branches_tell_uses_of_one_instruction_apart() {
    let with = walks_for_used("chirp", "", 1);
    let without = walks_for_used("chirp", "branches = false", 1);
    assert!(
        with < USED && without > 4 * USED,
        "{with} and {without} walks"
    );
}

/// Walks for pages that are used again, each by an instruction and a neighbor, in rounds in which others are read once
/// by the first instruction and another neighbor; `before` them, the instructions read all pages once.
fn walks_behind(before: bool, used_by: [u64; 2], once_by: [u64; 2]) -> u64 {
    let mut world = World::new("chirp", NEVER, false);
    let port = &mut Recorder::default();
    if before {
        for page in 0..PAGES {
            world.read_through(page, used_by[page as usize % 2], port);
        }
        world.mmu.flush();
    }
    let mut walks = 0;
    for round in 0..16 {
        let before = world.mmu.translator_counters().walks();
        for page in 0..USED {
            world.read_through(page, used_by[page as usize % 2], port);
        }
        if round >= 8 {
            walks += world.mmu.translator_counters().walks() - before;
        }
        if round < 4 {
            continue;
        }
        for page in 0..USED {
            let other = USED + (round * USED + page) % (PAGES - USED);
            world.read_through(other, once_by[page as usize % 2], port);
        }
    }
    walks
}

#[test]
fn accesses_before_tell_uses_of_one_instruction_apart() {
    let walks = walks_behind(false, [3, 1], [3, 2]);
    assert!(walks < USED, "{walks} of {} walks", 8 * USED);
}

#[test]
fn uses_bring_dead_signatures_back_to_life() {
    let walks = walks_behind(true, [1, 1], [2, 2]);
    assert!(walks < USED, "{walks} of {} walks", 8 * USED);
}

#[test]
fn of_dead_entries_the_least_recently_used_goes() {
    // Pages that are read once fill the L2 TLB; then nine and one of 400 reads ago: all are dead, and that one is there.
    let walks = |name: &str, more: &str| {
        let mut world = World::new(name, more, false);
        for page in 0..PAGES {
            world.read_through(page, 1, &mut Recorder::default());
        }
        world.mmu.flush();
        world.mmu.reset_counters();
        for step in 0..8_000_u64 {
            let page = if step > 4_000 && step % 10 == 9 {
                step.saturating_sub(401)
            } else {
                step
            };
            world.read_through(page, 1, &mut Recorder::default());
        }
        if name == "chirp" {
            let dead = counter(&world.mmu, "chirp_dead_evicted");
            assert!(dead > 5_000, "{dead} dead entries replaced");
        }
        world.mmu.translator_counters().walks()
    };
    // The first 16 reads have paths of their own.
    let (base, chirp) = (walks("base", ""), walks("chirp", NEVER));
    assert!(chirp < base + 20, "{chirp} and {base} walks");
}

#[test]
fn random_reads_are_as_before() {
    let walks = |name: &str, more: &str| {
        let mut world = World::new(name, more, false);
        let mut random = 1_u64;
        for _ in 0..40_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            world.read_through((random >> 33) % 4096, 1, &mut Recorder::default());
        }
        world.mmu.translator_counters().walks()
    };
    let (base, chirp) = (walks("base", ""), walks("chirp", NEVER));
    assert!(chirp < base * 103 / 100, "{chirp} of {base} walks");
}

#[test]
fn what_is_translated_ahead_trains_nothing() {
    let mut world = World::new("chirp", NEVER, false);
    for page in 0..PAGES {
        world.read_through(page, 0, &mut Recorder::default());
    }
    assert_eq!(counter(&world.mmu, "chirp_unused_evicted"), 0);
    for page in 0..PAGES {
        world.read_through(page, 1, &mut Recorder::default());
    }
    assert!(counter(&world.mmu, "chirp_unused_evicted") > PAGES / 2);
}

#[derive(Clone, Debug)]
enum Operation {
    Access(u64, u64, bool),
    Branch(u64),
    Invalidate(u64, u64),
    Flush,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        60 => (0..60_u64, 0..5_u64, any::<bool>())
            .prop_map(|(page, instruction, write)| Operation::Access(page, instruction, write)),
        10 => any::<u64>().prop_map(Operation::Branch),
        6 => (0..60_u64, 1..300_u64).prop_map(|(page, pages)| Operation::Invalidate(page, pages)),
        6 => (0..60_u64).prop_map(|page| Operation::Invalidate(page, 1)),
        1 => Just(Operation::Flush),
    ]
}

proptest! {
    #[test]
    fn without_predictions_every_access_takes_as_long_as_with_lru(
        operations in proptest::collection::vec(operation(), 1..400)
    ) {
        let mut lru = World::new("base", "", false);
        let mut never = World::new("chirp", &format!("{NEVER}\nthreshold = 4"), false);
        // What it forgets must go in step with its translations: assertions say so.
        let mut often = World::new("chirp", &format!("{NEVER}\nthreshold = 1\ncounters = 2"), false);
        for operation in operations {
            // 20 pages in each of three sets of 12 entries.
            let place = |page: u64| page % 20 * 128 + page / 20;
            match operation {
                Operation::Access(page, instruction, write) => {
                    let access = if write { Access::Write } else { Access::Read };
                    let [expected, found, _] = [&mut lru, &mut never, &mut often].map(|world| {
                        world.access_by(place(page), instruction, access, &mut Recorder::default())
                    });
                    prop_assert_eq!(found, expected);
                }
                Operation::Branch(address) => {
                    for world in [&mut never, &mut often] {
                        let history = world.branches.indirect;
                        world.branches.indirect = Branches::after(history, address);
                    }
                }
                Operation::Invalidate(page, pages) => {
                    let start = VirtAddr::new(START + place(page) * PAGE_BYTES);
                    let range = VirtRange::with_length(start, pages * PAGE_BYTES);
                    for world in [&mut lru, &mut never, &mut often] {
                        world.mmu.invalidate(SPACE, range);
                    }
                }
                Operation::Flush => {
                    for world in [&mut lru, &mut never, &mut often] {
                        world.mmu.flush();
                    }
                }
            }
        }
    }
}
