//! Free memory of this machine by block size: `cargo run -p contigua-live --example free_memory`.

use contigua_live::Error;
use contigua_live::proc::System;

fn main() -> Result<(), Error> {
    let system = System::running();
    let meminfo = system.meminfo()?;
    for name in ["MemTotal", "MemFree", "MemAvailable"] {
        if let Some(bytes) = meminfo.bytes(name) {
            println!("{name}: {} MiB", bytes.get() >> 20);
        }
    }
    for zone in system.buddy_zones()? {
        let huge: u64 = zone
            .blocks
            .iter()
            .enumerate()
            .skip(9)
            .map(|(order, blocks)| blocks << (order - 9))
            .sum();
        println!(
            "node {}, zone {}: {} MiB free, {huge} blocks of 2 MB",
            zone.node,
            zone.zone,
            zone.free_frames() >> 8
        );
    }
    Ok(())
}
