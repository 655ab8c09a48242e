//! Does a program use idle unmovable memory before it ends?

mod common;

use common::Small;
use contigua_frames::{Boxed, Config, Frames, Layout, Placement, policies};
use contigua_paging::{AddressSpace, Effects, Error, Memory, SpaceId, Vma};
use contigua_units::{Bytes, PAGE_BYTES, VirtAddr, VirtRange};

#[test]
fn the_last_try_of_a_program_uses_idle_unmovable_memory() {
    let placement = Placement::Contiguitas(policies::contiguitas::Config {
        unmovable_min: Bytes::new(16 << 20),
        ..policies::contiguitas::Config::default()
    });
    let layout = Layout::new(64 << 8, 0, 1);
    let frames = Frames::new(Boxed::new(layout), Config::default(), placement).unwrap();
    let mut memory: Memory = frames.into();
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(0), &mut memory).unwrap();
    let pages = 64 << 8;
    let all = VirtRange::with_length(VirtAddr::new(0x4000_0000), pages * PAGE_BYTES);
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let mut first = |memory: &mut Memory| {
        let touch = |page: u64| {
            let at = VirtAddr::new(all.start.get() + page * PAGE_BYTES);
            space.fault(at, true, &Small, memory, &mut effects)
        };
        (0..pages)
            .map(touch)
            .position(|done| matches!(done, Err(Error::OutOfMemory)))
    };
    let ordinary = first(&mut memory).unwrap();
    assert!(ordinary < 48 << 8, "{ordinary}");
    memory.set_last_try(true);
    let last = first(&mut memory).unwrap();
    assert!(last > ordinary + 3000, "{last}, {ordinary}");
    assert_eq!(memory.validate(), Ok(()));
}
