//! A Rust program on this allocator: `cargo run --release -p contigua-malloc --example global`.

use std::collections::HashMap;
use std::thread;

#[global_allocator]
static GLOBAL: contigua_malloc::ContiguaMalloc = contigua_malloc::ContiguaMalloc;

fn main() {
    let counts: Vec<usize> = thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|worker| {
                scope.spawn(move || {
                    let mut words: HashMap<String, Vec<usize>> = HashMap::new();
                    for number in 0..50_000 {
                        words
                            .entry(format!("word {}", number * worker % 997))
                            .or_default()
                            .push(number);
                    }
                    words.len()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_default())
            .collect()
    });
    println!("different words of each thread: {counts:?}");
    println!(
        "given back to the system: {} bytes",
        contigua_malloc::control::release(usize::MAX)
    );
}
