//! Contiguity of a gigabyte with one unmovable frame: `cargo run -p contigua-contiguity --example
//! scan`.

use contigua_contiguity::{FrameKind, Scan};

fn main() {
    let mut scan = Scan::new();
    scan.push(FrameKind::Free, 100_000);
    scan.push(FrameKind::Unmovable, 1);
    scan.push(FrameKind::Movable, 50_000);
    scan.push(FrameKind::Free, (1 << 18) - 150_001);
    let contiguity = scan.finish();
    println!("blocks      all  free  after compaction  unmovable");
    for (order, blocks) in contiguity.blocks() {
        println!(
            "{:>4} MB  {:>6} {:>5} {:>17} {:>10}",
            order.bytes() >> 20,
            blocks.total,
            blocks.free,
            blocks.potential,
            blocks.unmovable
        );
    }
    println!("one unmovable frame keeps the whole gigabyte from being one page");
}
