//! Direct Memory Translation: which entries does a translation read, where are they, and what when registers tell
//! nothing of them?

use contigua_frames::FrameClass;
use contigua_paging::{AddressSpace, Effects, Memory, SpaceId, TableShape, Vma};
use contigua_translation::{
    Access, Answer, HostTables, Lookup, MemoryPort, Mmu, NestedConfig, Request, Tables,
    TranslatorCounters,
};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::common::{BASE, counter, memory, mmu_of, scheme, small_tlb};

/// 16 MB.
const PAGES: u64 = 1 << 12;
const SMALL: &str = "least = \"2MiB\"\nhuge.enabled = \"never\"";
const HUGE: &str = "least = \"2MiB\"";
/// First page of the guest's that the host lends.
const LENT: u64 = 1 << 28;

/// The order and the places of reads; those of a step are one, and beside them those for which nobody waits.
#[derive(Default)]
struct Steps(Vec<Vec<PhysAddr>>, Vec<PhysAddr>);

impl MemoryPort for Steps {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.references_at_once(&[address])
    }

    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        self.0.push(addresses.to_vec());
        Cycles::new(100)
    }

    fn reference_aside(&mut self, address: PhysAddr) {
        self.1.push(address);
    }
}

/// A space, and the memory that it is in.
struct Side {
    space: AddressSpace,
    memory: Memory,
    text: String,
}

impl Side {
    fn new(text: &str, is_guest: bool, range: VirtRange) -> Self {
        let mut memory = memory(1 << 14);
        let shape = TableShape {
            areas: scheme("dmt", text).areas(is_guest),
            ..TableShape::default()
        };
        let mut space = AddressSpace::with(SpaceId(0), shape, &mut memory).unwrap();
        let mut effects = Effects::default();
        space
            .map(range, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        Self {
            space,
            memory,
            text: text.to_owned(),
        }
    }

    fn fault(&mut self, address: VirtAddr) {
        let policy = scheme("dmt", &self.text).policy();
        let (memory, mut effects) = (&mut self.memory, Effects::default());
        self.space
            .fault(address, true, &*policy, memory, &mut effects)
            .unwrap();
        self.make_areas();
    }

    fn make_areas(&mut self) {
        let take =
            |frames, memory: &mut Memory| memory.take_run(frames, FrameClass::PageTable, &mut ());
        self.space
            .make_areas(take, &mut self.memory, &mut Effects::default());
    }
}

struct World {
    guest: Side,
    host: Option<Side>,
    mmu: Mmu,
    next_lent: u64,
}

impl World {
    fn new(text: &str, nested: bool) -> Self {
        let config = NestedConfig::default();
        let scheme = scheme("dmt", text);
        let mmu = mmu_of(
            &*scheme,
            &small_tlb(),
            &config.walk_cache,
            nested.then_some(&config),
        );
        let range = VirtRange::with_length(VirtAddr::new(BASE), PAGES * PAGE_BYTES);
        let all = VirtRange::with_length(VirtAddr::new(0), 64 << 20);
        let mut world = Self {
            guest: Side::new(text, nested, range),
            host: nested.then(|| Side::new(text, false, all)),
            mmu,
            next_lent: LENT,
        };
        for page in 0..PAGES {
            world.settle(at(page));
        }
        world.mmu.flush();
        world.mmu.reset_counters();
        world
    }

    /// As the host's kernel does for a paravirtual guest.
    fn make_areas(&mut self) {
        let areas = self.guest.space.table().areas();
        let Some(host) = self
            .host
            .as_mut()
            .filter(|_| areas.unwrap().shape().is_in_host)
        else {
            self.guest.make_areas();
            return;
        };
        let next_lent = &mut self.next_lent;
        let lend = |frames: u64, _: &mut Memory| {
            let block = host
                .memory
                .take_run(frames, FrameClass::PageTable, &mut ())?;
            let first = Frame::new(*next_lent as u32);
            *next_lent += frames;
            let start = VirtAddr::new(first.address().get());
            let range = VirtRange::with_length(start, frames * PAGE_BYTES);
            let (memory, mut effects) = (&mut host.memory, Effects::default());
            host.space
                .map(range, Vma::ANONYMOUS, memory, &mut effects)
                .unwrap();
            for at in 0..frames {
                let page = start + at * PAGE_BYTES;
                let frame = block.offset(at as u32);
                host.space
                    .map_elsewhere(page, frame, PageSize::Size4K, memory, &mut effects)
                    .unwrap();
            }
            Some(first)
        };
        let (memory, mut effects) = (&mut self.guest.memory, Effects::default());
        self.guest.space.make_areas(lend, memory, &mut effects);
    }

    fn translate(&mut self, address: VirtAddr, port: &mut Steps) -> Option<Answer> {
        let id = SpaceId(0);
        if self.mmu.write(address, id) != Lookup::Miss {
            return None;
        }
        let request = Request::new(address, id, Access::Write);
        let mut tables = Tables {
            segment: self.guest.space.segment(),
            table: self.guest.space.table_mut(),
            holes: &self.guest.memory.holes,
            rest_segs: None,
            host: self.host.as_mut().map(|host| HostTables {
                segment: host.space.segment(),
                table: host.space.table_mut(),
                holes: &host.memory.holes,
            }),
        };
        Some(self.mmu.miss(&request, &mut tables, port))
    }

    /// Accesses an address and lets kernels do what they must.
    fn settle(&mut self, address: VirtAddr) {
        for _ in 0..32 {
            match self.translate(address, &mut Steps::default()) {
                Some(Answer::Fault { host: Some(at), .. }) => {
                    let host = self.host.as_mut().unwrap();
                    host.fault(VirtAddr::new(at.get()));
                    self.mmu.flush();
                }
                Some(Answer::Fault { host: None, .. }) => {
                    let policy = scheme("dmt", &self.guest.text).policy();
                    let (memory, mut effects) = (&mut self.guest.memory, Effects::default());
                    self.guest
                        .space
                        .fault(address, true, &*policy, memory, &mut effects)
                        .unwrap();
                    self.make_areas();
                }
                _ => return,
            }
        }
        panic!("{address} faults for ever");
    }

    /// Reads of the translation of an address that no TLB has, and its cycles.
    fn steps(&mut self, page: u64) -> (Vec<Vec<PhysAddr>>, u64) {
        self.mmu.flush();
        let mut port = Steps::default();
        let Some(Answer::Translated {
            latency, physical, ..
        }) = self.translate(at(page), &mut port)
        else {
            panic!("page {page} is mapped");
        };
        assert_eq!(physical, self.resolved(page));
        (port.0, latency.get())
    }

    fn resolved(&self, page: u64) -> PhysAddr {
        let guest = leaf(&self.guest, at(page));
        match &self.host {
            Some(host) => leaf(host, VirtAddr::new(guest.get())),
            None => guest,
        }
    }

    /// Place of the last entry for an address in a side's own memory.
    fn entry(&self, page: u64) -> PhysAddr {
        last(&self.guest, at(page))
    }

    fn counters(&self) -> TranslatorCounters {
        self.mmu.translator_counters()
    }
}

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * PAGE_BYTES)
}

fn inside(address: PhysAddr) -> VirtAddr {
    VirtAddr::new(address.get())
}

fn leaf(side: &Side, address: VirtAddr) -> PhysAddr {
    let leaf = side.space.table().leaf(address).unwrap();
    leaf.physical(address)
}

fn last(side: &Side, address: VirtAddr) -> PhysAddr {
    *side
        .space
        .table()
        .walk(address)
        .references()
        .last()
        .unwrap()
}

const TRIED: [u64; 6] = [0, 7, 8, 511, 512, PAGES - 1];

#[test]
fn natively_one_entry_is_read_and_it_is_the_last_of_a_walk() {
    let mut world = World::new(SMALL, false);
    for page in TRIED {
        let (steps, latency) = world.steps(page);
        assert_eq!(steps, [[world.entry(page)]]);
        assert_eq!(latency, 7 + 100);
    }
    assert_eq!(world.counters().references, TRIED.len() as u64);
    assert_eq!(counter(&world.mmu, "dmt_fetches"), TRIED.len() as u64);
    assert_eq!(counter(&world.mmu, "dmt_steps"), TRIED.len() as u64);
    assert_eq!(counter(&world.mmu, "dmt_walks"), 0);
}

#[test]
fn of_entries_of_both_sizes_that_of_the_page_is_waited_for() {
    let mut world = World::new(HUGE, false);
    for page in TRIED {
        world.mmu.flush();
        let mut port = Steps::default();
        world.translate(at(page), &mut port);
        assert_eq!(port.0, [[world.entry(page)]]);
        assert_eq!(port.1.len(), 1, "that of a small page");
        let areas = world.guest.space.table().areas().unwrap();
        assert_eq!(areas.entry(at(page), PageSize::Size4K), Some(port.1[0]));
    }
    assert_eq!(world.counters().walks_2m, TRIED.len() as u64);
    assert_eq!(world.counters().references, 2 * TRIED.len() as u64);
    assert_eq!(counter(&world.mmu, "dmt_steps"), TRIED.len() as u64);
}

#[test]
fn in_a_virtual_machine_three_entries_are_read_each_after_the_other() {
    let mut world = World::new(SMALL, true);
    for page in TRIED {
        let (steps, latency) = world.steps(page);
        let (entry, host) = (world.entry(page), world.host.as_ref().unwrap());
        let page = leaf(&world.guest, at(page));
        let expected = [
            last(host, inside(entry)),
            leaf(host, inside(entry)),
            last(host, inside(page)),
        ];
        assert_eq!(steps, expected.map(|entry| vec![entry]));
        assert_eq!(latency, 7 + 300);
    }
    assert_eq!(counter(&world.mmu, "dmt_steps"), 3 * TRIED.len() as u64);
    assert_eq!(world.counters().references, 3 * TRIED.len() as u64);
}

#[test]
fn a_paravirtual_guest_needs_two_and_its_area_is_contiguous_in_the_host() {
    let mut world = World::new(&format!("{SMALL}\nparavirtual = true"), true);
    let mut places = Vec::new();
    for page in (0..PAGES).step_by(512) {
        let (steps, latency) = world.steps(page);
        let (entry, host) = (world.entry(page), world.host.as_ref().unwrap());
        assert!(entry.get() >= LENT * PAGE_BYTES, "the host has lent it");
        let page = leaf(&world.guest, at(page));
        let expected = [leaf(host, inside(entry)), last(host, inside(page))];
        assert_eq!(steps, expected.map(|entry| vec![entry]));
        assert_eq!(latency, 7 + 200);
        places.push(steps[0][0].get());
    }
    assert!(
        places.is_sorted_by(|&a, &b| a + PAGE_BYTES == b),
        "{places:?}"
    );
}

#[test]
fn with_huge_pages_a_virtual_machine_has_as_many_steps() {
    for (more, steps) in [("", 3), ("\nparavirtual = true", 2)] {
        let mut world = World::new(&format!("{HUGE}{more}"), true);
        for page in TRIED {
            let (read, latency) = world.steps(page);
            assert_eq!((read.len(), latency), (steps, 7 + 100 * steps as u64));
        }
        assert_eq!(counter(&world.mmu, "dmt_walks"), 0);
    }
}

#[test]
fn a_mapping_without_an_area_is_walked() {
    for nested in [false, true] {
        let mut world = World::new("least = \"1GiB\"\nhuge.enabled = \"never\"", nested);
        let (steps, _) = world.steps(9);
        assert!(if nested {
            steps.len() > 4
        } else {
            steps.len() == 4
        });
        assert_eq!(counter(&world.mmu, "dmt_fetches"), 0);
        assert_eq!(counter(&world.mmu, "dmt_walks"), 1);
    }
}

#[test]
fn an_address_beside_the_mapping_is_walked() {
    let mut world = World::new(SMALL, false);
    let beside = VirtRange::with_length(at(2 * PAGES), PAGE_BYTES);
    let (memory, mut effects) = (&mut world.guest.memory, Effects::default());
    world
        .guest
        .space
        .map(beside, Vma::ANONYMOUS, memory, &mut effects)
        .unwrap();
    world.settle(beside.start);
    world.mmu.reset_counters();
    let (steps, _) = world.steps(2 * PAGES);
    assert_eq!(steps.len(), 4);
    assert_eq!(counter(&world.mmu, "dmt_fetches"), 0);
}

#[test]
fn a_mapping_that_is_gone_is_no_longer_told_of() {
    let mut world = World::new(SMALL, false);
    let range = VirtRange::with_length(at(0), PAGES * PAGE_BYTES);
    let (memory, mut effects) = (&mut world.guest.memory, Effects::default());
    world
        .guest
        .space
        .unmap(range, memory, &mut effects)
        .unwrap();
    world.mmu.flush();
    world.mmu.reset_counters();
    let mut port = Steps::default();
    let answer = world.translate(at(9), &mut port);
    assert!(matches!(answer, Some(Answer::Fault { host: None, .. })));
    assert_eq!(counter(&world.mmu, "dmt_fetches"), 0);
    assert_eq!(counter(&world.mmu, "dmt_walks"), 1);
}

#[test]
fn a_page_that_is_not_there_faults_with_one_read() {
    let mut world = World::new(SMALL, false);
    let range = VirtRange::with_length(at(9), PAGE_BYTES);
    let (memory, mut effects) = (&mut world.guest.memory, Effects::default());
    world
        .guest
        .space
        .discard(range, memory, &mut effects)
        .unwrap();
    world.mmu.flush();
    let mut port = Steps::default();
    let answer = world.translate(at(9), &mut port);
    assert!(matches!(answer, Some(Answer::Fault { host: None, .. })));
    assert_eq!(port.0.len(), 1);
}
