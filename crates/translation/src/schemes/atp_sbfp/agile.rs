//! Which pages to prefetch: three prefetchers, and what chooses one of them (ATP).

use std::collections::VecDeque;

use contigua_cache::Sets;
use contigua_state::{Plain, State};
use contigua_translation::{Error, Request, Tables};
use contigua_units::PAGE_BYTES;

use super::{Config, key, leaf_of};

/// Bits of the counters that switch prefetching on, and that choose: H2P or not, MASP or STP.
pub(super) const COUNTER_BITS: [u32; 3] = [8, 6, 2];
const STRIDE_WAYS: u32 = 4;
/// Bits of a block's number in that of an instruction begin here.
const BLOCK_SHIFT: u32 = 9;

/// Last page and stride of an instruction.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Stride {
    page: u64,
    stride: i64,
}

/// The prefetchers, in this order: H2P, MASP, STP.
#[derive(State)]
pub(super) struct Agile {
    /// Pages that each prefetcher would have fetched, oldest first.
    pub(super) fake: Vec<VecDeque<u64>>,
    strides: Sets<Stride>,
    /// Pages of the last two misses, the last one first.
    last: (u64, u64),
    /// Counters that switch prefetching on, and choose.
    chooses: Vec<u32>,
}

/// Pages from one to another.
pub(super) fn apart(to: u64, from: u64) -> i64 {
    to.cast_signed() - from.cast_signed()
}

impl Agile {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            fake: vec![VecDeque::with_capacity(config.fake_queue as usize); 3],
            strides: Sets::new("atp-sbfp.strides", config.strides.into(), STRIDE_WAYS)?,
            last: (0, 0),
            // All begin in their middles, which is on.
            chooses: COUNTER_BITS.map(|bits| 1 << (bits - 1)).to_vec(),
        })
    }

    /// Learns which prefetchers would have had the page of a miss, and chooses one, or none.
    pub(super) fn choose(&mut self, page: u64) -> Option<usize> {
        let [h2p, masp, stp] = [0, 1, 2].map(|which: usize| self.fake[which].contains(&page));
        self.count(0, h2p || masp || stp);
        if h2p != (masp || stp) {
            self.count(1, h2p);
        }
        if masp != stp {
            self.count(2, masp);
        }
        let is_high = |which: usize| self.chooses[which] >> (COUNTER_BITS[which] - 1) > 0;
        match (is_high(0), is_high(1), is_high(2)) {
            (false, ..) => None,
            (true, true, _) => Some(0),
            (true, false, true) => Some(1),
            (true, false, false) => Some(2),
        }
    }

    /// Moves a counter up or down.
    fn count(&mut self, which: usize, up: bool) {
        let counter = &mut self.chooses[which];
        *counter = if up {
            (*counter + 1).min((1 << COUNTER_BITS[which]) - 1)
        } else {
            counter.saturating_sub(1)
        };
    }

    /// Pages that each prefetcher would fetch, of those that may be prefetched.
    pub(super) fn candidates(
        &mut self,
        request: &Request,
        tables: &Tables<'_>,
    ) -> [[Option<u64>; 4]; 3] {
        let number = request.address.page().get();
        let (one, two) = self.last;
        self.last = (number, one);
        let h2p = [Some(apart(number, one)), Some(apart(one, two)), None, None];
        let masp = self.strides_of(request);
        let stp = [1, 2, -1, -2].map(Some);
        let last = 1 << (tables.table.levels().address_bits() - PAGE_BYTES.trailing_zeros());
        [h2p, masp, stp].map(|distances| {
            distances.map(|distance| {
                let other = number.checked_add_signed(distance.filter(|&far| far != 0)?)?;
                (other < last && leaf_of(other, tables).is_some()).then_some(other)
            })
        })
    }

    /// The stride that an instruction had, and the one that it has now.
    fn strides_of(&mut self, request: &Request) -> [Option<i64>; 4] {
        let instruction = request.instruction;
        let page = request.address.page().get();
        let (set, key) = (
            instruction ^ instruction >> BLOCK_SHIFT,
            key(request.space, instruction),
        );
        if let Some(known) = self.strides.lookup(set, key) {
            let stride = apart(page, known.page);
            let before = std::mem::replace(known, Stride { page, stride }).stride;
            return [Some(before), Some(stride), None, None];
        }
        self.strides.insert(set, key, Stride { page, stride: 0 });
        [None; 4]
    }
}
