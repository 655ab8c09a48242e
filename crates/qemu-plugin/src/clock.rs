//! A clock that counts the instructions that the process has executed.
//!
//! Programs run some hundred times slower here than they would, and not always equally slow. What
//! the allocator under study does as time passes would differ from run to run, and the designs
//! that are compared have simulated times of their own, of which none is the program's. So the
//! allocator asks for [`PROGRAM_CLOCK`], which depends on nothing but the program. Its calls are
//! not reported: on a real machine reading a clock is no system call.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use contigua_program::ring::MAX_BLOCKS;
use contigua_program::syscall::{Architecture, PROGRAM_CLOCK};
use contigua_program::wire::{ACCESS, BlockId, Event, block_of, is_block};

use crate::guest;

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds for each instruction; 0 when there is no such clock.
static RATE: AtomicU64 = AtomicU64::new(0);
/// Instructions in published chunks.
static EXECUTED: AtomicU64 = AtomicU64::new(0);
/// Instructions of each block. Only what is written takes memory. QEMU translates at most 512
/// instructions at a time; those that a byte cannot count are rare enough to be cut.
static INSTRUCTIONS: [AtomicU8; MAX_BLOCKS] = [const { AtomicU8::new(0) }; MAX_BLOCKS];

/// Starts the clock, if there is to be one.
pub fn set_rate(nanoseconds: Option<u64>) {
    RATE.store(nanoseconds.unwrap_or(0), Ordering::Relaxed);
}

/// Returns true if there is such a clock.
pub fn is_on() -> bool {
    RATE.load(Ordering::Relaxed) != 0
}

/// A block was described.
pub fn learn(block: BlockId, instructions: usize) {
    if let Some(count) = INSTRUCTIONS.get(block.0 as usize) {
        count.store(instructions.min(255) as u8, Ordering::Relaxed);
    }
}

/// A vCPU has written these words.
pub fn advance(words: &[u64]) {
    let mut executed = 0;
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        at += 1;
        if word & ACCESS != 0 {
            continue;
        }
        if is_block(word) {
            let block = INSTRUCTIONS.get(block_of(word).0 as usize);
            executed += block.map_or(0, |count| u64::from(count.load(Ordering::Relaxed)));
        } else if let Ok((event, used)) = Event::decode(&words[at - 1..]) {
            at += used - 1;
            if let Event::Forward { instructions } = event {
                executed += instructions;
            }
        }
    }
    EXECUTED.fetch_add(executed, Ordering::Relaxed);
}

/// Answers a system call that has returned, if it was for this clock.
pub fn answers(architecture: Architecture, number: i64, arguments: &[u64; 6]) -> bool {
    let get_time = match architecture {
        Architecture::X86_64 => 228,
        Architecture::Aarch64 => 113,
    };
    let [clock, time, ..] = *arguments;
    if number != get_time || clock as i32 != PROGRAM_CLOCK || !is_on() {
        return false;
    }
    let executed = EXECUTED.load(Ordering::Relaxed);
    let now = executed.saturating_mul(RATE.load(Ordering::Relaxed));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(now / SECOND).to_le_bytes());
    bytes[8..].copy_from_slice(&(now % SECOND).to_le_bytes());
    guest::write(time, &bytes);
    true
}
