//! Does physical memory keep its promises under any sequence of operations and any placement?
//!
//! The model knows which blocks are in use, by an identity that travels with their contents: the
//! owner's page, or the place in a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contigua_contiguity::{FrameKind, Scan};
use contigua_frames::policies::explored::Explored;
use contigua_frames::policies::{Candidate, Verdict};
use contigua_frames::{
    BLOCK_FRAMES, Boxed, Config, Error, Evict, FrameClass, Frames, Group, Layout, MigrateType,
    Move, Owner, Placement, PlacementPolicy, Request, policies,
};
use contigua_units::{Bytes, Frame, Nanoseconds, Order, VirtPage};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Group 0 may be evicted by reclaim, group 1 keeps what it has.
const EVICTABLE: Group = Group(0);
const KEPT: Group = Group(1);

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        order: u8,
        class: usize,
        home: Home,
        waits: bool,
        flags: (bool, bool, bool),
    },
    AllocateAt(u32),
    AllocateContiguous(u8),
    AllocateRun(usize),
    Free(usize),
    FreeAny(u32),
    FreeNewest,
    FreeOldest,
    Share(usize),
    Unshare(usize),
    Split(usize),
    Touch(usize),
    Pin(usize),
    Unpin(usize),
    Cpu(usize),
    Drain,
    Compact,
    WantCompaction(u8),
    Background(u64),
    Expand(usize),
    Shrink(usize),
}

/// Holder of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Nobody,
    Owner,
    Evictable,
    Kept,
}

fn operation() -> impl Strategy<Value = Operation> {
    let home = prop_oneof![
        Just(Home::Nobody),
        Just(Home::Owner),
        Just(Home::Owner),
        Just(Home::Evictable),
        Just(Home::Kept),
    ];
    let order = prop_oneof![4 => Just(0_u8), 3 => 0..=4_u8, 2 => 0..=10_u8];
    let allocate = (
        order,
        1..8usize,
        home,
        any::<bool>(),
        any::<(bool, bool, bool)>(),
    )
        .prop_map(|(order, class, home, waits, flags)| Operation::Allocate {
            order,
            class,
            home,
            waits,
            flags,
        });
    prop_oneof![
        30 => allocate,
        4 => any::<u32>().prop_map(Operation::AllocateAt),
        1 => (11..=12u8).prop_map(Operation::AllocateContiguous),
        1 => (1..7usize).prop_map(Operation::AllocateRun),
        14 => any::<usize>().prop_map(Operation::Free),
        1 => any::<u32>().prop_map(Operation::FreeAny),
        2 => Just(Operation::FreeNewest),
        2 => Just(Operation::FreeOldest),
        2 => any::<usize>().prop_map(Operation::Share),
        2 => any::<usize>().prop_map(Operation::Unshare),
        2 => any::<usize>().prop_map(Operation::Split),
        1 => any::<usize>().prop_map(Operation::Touch),
        2 => any::<usize>().prop_map(Operation::Pin),
        2 => any::<usize>().prop_map(Operation::Unpin),
        1 => (0..2usize).prop_map(Operation::Cpu),
        1 => Just(Operation::Drain),
        1 => Just(Operation::Compact),
        1 => (1..=10u8).prop_map(Operation::WantCompaction),
        2 => (0..3_000_000_000u64).prop_map(Operation::Background),
        2 => (0..4usize).prop_map(Operation::Expand),
        2 => (0..4usize).prop_map(Operation::Shrink),
    ]
}

/// An allocated block as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    order: Order,
    class: FrameClass,
    references: u32,
    pinned: bool,
    home: Home,
    /// The owner's page, if there is one.
    page: u64,
}

struct Model {
    frames: Frames<Boxed>,
    live: BTreeMap<u32, Block>,
    /// Orders and classes of the kept group's blocks, the newest first.
    kept: Vec<(Order, FrameClass)>,
    next_page: u64,
    now: u64,
    moves: Vec<Move>,
}

fn owner(page: u64) -> Owner {
    Owner {
        space: 3,
        page: VirtPage::new(page),
    }
}

impl Model {
    fn new(total: usize, placement: Placement) -> Self {
        let layout = Layout::new(total, 3, 2);
        let config = Config {
            min_free: Some(Bytes::new(64 * 4096)),
            per_cpu_batch: 7,
            per_cpu_high: 20,
            ..Config::default()
        };
        let mut frames = Frames::new(Boxed::new(layout), config, placement).unwrap();
        frames.set_evict(EVICTABLE, Evict::File);
        Self {
            frames,
            live: BTreeMap::new(),
            kept: Vec::new(),
            next_page: 1 << 30,
            now: 0,
            moves: Vec::new(),
        }
    }

    fn pick(&self, choice: usize) -> Option<(Frame, Block)> {
        let (&frame, &block) = self.live.iter().nth(choice % self.live.len().max(1))?;
        Some((Frame::new(frame), block))
    }

    fn add(&mut self, frame: Frame, order: Order, class: FrameClass, home: Home) {
        assert!(frame.is_aligned(order));
        let page = self.next_page;
        self.next_page += u64::from(order.frames());
        match home {
            Home::Owner => self.frames.set_owner(frame, Some(owner(page))).unwrap(),
            Home::Kept => self.kept.insert(0, (order, class)),
            Home::Nobody | Home::Evictable => {}
        }
        let block = Block {
            order,
            class,
            references: 1,
            pinned: false,
            home,
            page,
        };
        if matches!(home, Home::Nobody | Home::Owner) {
            assert_eq!(
                self.live.insert(frame.get(), block),
                None,
                "handed out twice"
            );
        } else {
            // Groups are followed by what they hold; overlaps are found by `check`.
            assert_eq!(
                self.live.insert(frame.get(), block).map(|b| b.home),
                Some(home)
            );
        }
    }

    fn forget(&mut self, frame: Frame) {
        self.live.remove(&frame.get()).unwrap();
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each operation")]
    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Allocate {
                order,
                class,
                home,
                waits,
                flags: (long_lived, atomic, reclaimable),
            } => {
                let class = FrameClass::ALL[class];
                let order = Order::new(order);
                let group = match home {
                    Home::Evictable => Some(EVICTABLE),
                    Home::Kept => Some(KEPT),
                    Home::Nobody | Home::Owner => None,
                };
                let request = Request {
                    long_lived,
                    atomic,
                    reclaimable,
                    group,
                    ..Request::new(order, class)
                };
                let frame = if waits {
                    self.frames.allocate_or_reclaim(&request, &mut self.moves)
                } else {
                    self.frames.allocate(&request)
                };
                self.follow();
                if let Some(frame) = frame {
                    self.add(frame, order, class, home);
                }
            }
            Operation::AllocateAt(at) => {
                let total = self.frames.total() as u32;
                let frame = Frame::new(at % (total + 3));
                // Below the border, where there is one, unmovable memory may be anywhere.
                if self.frames.border().is_some_and(|border| frame >= border) {
                    return;
                }
                match self.frames.allocate_at(frame, FrameClass::Slab) {
                    Ok(()) => self.add(frame, Order::BASE, FrameClass::Slab, Home::Nobody),
                    Err(error) if frame.get() >= total => {
                        assert_eq!(error, Error::NoSuchFrame(frame));
                    }
                    Err(error) => assert_eq!(error, Error::InUse(frame)),
                }
            }
            Operation::AllocateContiguous(order) => {
                let order = Order::new(order);
                let class = FrameClass::Anonymous;
                let range = self
                    .frames
                    .allocate_contiguous(order, class, &mut self.moves);
                self.follow();
                if let Some(range) = range {
                    self.add(range, order, class, Home::Nobody);
                }
            }
            Operation::AllocateRun(most) => {
                let class = FrameClass::Anonymous;
                let run = self.frames.allocate_run(most, class, &mut self.moves);
                self.follow();
                if let Some((first, blocks)) = run {
                    assert!((1..=most).contains(&blocks));
                    for block in 0..blocks as u32 {
                        let frame = first.offset(block * Order::HUGE_2M.frames());
                        self.add(frame, Order::HUGE_2M, class, Home::Nobody);
                    }
                }
            }
            Operation::Free(choice) => {
                let Some((frame, block)) = self.pick(choice) else {
                    return;
                };
                if block.references > 1 {
                    assert_eq!(self.frames.free(frame), Err(Error::Shared(frame)));
                    return;
                }
                if block.home == Home::Kept {
                    let mut blocks = self.frames.blocks_in(KEPT);
                    self.kept
                        .remove(blocks.position(|other| other == frame).unwrap());
                }
                self.frames.free(frame).unwrap();
                self.forget(frame);
            }
            Operation::FreeAny(at) => {
                let frame = Frame::new(at % (self.frames.total() as u32 + 3));
                if !self.live.contains_key(&frame.get()) {
                    assert!(self.frames.free(frame).is_err());
                }
            }
            Operation::FreeNewest => {
                let frame = self.frames.newest_in(KEPT);
                let freed = self.frames.free_newest(KEPT);
                if let Some(frame) = frame {
                    let (order, _) = self.kept.remove(0);
                    assert_eq!(freed, Some(order.frames()));
                    self.forget(frame);
                }
            }
            Operation::FreeOldest => {
                let frame = self.frames.oldest_in(KEPT);
                let freed = self.frames.free_oldest(KEPT);
                if let Some(frame) = frame {
                    let (order, _) = self.kept.pop().unwrap();
                    assert_eq!(freed, Some(order.frames()));
                    self.forget(frame);
                }
            }
            Operation::Share(choice) => {
                let Some((frame, block)) = self.pick(choice) else {
                    return;
                };
                // Blocks in groups have one user.
                if matches!(block.home, Home::Nobody | Home::Owner) {
                    self.frames.add_reference(frame).unwrap();
                    self.live.get_mut(&frame.get()).unwrap().references += 1;
                }
            }
            Operation::Unshare(choice) => {
                let Some((frame, block)) = self.pick(choice) else {
                    return;
                };
                if block.references > 1 {
                    assert_eq!(self.frames.drop_reference(frame), Ok(false));
                    self.live.get_mut(&frame.get()).unwrap().references -= 1;
                }
            }
            Operation::Split(choice) => {
                let Some((frame, block)) = self.pick(choice) else {
                    return;
                };
                let place = (block.home == Home::Kept).then(|| {
                    let mut blocks = self.frames.blocks_in(KEPT);
                    blocks.position(|other| other == frame).unwrap()
                });
                self.frames.split(frame).unwrap();
                self.forget(frame);
                let count = block.order.frames();
                if let Some(place) = place {
                    let parts = vec![(Order::BASE, block.class); count as usize];
                    self.kept.splice(place..=place, parts);
                }
                for i in 0..count {
                    let part = Block {
                        order: Order::BASE,
                        page: block.page + u64::from(i),
                        ..block
                    };
                    self.live.insert(frame.get() + i, part);
                }
            }
            Operation::Touch(choice) => {
                let Some((frame, _)) = self.pick(choice) else {
                    return;
                };
                self.frames.touch(frame).unwrap();
            }
            Operation::Pin(choice) => self.pin(choice),
            Operation::Unpin(choice) => {
                let Some((frame, block)) = self.pick(choice) else {
                    return;
                };
                if !block.pinned {
                    return;
                }
                let at = self.frames.unpin(frame, &mut self.moves).unwrap();
                self.moved(frame, at);
                self.follow();
                self.live.get_mut(&at.get()).unwrap().pinned = self.frames.is_pinned(at);
            }
            Operation::Cpu(cpu) => self.frames.set_cpu(cpu),
            Operation::Drain => self.frames.drain_per_cpu(),
            Operation::Compact => {
                self.frames.compact_all(&mut self.moves);
                self.follow();
            }
            Operation::WantCompaction(order) => self.frames.want_compaction(Order::new(order)),
            Operation::Background(time) => {
                self.now += time;
                let now = Nanoseconds::new(self.now);
                let before = self.frames.border();
                self.frames.background(now, &mut self.moves);
                self.relocate();
                self.follow();
                if let (Some(before), Some(after)) = (before, self.frames.border()) {
                    assert_eq!(before.get().abs_diff(after.get()) % BLOCK_FRAMES, 0);
                }
            }
            Operation::Expand(blocks) => self.resize(blocks, true),
            Operation::Shrink(blocks) => self.resize(blocks, false),
        }
    }

    /// E-A (3): a pin of a movable block takes it to the unmovable side before it succeeds.
    fn pin(&mut self, choice: usize) {
        let Some((frame, block)) = self.pick(choice) else {
            return;
        };
        let border = self.frames.border();
        let pinned = self.frames.pin(frame, &mut self.moves);
        match pinned {
            Ok(at) => {
                self.moved(frame, at);
                self.follow();
                assert!(border.is_none_or(|border| at < border));
                assert!(self.frames.is_pinned(at));
                self.live.get_mut(&at.get()).unwrap().pinned = true;
            }
            Err(error) => {
                assert_eq!(error, Error::CannotPin(frame));
                assert!(border.is_some() && block.class.kind() == FrameKind::Movable);
                assert!(!self.frames.is_pinned(frame));
            }
        }
    }

    /// E-A (5): the border moves in whole pageblocks, by as many as were emptied.
    fn resize(&mut self, blocks: usize, expand: bool) {
        let before = self.frames.border();
        let done = if expand {
            self.frames.expand(blocks, &mut self.moves)
        } else {
            self.frames.shrink(blocks, &mut self.moves)
        };
        self.relocate();
        self.follow();
        assert!(done <= blocks);
        let step = done as u32 * BLOCK_FRAMES;
        if !expand && self.frames.moves_in_use() {
            let (before, after) = (before.unwrap(), self.frames.border().unwrap());
            let given = (before.get() - after.get()) / BLOCK_FRAMES;
            assert!((done..=blocks).contains(&(given as usize)));
            return;
        }
        let expected = before.map(|border| {
            Frame::new(if expand {
                border.get() + step
            } else {
                border.get() - step
            })
        });
        assert_eq!(self.frames.border(), expected);
    }

    /// Hardware moves what it has to, several blocks at a time.
    fn relocate(&mut self) {
        let mut under_way = Vec::new();
        loop {
            while under_way.len() < 3
                && let Some(relocation) = self.frames.next_relocation(&mut self.moves)
            {
                under_way.push(relocation);
            }
            self.frames.validate().unwrap();
            let Some(relocation) = under_way.pop() else {
                break;
            };
            self.frames.end_relocation(&relocation, &mut self.moves);
        }
        assert!(!self.frames.is_clearing());
    }

    /// A block that the caller was told of is elsewhere. Owned ones are reported as moves as well.
    fn moved(&mut self, from: Frame, to: Frame) {
        if from != to && self.live[&from.get()].home != Home::Owner {
            let block = self.live.remove(&from.get()).unwrap();
            self.live.insert(to.get(), block);
        }
    }

    /// Lets the model follow what moved, and what reclaim took.
    fn follow(&mut self) {
        // Several moves may reuse a frame: they are applied in order.
        for moved in std::mem::take(&mut self.moves) {
            let block = self
                .live
                .remove(&moved.from.get())
                .expect("a block that is not there");
            assert_eq!(owner(block.page), moved.owner);
            assert_eq!(block.order, moved.order);
            assert!(!block.pinned || self.frames.border().is_some());
            let before = self.live.insert(moved.to.get(), block);
            // A grouped block may have been there, which has moved on as well.
            assert!(before.is_none_or(|block| block.home != Home::Owner));
        }
        self.live
            .retain(|_, block| !matches!(block.home, Home::Evictable | Home::Kept));
        for (group, home) in [(EVICTABLE, Home::Evictable), (KEPT, Home::Kept)] {
            for frame in self.frames.blocks_in(group) {
                let block = Block {
                    order: self.frames.order(frame).unwrap(),
                    class: self.frames.class(frame).unwrap(),
                    references: 1,
                    pinned: self.frames.is_pinned(frame),
                    home,
                    page: 0,
                };
                assert_eq!(self.live.insert(frame.get(), block), None);
            }
        }
    }

    fn check(&mut self) {
        self.frames
            .validate()
            .unwrap_or_else(|problem| panic!("{problem}"));
        // The kept group's contents are in order, wherever they lie. Splits by the kernel may
        // have cut large ones.
        let kept: Vec<_> = self
            .frames
            .blocks_in(KEPT)
            .map(|frame| {
                (
                    self.frames.order(frame).unwrap(),
                    self.frames.class(frame).unwrap(),
                )
            })
            .collect();
        let flat = |blocks: &[(Order, FrameClass)]| -> Vec<FrameClass> {
            let parts = blocks
                .iter()
                .flat_map(|(order, class)| std::iter::repeat_n(*class, order.frames() as usize));
            parts.collect()
        };
        assert_eq!(flat(&kept), flat(&self.kept));
        self.kept = kept;
        let mut end = 0;
        let mut used = 0;
        for (&frame, block) in &self.live {
            assert!(frame >= end, "two blocks overlap");
            end = frame + block.order.frames();
            used += u64::from(block.order.frames());
            let frame = Frame::new(frame);
            assert_eq!(self.frames.order(frame), Some(block.order));
            assert_eq!(self.frames.class(frame), Some(block.class));
            assert_eq!(self.frames.references(frame), block.references);
            assert_eq!(self.frames.is_pinned(frame), block.pinned);
            if block.home == Home::Owner {
                assert_eq!(self.frames.owner(frame), Some(owner(block.page)));
            }
        }
        assert_eq!(
            self.frames.free_frames() + used,
            self.frames.total(),
            "frames were lost"
        );
    }

    /// The measures, from the model alone.
    fn contiguity(&self) -> contigua_contiguity::Contiguity {
        let mut scan = Scan::new();
        let mut at = 0;
        for (&frame, block) in &self.live {
            scan.push(FrameKind::Free, u64::from(frame - at));
            let is_in_use = block.pinned || block.class.is_hardware_movable();
            let kind = if is_in_use && self.frames.moves_in_use() {
                FrameKind::Movable
            } else if block.pinned {
                FrameKind::Unmovable
            } else {
                block.class.kind()
            };
            scan.push(kind, u64::from(block.order.frames()));
            at = frame + block.order.frames();
        }
        scan.push(FrameKind::Free, self.frames.total() - u64::from(at));
        scan.finish()
    }
}

/// Verdicts that have nothing to do with what is asked: the mechanism must stand any policy, as
/// those that are tried out can be wrong.
struct Whims;

impl PlacementPolicy for Whims {
    fn home(&self, request: &Request) -> MigrateType {
        let number = usize::from(request.order.get()) + request.class as usize;
        MigrateType::ALL[(number + usize::from(request.reclaimable)) % 3]
    }

    fn fallbacks(&self, home: MigrateType) -> &'static [MigrateType] {
        match home {
            MigrateType::Unmovable => &[MigrateType::Unmovable, MigrateType::Movable],
            MigrateType::Movable => &[MigrateType::Reclaimable],
            _ => &MigrateType::ALL[..3],
        }
    }

    fn verdict(&self, _: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
        match (candidate.free + u32::from(request.order.get())) % 4 {
            0 => Verdict::Refuse,
            1 => Verdict::Borrow,
            2 => Verdict::BorrowSmallest,
            _ => Verdict::Claim,
        }
    }
}

fn placements() -> impl Strategy<Value = Placement> {
    let contiguitas = |strict, hardware_migration| {
        Placement::Contiguitas(policies::contiguitas::Config {
            unmovable_min: Bytes::new(2 << 20),
            strict,
            hardware_migration,
            ..policies::contiguitas::Config::default()
        })
    };
    prop_oneof![
        Just(Placement::default()),
        Just(Placement::Illuminator(
            policies::illuminator::Config::default()
        )),
        any::<bool>().prop_map(|atomic_falls_back| {
            Placement::DefragMode(policies::defrag_mode::Config { atomic_falls_back })
        }),
        Just(Placement::Explored(Explored::new(
            "whims".to_owned(),
            Arc::new(Whims)
        ))),
        any::<bool>().prop_map(|many| {
            Placement::Superpageblocks(policies::superpageblocks::Config {
                size: Bytes::new(if many { 4 << 20 } else { 8 << 20 }),
                reserve_percent: 10.0,
            })
        }),
        (10.0..90.0).prop_map(|kernelcore_percent| {
            Placement::ZoneMovable(policies::zone_movable::Config { kernelcore_percent })
        }),
        any::<(bool, bool)>().prop_map(move |(strict, hardware)| contiguitas(strict, hardware)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(300)))]
    #[test]
    fn no_frame_is_lost_handed_out_twice_or_on_the_wrong_side(
        total in 1100..9000usize,
        placement in placements(),
        operations in proptest::collection::vec(operation(), 1..250),
    ) {
        let mut model = Model::new(total, placement);
        for operation in operations {
            model.apply(&operation);
            model.check();
        }
        prop_assert_eq!(model.frames.counters().resizes_in_allocations, 0);
        prop_assert_eq!(model.frames.contiguity(), model.contiguity());
    }
}

/// Kernel caches are shrunk in `tests/linux.rs`, files are read again in `tests/contiguitas.rs`; the
/// last one is never to happen.
const UNREACHED: [&str; 3] = [
    "frames_refaulted",
    "frames_shrunk",
    "resizes_in_allocations",
];

/// A counter that stays 0 whatever happens is one that nobody increments.
#[test]
fn every_counter_is_incremented_somewhere() {
    let mut runner = TestRunner::deterministic();
    let strategy = (
        1100..9000usize,
        placements(),
        proptest::collection::vec(operation(), 250),
    );
    let mut never: BTreeSet<&str> = BTreeSet::new();
    // Rare ones, such as migration by hardware, take a few hundred sequences to turn up.
    for sequence in 0..4000 {
        let (total, placement, operations) = strategy.new_tree(&mut runner).unwrap().current();
        let mut model = Model::new(total, placement);
        for operation in &operations {
            model.apply(operation);
            model.check();
        }
        if sequence == 0 {
            never.extend(model.frames.counters().iter().map(|(name, _)| name));
        }
        for (name, count) in model.frames.counters().iter() {
            if count > 0 {
                never.remove(name);
            }
        }
        if never.len() <= UNREACHED.len() {
            break;
        }
    }
    assert_eq!(never, BTreeSet::from(UNREACHED));
}

#[test]
fn everything_merges_back_when_everything_is_freed() {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new(4096, 0, 1);
    let mut frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    let request = Request::new(Order::BASE, FrameClass::Anonymous);
    let mut taken: Vec<Frame> = std::iter::from_fn(|| frames.allocate(&request)).collect();
    assert_eq!(taken.len(), 4096);
    assert_eq!(frames.free_frames(), 0);
    // An order that leaves holes everywhere before it closes them.
    taken.sort_by_key(|frame| frame.get().reverse_bits());
    for frame in taken {
        frames.free(frame).unwrap();
    }
    frames.drain_per_cpu();
    assert_eq!(frames.validate(), Ok(()));
    assert_eq!(frames.blocks().count(), 4);
}
