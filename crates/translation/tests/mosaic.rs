//! Mosaic Pages: how far does the L2 TLB reach where no two neighbors are contiguous, and when does it forget?

use contigua_paging::{Buckets, SpaceId};
use contigua_translation::Access;
use contigua_units::{PAGE_BYTES, VirtAddr, VirtRange};

use crate::common::{Recorder, counter, memory};
use crate::rivals::{FRAMES, PAGES, SPACE, START, World};

/// Frames of the server: page tables lie in the first ones.
const TOTAL: u64 = FRAMES + 2 * PAGES;

/// A process whose pages lie where hashes say.
fn world(more: &str) -> World {
    let mut memory = memory(TOTAL as usize);
    for frame in 0..FRAMES as u32 {
        let frame = contigua_units::Frame::new(frame);
        memory
            .allocate_at(frame, contigua_frames::FrameClass::PageTable)
            .unwrap();
    }
    let buckets = Buckets::of(TOTAL);
    let frames: Vec<_> = (0..PAGES)
        .map(|page| {
            let page = START / PAGE_BYTES + page;
            buckets.take(SPACE, page, &mut memory).unwrap()
        })
        .collect();
    let frame_of = |page: u64| u64::from(frames[page as usize].get());
    let mut world = World::with("mosaic", more, false, frame_of);
    world.table.place_in(Some(buckets));
    world
}

/// Share of random reads of 64 MB that walk.
fn walking_share(world: &mut World) -> f64 {
    const READS: u64 = 20_000;
    (0..PAGES).for_each(|page| world.read(page));
    world.mmu.reset_counters();
    world.read_at_random(READS);
    world.mmu.translator_counters().walks() as f64 / READS as f64
}

#[test]
fn reach_grows_with_the_arity_and_needs_no_contiguity() {
    for log2 in 1..=6 {
        let mut world = world(&format!("arity_log2 = {log2}"));
        let share = walking_share(&mut world);
        let reach = (1536_u64 << log2) as f64 / PAGES as f64;
        let expected = (1.0 - reach).max(0.0);
        assert!(
            (share - expected).abs() < 0.05,
            "{share} of reads walk, not {expected}, with mosaic pages of 2^{log2}"
        );
        assert_eq!(counter(&world.mmu, "mosaic_plain_entered"), 0);
    }
}

#[test]
fn pages_that_lie_elsewhere_have_entries_of_their_own() {
    // The same pages, in frames that no hash names but by chance, and in a virtual machine.
    let mut scattered = World::new("mosaic", "arity_log2 = 6", false);
    scattered.table.place_in(Some(Buckets::of(TOTAL)));
    let mut nested = World::new("mosaic", "arity_log2 = 6", true);
    nested.table.place_in(Some(Buckets::of(TOTAL)));
    let mut unplaced = World::new("mosaic", "arity_log2 = 6", false);
    for world in [&mut scattered, &mut nested, &mut unplaced] {
        let share = walking_share(world);
        assert!((share - 0.9).abs() < 0.05, "{share} of reads walk");
    }
}

#[test]
fn a_page_that_was_not_there_is_entered_when_it_is_used() {
    let mut world = world("arity_log2 = 6");
    // Half of the pages were not used yet.
    for page in (1..PAGES).step_by(2) {
        let address = VirtAddr::new(START + page * PAGE_BYTES);
        world.table.update(address, |leaf| leaf.accessed = false);
    }
    let walks = |world: &World| world.mmu.translator_counters().walks();
    for page in 0..64 {
        world.read(page);
    }
    // One walk for the even pages, one for each odd one.
    assert_eq!(walks(&world), 1 + 32);
    assert_eq!(counter(&world.mmu, "mosaic_pages_missing"), 32);
    assert_eq!(counter(&world.mmu, "mosaic_entered"), 1 + 32);
    assert!(
        world
            .table
            .leaf(VirtAddr::new(START + PAGE_BYTES))
            .unwrap()
            .accessed
    );
}

#[test]
fn the_first_store_to_a_page_walks() {
    let mut world = world("arity_log2 = 4");
    for page in 0..16 {
        let address = VirtAddr::new(START + page * PAGE_BYTES);
        world.table.update(address, |leaf| leaf.dirty = false);
    }
    world.read(0);
    for page in 0..16 {
        let before = world.mmu.translator_counters().walks();
        for _ in 0..2 {
            world.access_by(page, 0, Access::Write, &mut Recorder::default());
        }
        let walks = world.mmu.translator_counters().walks() - before;
        assert_eq!(walks, 1, "page {page}");
        let address = VirtAddr::new(START + page * PAGE_BYTES);
        assert!(world.table.leaf(address).unwrap().dirty);
    }
}

#[test]
fn entries_forget_what_was_invalidated_and_their_tables_are_used_again() {
    let mut world = world("arity_log2 = 2");
    let all = VirtRange::with_length(VirtAddr::new(START), PAGES * PAGE_BYTES);
    for round in 0..20_u64 {
        for page in (round % 4..PAGES).step_by(4) {
            world.read(page);
            let at = VirtAddr::new(START + page * PAGE_BYTES);
            if page % 3 == 0 {
                let one = VirtRange::with_length(at, PAGE_BYTES);
                world.mmu.invalidate(SPACE, one);
                let before = world.mmu.translator_counters().walks();
                world.read(page);
                assert_eq!(world.mmu.translator_counters().walks(), before + 1);
            }
            // Still in the L2 TLB, not in the first level.
            world.read(page.saturating_sub(1600));
        }
        match round % 3 {
            0 => world.mmu.flush(),
            1 => world.mmu.invalidate(SPACE, all),
            _ => world.mmu.invalidate(SpaceId(9), all),
        }
    }
    // Tables are not lost: a mosaic page has an entry.
    world.mmu.flush();
    world.mmu.reset_counters();
    (0..4).for_each(|page| world.read(page));
    assert_eq!(world.mmu.translator_counters().walks(), 1);
}
