//! Huge pages on first touch, while free blocks last: `cargo run -p contigua-paging --example
//! first_touch`.

use contigua_frames::{Boxed, Config, Frames, Layout, Placement};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, SpaceId, Vma,
};
use contigua_units::{PageSize, VirtAddr, VirtRange};

/// The largest page that fits.
struct Largest;

impl MappingPolicy for Largest {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        context.fits
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::new(16_384, 0, 1);
    let frames = Frames::new(Boxed::new(layout), Config::default(), Placement::default())?;
    let mut memory = Memory::from(frames);
    let mut space = AddressSpace::new(SpaceId(1), &mut memory)?;
    let mut effects = Effects::default();
    let start = VirtAddr::new(0x4000_0000);
    let range = VirtRange::with_length(start, 8 << 20);
    space.map(range, Vma::ANONYMOUS, &mut memory, &mut effects)?;
    for offset in [0_u64, 4096, 2 << 20, 6 << 20] {
        let address = VirtAddr::new(start.get() + offset);
        if space.translation(address).is_none() {
            let fault = space.fault(address, true, &Largest, &mut memory, &mut effects)?;
            println!(
                "touch of +{:>4} KiB: mapped a {} page",
                offset >> 10,
                fault.size.name()
            );
        } else {
            println!("touch of +{:>4} KiB: mapped already", offset >> 10);
        }
    }
    let resident = space.resident();
    println!(
        "resident: {} pages of 4 KB, {} pages of 2 MB",
        resident.pages_4k, resident.pages_2m
    );
    Ok(())
}
