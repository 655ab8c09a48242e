//! The page of a heap's statistics, written and read: `cargo run -p contigua-telemetry --example
//! values`.

use std::sync::atomic::AtomicU64;

use contigua_telemetry::{MAGIC, Page, Shared};

static WORDS: [AtomicU64; size_of::<Page>() / 8] =
    [const { AtomicU64::new(0) }; size_of::<Page>() / 8];

fn main() {
    // SAFETY: a static as large as a page, which nothing else uses.
    let shared = unsafe { Shared::at(WORDS.as_ptr()) };
    shared.write(&Page {
        magic: MAGIC,
        figures: Page::NAMES.len() as u32,
        misses: 42,
        metadata: 3 << 20,
        ..Page::default()
    });
    let page = shared.read().expect("no other thread writes");
    for figure in page.known().filter(|figure| figure.value > 0) {
        println!(
            "{} = {} {:?}: {}",
            figure.name, figure.value, figure.unit, figure.help
        );
    }
}
