//! Do mappings get the addresses that Linux gives them?

use contigua_program::layout::{AlignedShmem, Areas, Backing, Kind, Layout, Linux, Mappings};
use contigua_program::syscall::Architecture;
use proptest::prelude::*;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

#[test]
fn areas_are_linuxs_but_lower() {
    // `setarch -R` on Linux 6.18: 0x7fff_ffff_f000, 0x7fff_f7ff_f000 and 0x5555_5555_4000.
    const LOWER: u64 = 0x3000_0000_0000;
    let of = |stack_limit| Areas::of(Architecture::X86_64, stack_limit, None, 0);
    let areas = of(8 << 20);
    let linux = Areas {
        program: areas.program + LOWER,
        base: areas.base + LOWER,
        stack: areas.stack + LOWER,
    };
    let expected = Areas {
        program: 0x5555_5555_4000,
        base: 0x7fff_f7ff_f000,
        stack: 0x7fff_ffff_f000,
    };
    assert_eq!(linux, expected);
    // `ulimit -s 1048576`, and `unlimited`.
    let large = of(1 << 30).base;
    assert_eq!(large + LOWER, 0x7fff_bfef_f000);
    let unlimited = of(u64::MAX).base;
    assert_eq!(
        areas.stack - unlimited,
        (areas.stack / 6 * 5).next_multiple_of(PAGE)
    );
}

/// Places mappings one after another, as `mmap` does, and returns their distances below the base.
fn placed(requests: &[(u64, Backing)]) -> Vec<u64> {
    placed_by(Linux::default(), requests)
}

/// Places mappings as [`placed`] does, under a version of Linux.
fn placed_by(linux: Linux, requests: &[(u64, Backing)]) -> Vec<u64> {
    const BASE: u64 = 0x7fff_f7fc_2000;
    let mut mappings = Mappings::new(linux);
    let place = |&(length, backing): &(u64, Backing)| {
        let start = mappings.place(length, backing, BASE).unwrap();
        let kind = match backing {
            Backing::Anonymous => Kind::Anonymous,
            Backing::HugePages(size) => Kind::HugePages(size),
            _ => Kind::Other,
        };
        mappings.insert(start, start + length, kind);
        BASE - start
    };
    requests.iter().map(place).collect()
}

#[test]
fn whole_huge_pages_of_private_memory_are_aligned() {
    use Backing::{Anonymous, File, HugePages, Other};

    // The base is 0x1c2000 bytes above a multiple of 2 MB.
    const ABOVE: u64 = 0x1c_2000;
    let two = placed(&[(HUGE, Anonymous), (HUGE, Anonymous)]);
    assert_eq!(two, [ABOVE + HUGE, ABOVE + 2 * HUGE]);
    // Since 6.12: neither less nor more than whole huge pages.
    for length in [HUGE - PAGE, HUGE + PAGE] {
        assert_eq!(placed(&[(length, Anonymous)]), [length]);
    }
    assert_eq!(placed(&[(HUGE, Other)]), [HUGE]);
    assert_eq!(placed(&[(HUGE, HugePages(HUGE))]), [ABOVE + HUGE]);
    // Files of any length that holds 2 MB at a multiple of 2 MB.
    let beyond = HUGE + PAGE;
    assert_eq!(placed(&[(beyond, File(0))]), [ABOVE + HUGE]);
    assert_eq!(placed(&[(HUGE, File(PAGE))]), [HUGE]);
    assert_eq!(placed(&[(2 * HUGE, File(PAGE))]), [ABOVE + 2 * HUGE - PAGE]);
    // What the alignment has left free is used.
    let after = placed(&[(HUGE, Anonymous), (PAGE, Anonymous)]);
    assert_eq!(after, [ABOVE + HUGE, PAGE]);
}

#[test]
fn versions_of_linux_differ_in_what_they_align() {
    use Backing::{Anonymous, File};

    const ABOVE: u64 = 0x1c_2000;
    let beyond = HUGE + PAGE;
    let by = |linux| placed_by(linux, &[(HUGE, Anonymous), (beyond, Anonymous)]);
    // Before efa7df3e3bb5 (6.7): nothing; before d4148aeab412 (6.12): from 2 MB on.
    assert_eq!(by(Linux::V6_1), [HUGE, HUGE + beyond]);
    assert_eq!(by(Linux::V6_8), [ABOVE + HUGE, ABOVE + 3 * HUGE]);
    for linux in [Linux::V6_12, Linux::V6_18] {
        // The second has room right below the first.
        assert_eq!(by(linux), [ABOVE + HUGE, ABOVE + HUGE + beyond]);
    }
    // Before 96204e15310c (6.8), a file that is aligned by itself goes to the end of the padding.
    let two = [(ABOVE, Backing::Other), (HUGE, File(0))];
    assert_eq!(placed_by(Linux::V6_1, &two), [ABOVE, ABOVE + 2 * HUGE]);
    assert_eq!(placed_by(Linux::V6_8, &two), [ABOVE, ABOVE + HUGE]);
    // Before c4608d1bf7c6 (6.7), `MAP_STACK` means nothing.
    let huge = Linux::ALL.map(Linux::stacks_may_be_huge);
    assert_eq!(huge, [true, false, false, false]);
}

#[test]
fn shared_memory_is_aligned_for_huge_pages() {
    use Backing::{Other, Shmem};

    const ABOVE: u64 = 0x1c_2000;
    // From 2 MB on; of what begins elsewhere in the object, where whole 2 MB lie behind that.
    assert_eq!(placed(&[(HUGE - PAGE, Shmem(0))]), [HUGE - PAGE]);
    assert_eq!(placed(&[(HUGE, Shmem(0))]), [ABOVE + HUGE]);
    assert_eq!(placed(&[(HUGE + PAGE, Shmem(HUGE))]), [ABOVE + HUGE]);
    assert_eq!(
        placed(&[(2 * HUGE - 2 * PAGE, Shmem(PAGE))]),
        [2 * HUGE - 2 * PAGE]
    );
    let at_a_page = [(2 * HUGE - PAGE, Shmem(PAGE))];
    assert_eq!(placed(&at_a_page), [ABOVE + 2 * HUGE - PAGE]);
    // What is aligned by itself has no padding, unlike a file.
    let two = [(ABOVE, Other), (HUGE, Shmem(0))];
    assert_eq!(placed(&two), [ABOVE, ABOVE + HUGE]);
    assert_eq!(placed(&[(PAGE, Backing::HugePages(HUGE))]), [ABOVE + HUGE]);
}

#[test]
fn a_layout_is_what_its_text_says() {
    for linux in Linux::ALL {
        for seed in [None, Some(0), Some(u64::MAX)] {
            for aligned_shmem in [
                AlignedShmem::None,
                AlignedShmem::Unmounted,
                AlignedShmem::All,
            ] {
                let layout = Layout {
                    linux,
                    seed,
                    aligned_shmem,
                };
                assert_eq!(layout.to_string().parse(), Ok(layout));
            }
        }
    }
    assert_eq!(Layout::default().to_string(), "6.18");
    for wrong in ["", "6.7", "6.18+", "6.18+x", "+1", "6.18/", "6.18/some"] {
        wrong.parse::<Layout>().unwrap_err();
    }
}

#[test]
fn low_addresses_are_given_upwards() {
    let mut mappings = Mappings::default();
    mappings.insert(5 * PAGE, 6 * PAGE, Kind::Anonymous);
    mappings.insert(8 * PAGE, 9 * PAGE, Kind::Other);
    let low = |length| mappings.place_low(length * PAGE, 4 * PAGE, 12 * PAGE);
    assert_eq!(low(1), Some(4 * PAGE));
    assert_eq!(low(2), Some(6 * PAGE));
    assert_eq!(low(3), Some(9 * PAGE));
    assert_eq!(low(4), None);
}

#[test]
fn every_seed_and_process_has_areas_of_its_own() {
    let of = |seed, process| Areas::of(Architecture::X86_64, 8 << 20, Some(seed), process);
    let mut all: Vec<_> = (0..32)
        .flat_map(|seed| (0..32).map(move |process| of(seed, process)))
        .flat_map(|areas| [areas.program, areas.base, areas.stack])
        .collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    // Stacks have 4 million places.
    assert!(all.len() > count - 8, "{} of {count}", all.len());
}

/// Pages of a small address space: free, or of a mapping.
type Pages = [Option<Kind>; 64];

fn taken(mappings: &Mappings, page: u64) -> Option<Kind> {
    // An address is free if a page fits there.
    let free = mappings.place_low(PAGE, page * PAGE, (page + 1) * PAGE);
    let kind = mappings.kind(page * PAGE);
    assert_eq!(free.is_none(), kind.is_some());
    kind
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Anonymous),
        Just(Kind::HugePages(HUGE)),
        Just(Kind::Other)
    ]
}

proptest! {
    #[test]
    fn seeds_move_areas_within_linuxs_entropy(
        seed: u64,
        process: u32,
        is_arm: bool,
        stack_limit in prop_oneof![Just(8 << 20), 0_u64..1 << 40, Just(u64::MAX)],
    ) {
        // `vm.mmap_rnd_bits` and `STACK_RND_MASK`.
        let (architecture, mapping_bits, stack_bits) = if is_arm {
            (Architecture::Aarch64, 18, 18)
        } else {
            (Architecture::X86_64, 28, 22)
        };
        let fixed = Areas::of(architecture, stack_limit, None, process);
        let moved = Areas::of(architecture, stack_limit, Some(seed), process);
        prop_assert_eq!(moved, Areas::of(architecture, stack_limit, Some(seed), process));
        for address in [moved.program, moved.base, moved.stack] {
            prop_assert_eq!(address % PAGE, 0);
        }
        prop_assert!((moved.program - fixed.program) / PAGE < 1 << mapping_bits);
        let stack = fixed.stack - moved.stack;
        prop_assert!(stack / PAGE < 1 << stack_bits);
        // The mapping base leaves room for the stack wherever it is.
        let down = (fixed.base - moved.base) / PAGE;
        prop_assert!(down < (1 << mapping_bits) + (1 << stack_bits));
        if stack_limit < 1 << 40 {
            prop_assert!(moved.base + stack_limit <= moved.stack);
            prop_assert!(moved.program < moved.base);
        }
    }

    #[test]
    fn mappings_are_as_those_of_a_table_of_pages(
        changes in prop::collection::vec((1_u64..64, 1_u64..20, prop::option::of(any_kind())), 0..40),
        lengths in prop::collection::vec(1_u64..30, 1..6),
        base in 2_u64..64,
    ) {
        let (mut mappings, mut pages): (_, Pages) = (Mappings::default(), [None; 64]);
        for (start, length, kind) in changes {
            let end = (start + length).min(64);
            pages[start as usize..end as usize].fill(kind);
            match kind {
                Some(kind) => mappings.insert(start * PAGE, end * PAGE, kind),
                None => mappings.remove(start * PAGE, end * PAGE),
            }
        }
        for page in 1..64 {
            prop_assert_eq!(taken(&mappings, page), pages[page as usize]);
        }
        for length in lengths {
            // The kernel leaves page 0 out.
            let fits = |start: &u64| pages[*start as usize..(*start + length) as usize].iter().all(Option::is_none);
            let highest = (1..=base.saturating_sub(length)).rev().find(fits);
            let found = mappings.place(length * PAGE, Backing::Other, base * PAGE);
            prop_assert_eq!(found, highest.map(|page| page * PAGE));
        }
    }
}
