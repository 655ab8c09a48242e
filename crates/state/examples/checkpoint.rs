//! A component's state as bytes, and back: `cargo run -p contigua-state --example checkpoint`.

use contigua_state::{Reader, State, Writer};

/// A counter with a limit that follows from its configuration.
#[derive(Debug, State)]
struct Counter {
    #[state(skip)]
    limit: u64,
    count: u64,
    history: Vec<u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let before = Counter {
        limit: 10,
        count: 3,
        history: vec![1, 2, 3],
    };
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes);
    before.save(&mut out);
    out.finish()?;
    println!("{before:?} is stored in {} bytes", bytes.len());

    let mut after = Counter {
        limit: 10,
        count: 0,
        history: Vec::new(),
    };
    let mut input = bytes.as_slice();
    let mut input = Reader::new(&mut input, 1 << 20);
    after.load(&mut input)?;
    input.finish()?;
    println!("{after:?} was loaded");
    println!("the limit of {} was not stored", after.limit);
    Ok(())
}
