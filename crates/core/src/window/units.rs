//! Execution units, and other things that a limited number of instructions use at a time.

use super::timeline::Timeline;
use crate::config::{KINDS, PORTS};

/// Distance beyond dispatch up to which a start is still counted against a unit, in starts: a
/// core's window is shorter unless it waits for several misses in a row, and then units are not
/// what it waits for.
pub(super) const HORIZON: u64 = (WORDS as u64 - 1) * u64::BITS as u64;

/// Words of 64 starts. One more than [`HORIZON`] needs, so that no two that matter share a word.
const WORDS: usize = 32;

/// Starts of operations in 64 consecutive cycles (intervals, for a divider).
#[derive(Clone, Debug, contigua_state::Plain)]
struct Word {
    /// Number of the cycles divided by 64.
    number: u64,
    /// Cycles in which no further operation can start.
    full: u64,
    /// Operations that start, by cycle.
    starts: [u8; u64::BITS as usize],
}

impl Word {
    /// One of `count` units starts an operation.
    #[inline]
    fn start(&mut self, bit: usize, count: u8) {
        let starts = &mut self.starts[bit];
        *starts += 1;
        self.full |= u64::from(*starts == count) << bit;
    }
}

/// Units of one kind, each of which starts an operation an interval: dividers, and the way of lines into the L1 data
/// cache.
///
/// Instructions come in program order but start in the order in which their operands arrive, so
/// that a time at which each unit becomes free would not do: a multiplication that waits for memory
/// would hold up a later one that does not. Instead the starts of each cycle are counted, as
/// zsim does (Sanchez and Kozyrakis, ISCA 2013, section 3.1).
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Units {
    #[state(skip)]
    count: u8,
    /// Cycles between two starts of a unit. Time is cut into intervals of this length, in each of
    /// which a unit starts once.
    #[state(skip)]
    interval: u64,
    #[state(fixed)]
    words: Box<[Word; WORDS]>,
}

impl Units {
    /// Units that start an operation every `interval` cycles.
    pub(super) fn new(count: u32, interval: u32) -> Self {
        let empty = Word {
            number: 0,
            full: 0,
            starts: [0; u64::BITS as usize],
        };
        Self {
            count: count as u8,
            interval: interval.into(),
            words: Box::new(std::array::from_fn(|_| empty.clone())),
        }
    }

    /// Starts an operation at `ready` or as soon as a unit is free, and says when that is.
    /// `dispatch`, which never decreases, is at most `ready`.
    #[inline]
    pub(super) fn start(&mut self, ready: u64, dispatch: u64) -> u64 {
        if self.interval == 1 {
            self.find(ready, dispatch)
        } else {
            let found = self.find(ready / self.interval, dispatch / self.interval);
            ready.max(found * self.interval)
        }
    }

    #[inline]
    fn find(&mut self, ready: u64, dispatch: u64) -> u64 {
        const BITS: u64 = u64::BITS as u64;
        if ready >= dispatch + HORIZON {
            return ready;
        }
        let mut number = ready / BITS;
        let bit = (ready % BITS) as usize;
        let word = &mut self.words[number as usize % WORDS];
        // Most often. A branch, so that the host need not wait for the word to know the result.
        if word.number == number && word.full >> bit & 1 == 0 {
            word.start(bit, self.count);
            return ready;
        }
        let mut wanted = u64::MAX << bit;
        loop {
            let word = &mut self.words[number as usize % WORDS];
            if word.number != number {
                word.number = number;
                word.full = 0;
                word.starts = [0; BITS as usize];
            }
            let free = !word.full & wanted;
            if free != 0 {
                let bit = free.trailing_zeros();
                let found = number * BITS + u64::from(bit);
                if found >= dispatch + HORIZON {
                    return found;
                }
                word.start(bit as usize, self.count);
                return found;
            }
            number += 1;
            wanted = u64::MAX;
            if number * BITS >= dispatch + HORIZON {
                return number * BITS;
            }
        }
    }
}

/// Cycles of which a word of taken ports tells.
const CYCLES: u64 = (u64::BITS as usize / PORTS) as u64;
/// Such words: one more than [`HORIZON`] needs, and a power of two.
const PORT_WORDS: usize = 512;

/// Ports that are taken in consecutive cycles.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Taken {
    /// Number of the cycles divided by [`CYCLES`].
    number: u64,
    /// A bit for each port of the first cycle, then of the second, ...
    ports: u64,
}

/// Ports that kinds of operations share. As for [`Units`], starts are counted by cycle.
///
/// Processors choose the port when an operation dispatches, by how many wait for each; here it is
/// the first that is free when the operation starts.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct SharedPorts {
    /// Those of each kind, in every cycle of a word.
    #[state(skip)]
    masks: [u64; KINDS],
    #[state(fixed)]
    words: Box<[Taken; PORT_WORDS]>,
}

impl SharedPorts {
    /// Ports of each kind, as bits.
    pub(super) fn new(kinds: &[u16]) -> Self {
        let mut masks = [0; KINDS];
        for (mask, &kind) in masks.iter_mut().zip(kinds) {
            for cycle in 0..CYCLES {
                *mask |= u64::from(kind) << (cycle * PORTS as u64);
            }
        }
        Self {
            masks,
            words: Box::new([Taken::default(); PORT_WORDS]),
        }
    }

    /// Starts an operation of a kind at `ready` or as soon as one of its ports is free, and says
    /// when that is. `dispatch`, which never decreases, is at most `ready`.
    #[inline]
    pub(super) fn start(&mut self, kind: usize, ready: u64, dispatch: u64) -> u64 {
        if ready >= dispatch + HORIZON {
            return ready;
        }
        let mask = self.masks[kind];
        let mut number = ready / CYCLES;
        // Not those of cycles before.
        let mut wanted = mask << (ready % CYCLES * PORTS as u64);
        loop {
            let word = &mut self.words[number as usize % PORT_WORDS];
            if word.number != number {
                *word = Taken { number, ports: 0 };
            }
            let free = wanted & !word.ports;
            if free != 0 {
                let bit = free.trailing_zeros();
                let found = number * CYCLES + u64::from(bit) / PORTS as u64;
                if found < dispatch + HORIZON {
                    word.ports |= 1 << bit;
                }
                return found;
            }
            number += 1;
            wanted = mask;
            if number * CYCLES >= dispatch + HORIZON {
                return number * CYCLES;
            }
        }
    }
}

/// Things that are held for long: line-fill buffers, page walkers.
///
/// A time at which each becomes free would not do, as for [`Units`]: a miss whose address comes from memory
/// would hold up later instructions' misses, which do not wait.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Holders {
    #[state(fixed)]
    busy: Box<[Timeline]>,
    /// From the time that one is free until who waited for it has it.
    #[state(skip)]
    handover: u64,
}

impl Holders {
    /// All are free from time 0.
    pub(super) fn new(count: u32, handover: u32) -> Self {
        Self {
            busy: vec![Timeline::default(); count as usize].into(),
            handover: handover.into(),
        }
    }

    /// When one is to be held, from `ready` on, if not for long.
    pub(super) fn when(&self, ready: u64) -> u64 {
        self.first(ready, 1).1
    }

    /// Holds one for `length` cycles from `ready` on, or in the first pause of one that is long enough.
    /// Returns from when on.
    pub(super) fn hold(&mut self, ready: u64, length: u64) -> u64 {
        let (first, start) = self.first(ready, length);
        self.busy[first].enter(start, start + length, self.handover);
        start
    }

    /// The one that can be held first, and when.
    #[inline]
    fn first(&self, ready: u64, length: u64) -> (usize, u64) {
        let (mut first, mut start) = (0, u64::MAX);
        for (number, busy) in self.busy.iter().enumerate() {
            let free = busy.free(ready, length, self.handover);
            if free < start {
                (first, start) = (number, free);
            }
            if free == ready {
                break;
            }
        }
        (first, start)
    }
}

/// Instructions of which a limited number are in flight, in program order.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Ring {
    #[state(fixed)]
    times: Box<[u64]>,
    #[state(skip)]
    capacity: u64,
    /// Number of entries ever pushed.
    count: u64,
}

impl Ring {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            // A place more than the ring holds, for `push_some`.
            times: vec![0; (capacity + 1).next_power_of_two() as usize].into(),
            capacity: capacity.into(),
            count: 0,
        }
    }

    /// When the next one finds a place: the time of the one that is `capacity` before it.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        // The first ones wrap to the end of the ring, where zeros are.
        let place = self.count.wrapping_sub(self.capacity);
        self.times[place as usize & (self.times.len() - 1)]
    }

    /// One more, which leaves its place at `time`.
    #[inline]
    pub(super) fn push(&mut self, time: u64) {
        let place = self.count as usize & (self.times.len() - 1);
        self.times[place] = time;
        self.count += 1;
    }

    /// `more` of them, 0 or 1, which leave their places at `time`.
    #[inline]
    pub(super) fn push_some(&mut self, more: u64, time: u64) {
        // Without a branch: the place of the next one is nobody's.
        let place = self.count as usize & (self.times.len() - 1);
        self.times[place] = time;
        self.count += more;
    }

    /// Number of entries ever pushed.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn starts_beyond_the_horizon_are_not_counted() {
        let mut units = Units::new(1, 1);
        assert_eq!(units.start(HORIZON - 1, 0), HORIZON - 1);
        // The last cycle that counts is taken, and the one after it does not count.
        assert_eq!(units.start(HORIZON - 1, 0), HORIZON);
        assert_eq!(units.start(HORIZON, 0), HORIZON);
        assert_eq!(units.start(HORIZON, 0), HORIZON);
    }

    proptest! {
        #[test]
        fn shared_ports_agree_with_a_list_of_starts(
            kinds in proptest::collection::vec(1..64_u16, 5),
            requests in proptest::collection::vec((0..5_usize, 0..200_u64, 0..60_u64), 1..400)
        ) {
            let mut ports = SharedPorts::new(&kinds);
            let mut taken: HashMap<u64, u16> = HashMap::new();
            let mut dispatch = 0;
            for (kind, step, wait) in requests {
                dispatch += step.saturating_sub(190);
                let mut at = dispatch + wait / 3;
                let ready = at;
                let port = loop {
                    let free = kinds[kind] & !taken.get(&at).copied().unwrap_or(0);
                    if free != 0 {
                        break free & free.wrapping_neg();
                    }
                    at += 1;
                };
                *taken.entry(at).or_default() |= port;
                prop_assert_eq!(ports.start(kind, ready, dispatch), at);
            }
        }

        #[test]
        fn units_agree_with_a_list_of_starts(
            count in 1..4_u32, interval in 1..5_u32,
            requests in proptest::collection::vec((0..200_u64, 0..1500_u64), 1..400)
        ) {
            let mut units = Units::new(count, interval);
            let mut starts: HashMap<u64, u32> = HashMap::new();
            let mut dispatch = 0;
            for (step, wait) in requests {
                // Dispatch stands still at times, so that units are scarce.
                dispatch += step.saturating_sub(150);
                let ready = dispatch + wait / 3;
                let interval = u64::from(interval);
                let mut at = ready / interval;
                while starts.get(&at) == Some(&count) {
                    at += 1;
                }
                *starts.entry(at).or_default() += 1;
                prop_assert_eq!(units.start(ready, dispatch), ready.max(at * interval));
            }
        }

        #[test]
        fn a_ring_tells_the_time_of_the_one_so_many_before(
            capacity in 1..20_u32, times in proptest::collection::vec(1..1000_u64, 0..100)
        ) {
            let mut ring = Ring::new(capacity);
            for (count, time) in times.iter().enumerate() {
                let before = count.checked_sub(capacity as usize);
                prop_assert_eq!(ring.free(), before.map_or(0, |before| times[before]));
                ring.push(*time);
            }
        }
    }
}
