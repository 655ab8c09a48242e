//! Does a fixed border keep unmovable memory below it, and movable memory out of the reserve?

use contigua_frames::{
    Boxed, Config, Evict, FrameClass, Frames, Group, Layout, Placement, Request, policies,
};
use contigua_units::{Frame, Nanoseconds, Order};

type Memory = Frames<Boxed>;

const FILES: Group = Group(0);
const KEPT: Group = Group(1);

/// 128 MiB, of which 64 lie below the border.
fn memory() -> Memory {
    let layout = Layout::new(128 << 8, 4, 1);
    let placement = Placement::ZoneMovable(policies::zone_movable::Config {
        kernelcore_percent: 50.0,
    });
    let mut memory = Frames::new(Boxed::new(layout), Config::default(), placement).unwrap();
    memory.set_evict(FILES, Evict::File);
    memory
}

fn one(class: FrameClass, group: Group) -> Request {
    Request {
        group: Some(group),
        ..Request::new(Order::BASE, class)
    }
}

fn fill(memory: &mut Memory, class: FrameClass, group: Group) -> Vec<Frame> {
    std::iter::from_fn(|| memory.allocate(&one(class, group))).collect()
}

fn free_below(memory: &Memory, border: Frame) -> usize {
    let blocks = memory.pageblocks()[..border.index() / 512].iter();
    blocks.map(|block| block.free() as usize).sum()
}

#[test]
fn unmovable_requests_fail_when_the_kernels_part_is_full_and_the_border_stays() {
    let mut memory = memory();
    let border = memory.border().unwrap();
    assert_eq!(border.index(), 64 << 8);
    let slabs = fill(&mut memory, FrameClass::Slab, KEPT);
    assert!(slabs.iter().all(|slab| *slab < border));
    let slab = one(FrameClass::Slab, KEPT);
    // What CPUs keep at hand goes first.
    while memory.allocate_or_reclaim(&slab, &mut ()).is_some() {}
    for second in 1..10 {
        assert_eq!(memory.allocate_or_reclaim(&slab, &mut ()), None);
        memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
    }
    assert_eq!(
        (memory.expand(4, &mut ()), memory.shrink(4, &mut ())),
        (0, 0)
    );
    assert_eq!(memory.border(), Some(border));
    // Half of memory is free, and movable requests have it.
    assert!(memory.free_frames() > 64 << 8);
    let page = memory.allocate(&one(FrameClass::Anonymous, KEPT));
    assert!(page.is_some_and(|page| page >= border));
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn movable_requests_use_the_kernels_part_but_for_what_linux_reserves() {
    let mut memory = memory();
    let border = memory.border().unwrap();
    let pages = fill(&mut memory, FrameClass::Anonymous, KEPT);
    let below = pages.iter().filter(|page| **page < border).count();
    assert!(below > 0);
    // The low watermark and a 32nd of the movable part; CPUs' lists hold up to 63 of them.
    let reserve = (64 << 8) / 32;
    let left = free_below(&memory, border);
    assert!((reserve..reserve + 1_000).contains(&left), "{left}");
    assert_eq!(below + left, 64 << 8);
    // Huge pages lie above.
    let mut memory = self::memory();
    let huge = Request::new(Order::HUGE_2M, FrameClass::Anonymous);
    let huge: Vec<_> = std::iter::from_fn(|| memory.allocate(&huge)).collect();
    assert!(huge.len() >= 31 && huge.iter().all(|page| *page >= border));
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn movable_memory_gives_way_to_the_kernel_below_the_border() {
    let mut memory = memory();
    let border = memory.border().unwrap();
    let files = fill(&mut memory, FrameClass::PageCache, FILES);
    assert!(files.iter().any(|file| *file < border));
    let mut slabs = 0;
    for time in 0..(48 << 8) {
        let slab = memory.allocate_or_reclaim(&one(FrameClass::Slab, KEPT), &mut ());
        slabs += u32::from(slab.is_some_and(|slab| slab < border));
        memory.background(Nanoseconds::new(time * 10_000_000), &mut ());
    }
    assert_eq!(slabs, 48 << 8);
    assert!(memory.counters().frames_evacuated > 8 << 8);
    // No more files went than slabs needed, but for what the watermarks keep free.
    let gone = files.len() - memory.frames_in(FILES) as usize;
    assert!(gone < (48 << 8) + 2_000, "{gone}");
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_pin_takes_a_page_below_the_border() {
    let mut memory = memory();
    let border = memory.border().unwrap();
    let page = memory.allocate(&one(FrameClass::Anonymous, KEPT)).unwrap();
    assert!(page >= border);
    assert!(memory.pin(page, &mut ()).unwrap() < border);
}
