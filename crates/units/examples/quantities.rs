//! Sizes, times and addresses: `cargo run -p contigua-units --example quantities`.

use contigua_units::{Bytes, Megahertz, Nanoseconds, PageSize, ParseQuantityError, VirtAddr};

fn main() -> Result<(), ParseQuantityError> {
    let size: Bytes = "1.5GiB".parse()?;
    println!("{size} are {} pages of 4 KB", size.frames());

    let clock: Megahertz = "2.2GHz".parse()?;
    let latency: Nanoseconds = "85ns".parse()?;
    println!("{latency} take {} at {clock}", latency.at(clock));

    let address = VirtAddr::new(0x7f12_3456_789a);
    for page in PageSize::ALL {
        let start = address.align_down(page.bytes()).get();
        println!(
            "the {} page of {:#x} begins at {start:#x}",
            page.name(),
            address.get()
        );
    }
    Ok(())
}
