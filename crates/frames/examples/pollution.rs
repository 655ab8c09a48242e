//! Kernel memory among movable memory, under Linux's placement and Contiguitas': `cargo run
//! --release -p contigua-frames --features alloc --example pollution`.

use contigua_frames::{
    BLOCK_FRAMES, Boxed, Config, FrameClass, Frames, Layout, Placement, Request, policies,
};
use contigua_units::Order;

fn main() {
    let placements = [
        Placement::default(),
        Placement::Contiguitas(policies::contiguitas::Config::default()),
    ];
    for placement in placements {
        let name = placement.name();
        let layout = Layout::new(1 << 18, 0, 1);
        let mut memory =
            Frames::new(Boxed::new(layout), Config::default(), placement).expect("a gigabyte fits");
        let program = Request::new(Order::BASE, FrameClass::Anonymous);
        let kernel = Request::new(Order::BASE, FrameClass::Slab);
        // Programs fill memory and leave every 16th page; then the kernel needs some.
        let pages: Vec<_> = (0..1 << 18)
            .map_while(|_| memory.allocate(&program))
            .collect();
        for page in pages.iter().step_by(16) {
            memory.free(*page).expect("it was allocated");
        }
        let slabs: Vec<_> = (0..4000).map_while(|_| memory.allocate(&kernel)).collect();
        let mut blocks: Vec<u32> = slabs
            .iter()
            .map(|frame| frame.get() / BLOCK_FRAMES)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        println!(
            "{name}: {} kernel pages lie in {} of 512 blocks of 2 MB",
            slabs.len(),
            blocks.len()
        );
    }
}
