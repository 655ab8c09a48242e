//! The migration engine of the last level, as the kernel of a server in virtual time sees it: a
//! table of entries, each in use from Migrate to Clear.
//!
//! It moves what only hardware can move: blocks that [`Frames::next_relocation`] names. A block
//! of `2^n` frames takes as many entries, and waits until they are free. How long an entry is in
//! use comes from the simulated engine (`engine/migration/llc.rs`): every core has invalidated at its timer tick
//! at the latest, and a test compares the sum with what runs with caches measure
//! (`an_entry_of_an_ageing_server_is_in_use_as_long_as_one_of_the_engine`).

use contigua_cache::migration::MAX_ENTRIES;
use contigua_frames::{Moves, Relocation};
use contigua_paging::Memory;
use contigua_units::{Nanoseconds, Order};

#[cfg(doc)]
use contigua_frames::Frames;

/// From Migrate to Clear: LATR's tick of a millisecond (Kumar et al., ASPLOS 2018, section 4.1), by
/// which all cores have invalidated, and the copy, 64 lines at some 60 to 130 ns.
pub(crate) const LIFETIME: Nanoseconds = Nanoseconds::new(1_008_000);

/// A block on its way.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Flight {
    relocation: Relocation,
    ends: Nanoseconds,
}

/// Entries of the table that a block takes at a time.
fn entries(order: Order) -> usize {
    (order.frames() as usize).min(MAX_ENTRIES)
}

/// The engine.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
pub(crate) struct Mover {
    under_way: Vec<Flight>,
    /// A block that waits for free entries.
    waiting: Option<Relocation>,
    now: Nanoseconds,
}

impl Mover {
    /// Lets time pass: ends what is due, and begins what entries are free for.
    pub(crate) fn run_until(
        &mut self,
        now: Nanoseconds,
        memory: &mut Memory,
        moves: &mut dyn Moves,
    ) {
        if self.is_idle() {
            if !memory.is_clearing() {
                return;
            }
            // What is to be moved now was not known before.
            self.now = now;
        }
        loop {
            self.begin(memory, moves);
            let next = self.under_way.iter().enumerate();
            let Some((at, ends)) = next
                .map(|(at, flight)| (at, flight.ends))
                .min_by_key(|(_, ends)| *ends)
                .filter(|(_, ends)| *ends <= now)
            else {
                break;
            };
            let flight = self.under_way.remove(at);
            self.now = ends;
            memory.end_relocation(&flight.relocation, moves);
        }
        self.now = now;
    }

    /// Begins as many moves as there are entries for.
    fn begin(&mut self, memory: &mut Memory, moves: &mut dyn Moves) {
        while let Some(relocation) = self
            .waiting
            .take()
            .or_else(|| memory.next_relocation(moves))
        {
            let used: usize = self
                .under_way
                .iter()
                .map(|f| entries(f.relocation.order))
                .sum();
            if used + entries(relocation.order) > MAX_ENTRIES {
                self.waiting = Some(relocation);
                break;
            }
            let rounds = u64::from(relocation.order.frames()).div_ceil(MAX_ENTRIES as u64);
            self.under_way.push(Flight {
                relocation,
                ends: Nanoseconds::new(self.now.get() + rounds * LIFETIME.get()),
            });
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_none()
    }

    /// Ends everything now, and lets what was being emptied be.
    pub(crate) fn finish(&mut self, memory: &mut Memory, moves: &mut dyn Moves) {
        memory.end_clearing();
        if let Some(relocation) = self.waiting.take() {
            memory.abandon_relocation(&relocation, moves);
        }
        for flight in self.under_way.drain(..) {
            memory.end_relocation(&flight.relocation, moves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ageing::fresh_memory;
    use contigua_frames::{BLOCK_FRAMES, Config, FrameClass, Group, Placement, Request, policies};
    use contigua_units::{Bytes, Frame};

    /// Memory whose unmovable region ends in a pageblock of so many network buffers of an order.
    fn memory(count: u32, order: Order) -> Memory {
        let placement = Placement::Contiguitas(policies::contiguitas::Config {
            unmovable_min: Bytes::new(16 << 20),
            hardware_migration: true,
            ..policies::contiguitas::Config::default()
        });
        let size = Bytes::new(64 << 20);
        let mut memory = fresh_memory(size, &Config::default(), &placement).unwrap();
        memory.expand(1, &mut ());
        let first = memory.border().unwrap().get() - BLOCK_FRAMES;
        for number in 0..count {
            let request = Request {
                group: Some(Group(0)),
                ..Request::new(order, FrameClass::NetworkBuffer)
            };
            let frame = Frame::new(first + number * order.frames());
            memory.allocate_block_at(frame, &request).unwrap();
        }
        memory
    }

    /// Milliseconds, in steps of one, until the region has shrunk.
    fn time_to_shrink(memory: &mut Memory) -> u64 {
        let border = memory.border();
        assert_eq!(memory.shrink(1, &mut ()), 0);
        let mut mover = Mover::default();
        for tenth in 0..1_000_000 {
            mover.run_until(Nanoseconds::new(tenth * 100_000), memory, &mut ());
            if memory.border() != border {
                return tenth / 10;
            }
        }
        panic!("it never shrinks");
    }

    #[test]
    fn a_table_of_sixteen_entries_moves_sixteen_pages_in_a_lifetime() {
        for (pages, rounds) in [(1, 1), (16, 1), (17, 2), (160, 10), (512, 32)] {
            let mut memory = memory(pages, Order::BASE);
            assert_eq!(time_to_shrink(&mut memory), rounds, "{pages} pages");
            assert_eq!(memory.counters().frames_moved_by_hardware, u64::from(pages));
        }
    }

    #[test]
    fn a_large_block_waits_for_as_many_free_entries() {
        // Two of eight frames fit at a time; one of 64 takes the table four times.
        assert_eq!(time_to_shrink(&mut memory(8, Order::new(3))), 4);
        assert_eq!(time_to_shrink(&mut memory(1, Order::new(6))), 4);
    }

    #[test]
    fn mover_is_independent_of_the_kernels_step() {
        let moved = |step: u64| {
            let mut memory = memory(500, Order::BASE);
            memory.shrink(1, &mut ());
            let mut mover = Mover::default();
            for time in (0..=20_000_000).step_by(step as usize) {
                mover.run_until(Nanoseconds::new(time), &mut memory, &mut ());
            }
            memory.counters().frames_moved_by_hardware
        };
        assert_eq!(moved(10_000_000), moved(500_000));
        assert_eq!(moved(10_000_000), 19 * 16);
    }

    #[test]
    fn migrations_under_way_can_be_ended_at_once() {
        let mut memory = memory(40, Order::BASE);
        let border = memory.border();
        memory.shrink(1, &mut ());
        let mut mover = Mover::default();
        mover.run_until(Nanoseconds::new(1), &mut memory, &mut ());
        mover.finish(&mut memory, &mut ());
        assert_eq!(memory.validate(), Ok(()));
        assert!(!memory.is_clearing() && mover.is_idle());
        assert_eq!(memory.border(), border);
        assert_eq!(memory.counters().frames_moved_by_hardware, 16);
    }
}
