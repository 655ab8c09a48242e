//! Layout of the shared memory.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Version of this layout and of the wire format in it.
pub const VERSION: u32 = 6;
/// Words in a chunk: 16 KB, small enough that the chunks in flight stay in the host's L2 cache.
pub const CHUNK_WORDS: usize = 2048;
/// Chunks in the pool: 4 MB in all, the furthest that a program runs ahead of its slowest reader.
pub const CHUNKS: usize = 256;
/// Readers that one ring can serve: bits in a chunk's pending mask.
pub const MAX_READERS: u32 = 32;
/// Guest processes that can be alive at one time.
pub const MAX_PROCESSES: usize = 4096;
/// Distinct blocks of code that one run can have.
pub const MAX_BLOCKS: usize = 1 << 25;
/// Bytes reserved for the descriptions of blocks. Sparse: only what is written takes memory.
pub const CODE_BYTES: usize = 8 << 30;

/// "contigua" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"contigua");

/// A value on a cache line of its own, so that two sides do not fight over one line.
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// Metadata of a chunk.
#[repr(C)]
pub struct ChunkMeta {
    /// The guest thread that filled it.
    pub thread: AtomicU32,
    /// Words published.
    pub length: AtomicU32,
    /// Bit r: reader r has not passed it yet.
    pub pending: AtomicU32,
    /// The process that is filling it, as [`Ring::join`](super::Ring::join) numbered it; 0 otherwise.
    pub holder: AtomicU32,
    /// Index + 1 of the next chunk on the free list, 0 at its end.
    pub next_free: AtomicU32,
}

/// A place for a process.
#[repr(C)]
pub struct Place {
    /// The futex: 0 when the place is free, else the owning thread, in numbers of its own PID
    /// namespace, which only the kernel understands, or [`libc::FUTEX_OWNER_DIED`].
    pub owner: AtomicU32,
    /// The number of the process that has the place.
    pub holder: AtomicU32,
    /// [`BOUND`] or 0.
    pub state: AtomicU32,
}

/// The process holds the guest's end of the lifeline: when nobody does, it has ended.
pub const BOUND: u32 = 1;

/// Bytes that the reason of a failure can have.
pub const FAILURE_BYTES: usize = 256;

/// All of the shared memory but the descriptions of code.
#[repr(C)]
pub struct Memory {
    pub header: Header,
    /// Apart from the header, because chunks are plain memory: no reference to them may exist
    /// while others write.
    pub chunks: Line<[[u64; CHUNK_WORDS]; CHUNKS]>,
}

/// Header, which is shared through atomics. The two plain fields never change once the memory is
/// shared.
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub version: u32,
    /// Robust futex of the ring's owner: 0 before it came, else as in [`Place`].
    pub owner: AtomicU32,
    /// Bit r: reader r exists.
    pub readers: AtomicU32,
    /// Nothing will be published any more.
    pub ended: AtomicU32,
    /// Producers are asked to stop where they are.
    pub stop: AtomicU32,
    pub next_block: AtomicU32,
    pub next_thread: AtomicU32,
    pub next_process: AtomicU32,
    pub next_holder: AtomicU32,
    /// A process of the program learnt that `SIGKILL` ended one of its children.
    pub killed: AtomicU32,
    /// The program may kill its own processes: what is lost is lost to it.
    pub kills: AtomicU32,
    /// Bytes of `failure`; 0 where nothing has failed, [`u32::MAX`] while they are written.
    pub failure_length: AtomicU32,
    /// Why the program cannot be observed any more.
    pub failure: [AtomicU8; FAILURE_BYTES],
    /// Bytes of the code area in use.
    pub code_used: AtomicU64,
    /// A region that the run begins (1) or ends (2): the next system call that returns says so in the
    /// stream.
    pub asked: AtomicU32,
    /// Instructions that all threads together have taken from the plan.
    pub planned: Line<AtomicU64>,
    /// Regions under way that the program began: a bit for its markers, and calls above it.
    pub regions: Line<AtomicU32>,
    /// Tickets taken. A ticket is taken by storing its slot of `order`; this follows at once, or
    /// when the next ticket is taken.
    pub head: Line<AtomicU64>,
    /// Futex: low half of `head` when it was last announced.
    pub announced: Line<AtomicU32>,
    /// Readers asleep on `announced`.
    pub sleeping_readers: AtomicU32,
    /// Free list: ABA tag in the high half, index + 1 of the first chunk in the low half.
    pub free: Line<AtomicU64>,
    /// Futex: bumped when chunks were freed while somebody waited.
    pub freed: Line<AtomicU32>,
    /// Producers asleep on `freed`.
    pub sleeping_producers: AtomicU32,
    pub places: [Place; MAX_PROCESSES],
    /// Processes that are becoming another program, which has not begun; 0 where there is none.
    pub executing: [AtomicU32; MAX_PROCESSES],
    /// Slot `ticket % CHUNKS`: ticket + 1 in the high 48 bits, chunk in the low 16.
    pub order: [AtomicU64; CHUNKS],
    pub meta: [ChunkMeta; CHUNKS],
    /// Offset + 1 of each block's description in the code area; 0 when there is none yet.
    pub code_index: [AtomicU64; MAX_BLOCKS],
}

/// Size of everything that is mapped.
pub const TOTAL_BYTES: usize = size_of::<Memory>() + CODE_BYTES;

/// Bits of an `order` slot that hold the chunk.
pub const ORDER_CHUNK_BITS: u32 = 16;

const _: () = assert!(CHUNKS <= 1 << ORDER_CHUNK_BITS);
const _: () = assert!(MAX_READERS <= u32::BITS);
