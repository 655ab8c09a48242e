//! Is a frame ever lost or handed out twice, over 10^8 operations? Run by `make soak`, in release
//! mode: a minute.

use contigua_frames::{
    Boxed, Config, Evict, FrameClass, Frames, Group, Layout, Placement, Request, policies,
};
use contigua_units::{Bytes, Frame, Nanoseconds, Order};

const OPERATIONS: u64 = 100_000_000;
const FRAMES: usize = 1 << 18;
const FILES: Group = Group(0);

/// Knuth's MMIX generator; its high bits are good enough to choose operations.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) * end) >> 31
    }
}

fn soak(placement: Placement) {
    let layout = Layout::new(FRAMES, 1, 4);
    let mut memory = Frames::new(Boxed::new(layout), Config::default(), placement).unwrap();
    memory.set_evict(FILES, Evict::File);
    let mut random = Random(1);
    let mut used = vec![false; FRAMES];
    let mut live: Vec<(Frame, Order)> = Vec::new();
    for operation in 0..OPERATIONS / 3 {
        if operation % 1_000_000 == 0 {
            memory.background(Nanoseconds::new(operation * 1000), &mut ());
            assert_eq!(memory.validate(), Ok(()));
        }
        if memory.has_background_work() && operation % 64 == 0 {
            memory.background(Nanoseconds::new(operation * 1000), &mut ());
        }
        memory.set_cpu(random.below(4) as usize);
        let is_large = random.below(16) == 0;
        let order = Order::new(if is_large { random.below(10) as u8 } else { 0 });
        match random.below(9) {
            0..=2 => {
                let class = [FrameClass::Slab, FrameClass::Anonymous][random.below(2) as usize];
                let request = Request {
                    atomic: random.below(8) == 0,
                    long_lived: random.below(64) == 0,
                    ..Request::new(order, class)
                };
                if let Some(frame) = memory.allocate(&request) {
                    for used in &mut used[frame.index()..][..order.frames() as usize] {
                        assert!(!std::mem::replace(used, true), "handed out twice");
                    }
                    live.push((frame, order));
                }
            }
            3..=5 if !live.is_empty() => {
                let (frame, order) = live.swap_remove(random.below(live.len() as u64) as usize);
                memory.free(frame).unwrap();
                used[frame.index()..][..order.frames() as usize].fill(false);
            }
            6 => {
                let request = Request {
                    group: Some(FILES),
                    ..Request::new(Order::BASE, FrameClass::PageCache)
                };
                if let Some(frame) = memory.allocate(&request) {
                    assert!(!used[frame.index()], "handed out twice");
                }
            }
            7 => {
                memory.free_oldest(FILES);
            }
            _ => {}
        }
    }
    let held: u64 = live
        .iter()
        .map(|(_, order)| u64::from(order.frames()))
        .sum();
    let files = u64::from(memory.frames_in(FILES));
    assert_eq!(
        memory.free_frames() + held + files,
        FRAMES as u64,
        "frames were lost"
    );
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
#[ignore = "a minute in release mode; make soak runs it"]
fn no_frame_is_lost_or_handed_out_twice_in_a_hundred_million_operations() {
    soak(Placement::default());
    soak(Placement::Illuminator(
        policies::illuminator::Config::default(),
    ));
    soak(Placement::Contiguitas(policies::contiguitas::Config {
        unmovable_min: Bytes::new(64 << 20),
        ..policies::contiguitas::Config::default()
    }));
}
