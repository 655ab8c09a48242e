//! The shared memory through which a running program's events reach their readers.
//!
//! A pool of equal chunks lies in one memfd. A guest thread fills a chunk of its own without any
//! synchronization, and publishes it by taking the next *ticket*; readers consume chunks in ticket
//! order. So the hot path touches thread-private memory only, all readers see one and the same
//! total order over all threads and processes (a recording replays exactly what a live reader
//! saw), and a forked or re-executed process joins by mapping the same memory. A chunk goes back
//! to the pool when the last reader has passed it; an empty pool holds the program back.
//!
//! One pool instead of one ring per thread, because the merged order of many rings would have to
//! be invented by every reader anew, and a program may have thousands of mostly idle threads.
//!
//! Threads publish before every system call, so whatever synchronizes through the kernel keeps
//! its order in the stream, and a blocked thread holds no chunk.
//!
//! The code of translated blocks lies behind the chunks in an append-only area indexed by block
//! number: any process may execute a block as soon as it was described, without the description
//! having to travel through the stream before it.

mod layout;
mod pool;
mod processes;
mod producer;
mod reader;

pub use layout::{CHUNK_WORDS, MAX_BLOCKS, MAX_PROCESSES, MAX_READERS, VERSION};
pub use pool::Ring;
pub use processes::{Member, Owner, RobustList};
pub use producer::{Held, Producer};
pub use reader::RingReader;
