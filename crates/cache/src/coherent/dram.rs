//! DRAM: channels that transfer one line at a time, banks that keep one row open.
//!
//! Cores run ahead of each other by a little, and an out-of-order core issues its requests out of
//! order, so requests do not arrive in the order of their times. A channel's bandwidth is therefore
//! kept by *epochs* of time: a line is transferred in the first epoch, from its request's time on,
//! that has room left. What order requests are handed over in does not matter then. Whether a row
//! is open does depend on the order of arrival.
//!
//! A line waits little for a channel that is not full, yet reads of busy memory take longer: the
//! controller orders them by rows, banks and directions, and refreshes. As the Mess simulator does
//! (Esmaili-Dokht et al., MICRO 2024), that is taken from measurements: `loaded` says what reads
//! take longer by the share of its bandwidth that the channel gave just before, or, if that is
//! more, in the *era* before: a core that runs ahead of others has not met their requests.

use contigua_units::{Bytes, Cycles, LINE_BYTES, Megahertz, Nanoseconds};
use serde::{Deserialize, Serialize};

/// Memory behind the last level. Times are Micron's for DDR4-2666 (MT40A datasheet: tRCD, tRP of
/// 14.16 ns) and JEDEC's for the bandwidth of a channel, unless a machine says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DramConfig {
    /// Channels; lines are spread over them.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub channels: u32,
    /// Banks of a channel, all ranks together.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4096)))]
    pub banks: u32,
    /// Bytes of a row.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "64B", "x-maximum" = "1MiB")))]
    pub row: Bytes,
    /// Opening a row (tRCD). `memory_latency` has it and `precharge`: it is measured by random
    /// reads, which find another row open.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub activate: Nanoseconds,
    /// Closing another row first (tRP).
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub precharge: Nanoseconds,
    /// Megabytes (10^6 bytes) that a channel transfers in a second.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4_294_967_295u32)))]
    pub channel_megabytes_per_second: u32,
    /// Additional latency of reads of busy memory, in the order of their shares: linear between two
    /// of them and below the first, and constant beyond the last. Empty: as long as ever.
    #[serde(default)]
    pub loaded: Vec<Loaded>,
}

/// Additional latency of a read of busy memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Loaded {
    /// Share of its bandwidth that memory gives, in percent.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub percent: u8,
    /// Beyond `memory_latency`.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub latency: Nanoseconds,
}

/// Counters of DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, contigua_state::Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DramCounters {
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Accesses to the row that was open.
    pub row_hits: u64,
    /// Accesses to a bank with no row open.
    pub row_misses: u64,
    /// Accesses for which another row had to be closed.
    pub row_conflicts: u64,
    /// Cycles that reads waited for their channel or took longer because it was busy, all together.
    pub queue_cycles: Cycles,
}

/// log2 of the cycles of an epoch.
const EPOCH_SHIFT: u32 = 8;
/// Epochs that are kept: requests older than that find free channels.
const EPOCHS: usize = 256;
/// Epochs whose lines say how busy a channel is, before that of a request.
const RECENT: u64 = 4;
/// log2 of the cycles of an era: cores that woke each other are up to about as far apart.
const ERA_SHIFT: u32 = 17;
/// Eras that are kept.
const ERAS: usize = 4;
/// Steps of a channel's bandwidth for which the latency is kept.
const SHARES: u32 = 64;
const NO_ROW: u64 = u64::MAX;

#[derive(Clone, Debug, contigua_state::State)]
struct Channel {
    /// By epoch modulo [`EPOCHS`]: which epoch, and 1/256 lines transferred in it.
    #[state(fixed)]
    epochs: Box<[(u64, u32)]>,
    /// By era modulo [`ERAS`]: which era, and 1/256 cycles that its lines took.
    eras: [(u64, u64); ERAS],
    #[state(fixed)]
    open_rows: Box<[u64]>,
}

impl Channel {
    /// The share of its bandwidth that was given just before, in [`SHARES`].
    fn share(&self, time: Cycles) -> usize {
        let epoch = time.get() >> EPOCH_SHIFT;
        let recent = epoch.saturating_sub(RECENT)..epoch;
        let given = recent.map(|epoch| match self.epochs[epoch as usize % EPOCHS] {
            (of, lines) if of == epoch => lines,
            _ => 0,
        });
        let recent = given.sum::<u32>() / (CAPACITY / SHARES) / RECENT as u32;
        let before = (time.get() >> ERA_SHIFT).wrapping_sub(1);
        let era = match self.eras[before as usize % ERAS] {
            (of, lines) if of == before => (lines * u64::from(SHARES)) >> (8 + ERA_SHIFT),
            _ => 0,
        };
        u64::from(recent).max(era).min(SHARES.into()) as usize
    }

    /// A line is wanted that takes the channel this long, in 1/256 cycles.
    fn count(&mut self, time: Cycles, cost: u32) {
        let era = time.get() >> ERA_SHIFT;
        let (of, lines) = &mut self.eras[era as usize % ERAS];
        // A request from eras ago has nothing to add to what is kept since.
        if *of == u64::MAX || *of < era {
            (*of, *lines) = (era, 0);
        }
        *lines += u64::from(cost) * u64::from(*of == era);
    }

    /// Takes the channel for a line, from the first epoch on that has room; how long the line
    /// waits. A line may begin in one epoch and end in the next.
    fn take(&mut self, time: Cycles, cost: u32) -> Cycles {
        let first = time.get() >> EPOCH_SHIFT;
        let (mut start, mut left) = (None, cost);
        // Farther ahead than the kept epochs reach, nothing is known to be in the way.
        for epoch in first..first + EPOCHS as u64 {
            let slot = &mut self.epochs[epoch as usize % EPOCHS];
            if slot.0 == u64::MAX || slot.0 < epoch {
                *slot = (epoch, 0);
            }
            if slot.0 > epoch {
                // The request is from long ago, as seen from what this channel has done since.
                return Cycles::ZERO;
            }
            let part = (CAPACITY - slot.1).min(left);
            if part > 0 {
                start.get_or_insert((epoch << EPOCH_SHIFT) + u64::from(slot.1 >> 8));
                slot.1 += part;
                left -= part;
            }
            if left == 0 {
                break;
            }
        }
        let start = start.unwrap_or_default();
        Cycles::new(start.saturating_sub(time.get()))
    }
}

#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Dram {
    #[state(fixed)]
    channels: Vec<Channel>,
    #[state(skip)]
    banks: u64,
    #[state(skip)]
    lines_of_row: u64,
    /// Cycles of an access to a bank with another row open, with none, and with this one.
    #[state(skip)]
    other: Cycles,
    #[state(skip)]
    closed: Cycles,
    #[state(skip)]
    open: Cycles,
    /// Share of an epoch that a line takes, in the fixed-point unit of `CAPACITY`.
    #[state(skip)]
    line_cost: u32,
    /// Additional latency of reads, by [`Channel::share`]; empty if there is none.
    #[state(skip)]
    loaded: Box<[Cycles]>,
    counters: DramCounters,
}

/// Capacity of an epoch: its cycles, in 1/256.
const CAPACITY: u32 = 256 << EPOCH_SHIFT;

impl Dram {
    pub(super) fn new(config: &DramConfig, latency: Nanoseconds, clock: Megahertz) -> Self {
        let channels = config.channels.max(1);
        // Cycles of a line on its channel, in 1/256: bytes / (MB/s) are microseconds.
        let cost = LINE_BYTES * u64::from(clock.get()) * 256
            / u64::from(config.channel_megabytes_per_second.max(1));
        let less = |cycles: Cycles, part: Nanoseconds| {
            Cycles::new(cycles.get().saturating_sub(part.at(clock).get()))
        };
        let latency = latency.at(clock);
        let closed = less(latency, config.precharge);
        Self {
            channels: (0..channels)
                .map(|_| Channel {
                    epochs: vec![(u64::MAX, 0); EPOCHS].into(),
                    eras: [(u64::MAX, 0); ERAS],
                    open_rows: vec![NO_ROW; config.banks.max(1) as usize].into(),
                })
                .collect(),
            banks: u64::from(config.banks.max(1)),
            lines_of_row: (config.row.get() / LINE_BYTES).max(1),
            other: latency,
            closed,
            open: less(closed, config.activate),
            line_cost: u32::try_from(cost).unwrap_or(CAPACITY).clamp(1, CAPACITY),
            loaded: by_share(&config.loaded, clock),
            counters: DramCounters::default(),
        }
    }

    /// Reads a line at a time; how long until it is at the core.
    pub(super) fn read(&mut self, line: u64, time: Cycles) -> Cycles {
        self.counters.reads += 1;
        let channel = self.channel_of(line);
        let busy = if self.loaded.is_empty() {
            Cycles::ZERO
        } else {
            self.loaded[self.channels[channel].share(time)]
        };
        let (row, waited) = self.transfer(line, channel, time);
        self.counters.queue_cycles += waited + busy;
        waited
            + busy
            + match row {
                Row::Open => self.open,
                Row::Closed => self.closed,
                Row::Other => self.other,
            }
    }

    /// Writes a line: nobody waits for it, but it takes its turn on the channel.
    pub(super) fn write(&mut self, line: u64, time: Cycles) {
        self.counters.writes += 1;
        self.transfer(line, self.channel_of(line), time);
    }

    /// Lines of a page lie on all channels; the fold keeps strides from meeting on one.
    fn channel_of(&self, line: u64) -> usize {
        ((line ^ line >> 7 ^ line >> 13) % self.channels.len() as u64) as usize
    }

    fn transfer(&mut self, line: u64, channel: usize, time: Cycles) -> (Row, Cycles) {
        let count = self.channels.len() as u64;
        let row_number = line / count / self.lines_of_row;
        let bank = (row_number ^ (row_number / self.banks)) % self.banks;
        let channel = &mut self.channels[channel];
        let open = &mut channel.open_rows[bank as usize];
        let row = match *open {
            NO_ROW => Row::Closed,
            open if open == row_number => Row::Open,
            _ => Row::Other,
        };
        *open = row_number;
        match row {
            Row::Open => self.counters.row_hits += 1,
            Row::Closed => self.counters.row_misses += 1,
            Row::Other => self.counters.row_conflicts += 1,
        }
        channel.count(time, self.line_cost);
        (row, channel.take(time, self.line_cost))
    }

    pub(super) fn counters(&self) -> DramCounters {
        self.counters
    }

    pub(super) fn reset_counters(&mut self) {
        self.counters = DramCounters::default();
    }
}

/// Additional latency of reads, by the share of the bandwidth in [`SHARES`].
fn by_share(loaded: &[Loaded], clock: Megahertz) -> Box<[Cycles]> {
    if loaded.is_empty() {
        return Box::default();
    }
    let at = |share: u32| {
        let share = f64::from(share) / f64::from(SHARES);
        let (mut below, mut latency) = (0.0, 0.0);
        for point in loaded {
            let above = f64::from(point.percent) / 100.0;
            let longer = point.latency.at(clock).get() as f64;
            if share < above {
                let part = (share - below) / (above - below);
                return latency + part * (longer - latency);
            }
            (below, latency) = (above, longer);
        }
        latency
    };
    (0..=SHARES)
        .map(|share| Cycles::new(at(share) as u64))
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    Open,
    Closed,
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dram(channels: u32) -> Dram {
        let config = DramConfig {
            channels,
            banks: 16,
            row: Bytes::new(8192),
            activate: Nanoseconds::new(14),
            precharge: Nanoseconds::new(14),
            channel_megabytes_per_second: 16_000,
            loaded: Vec::new(),
        };
        Dram::new(&config, Nanoseconds::new(80), Megahertz::new(2000))
    }

    #[test]
    fn an_open_row_is_faster_and_another_one_slower_than_none() {
        let mut dram = dram(1);
        assert_eq!(dram.read(0, Cycles::ZERO), Cycles::new(132));
        assert_eq!(dram.read(1, Cycles::new(8)), Cycles::new(104));
        // The same bank: 16 rows of 128 lines on, where the row number's fold leaves the bank.
        let bank = |line: u64| {
            let row = line / 128;
            (row ^ (row / 16)) % 16
        };
        let other = (1..1000).map(|row| row * 128).find(|&line| bank(line) == 0);
        assert_eq!(dram.read(other.unwrap(), Cycles::new(16)), Cycles::new(160));
        let counters = dram.counters();
        let rows = (
            counters.row_hits,
            counters.row_misses,
            counters.row_conflicts,
        );
        assert_eq!(rows, (1, 1, 1));
    }

    #[test]
    fn a_channel_transfers_what_it_is_configured_to() {
        // 16 GB/s at 2 GHz are 8 bytes a cycle: a line in 8 cycles, 32 lines in an epoch.
        for (channels, cycles) in [(1, 10_000 * 8), (4, 10_000 * 2)] {
            let mut dram = dram(channels);
            let waited = (0..10_000).map(|line| {
                dram.read(line, Cycles::ZERO);
                dram.counters().queue_cycles.get()
            });
            let mut before = 0;
            let longest = waited
                .map(|sum| {
                    let one = sum - before;
                    before = sum;
                    one
                })
                .max();
            let longest = longest.unwrap();
            let slack = u64::from(CAPACITY >> 8) * 4;
            assert!(
                longest + slack >= cycles.min((EPOCHS as u64) << EPOCH_SHIFT),
                "{longest}"
            );
            assert!(longest <= cycles + slack, "{longest}");
        }
    }

    #[test]
    fn reads_of_busy_memory_take_longer_by_the_share_that_it_gives() {
        let point = |percent, ns| Loaded {
            percent,
            latency: Nanoseconds::new(ns),
        };
        let loaded = by_share(&[point(25, 10), point(50, 50)], Megahertz::new(2000));
        let cycles = [0, 8, 16, 24, 32, 64].map(|share| loaded[share].get());
        assert_eq!(cycles, [0, 10, 20, 60, 100, 100]);

        // A line takes 8 cycles: one in 16 is half of what a channel has, one in 32 a quarter.
        for (every, longer) in [(16, 100), (32, 20), (1 << 20, 0)] {
            let mut busy = dram(1);
            let mut idle = dram(1);
            busy.loaded = loaded.clone();
            for line in 0..1000 {
                let time = Cycles::new(line * every);
                let took = [&mut busy, &mut idle].map(|dram| dram.read(line, time).get());
                if line * every > 4096 {
                    assert_eq!(took[0] - took[1], longer, "one in {every} cycles");
                }
            }
        }
    }

    #[test]
    fn a_core_ahead_of_others_reads_memory_that_is_as_busy_as_before() {
        let mut dram = dram(1);
        dram.loaded = by_share(
            &[Loaded {
                percent: 50,
                latency: Nanoseconds::new(50),
            }],
            Megahertz::new(2000),
        );
        let era = 1 << ERA_SHIFT;
        for time in (0..era).step_by(16) {
            dram.read(time, Cycles::new(time));
        }
        // Once around all eras that are kept, what is known is of another one.
        for (ahead, longer) in [(era / 2, 100), (ERAS as u64 * era + era / 2, 0)] {
            let before = dram.counters().queue_cycles;
            dram.read(1 << 20, Cycles::new(era + ahead));
            let waited = dram.counters().queue_cycles.get() - before.get();
            assert_eq!(waited, longer);
        }
    }

    #[test]
    fn the_order_in_which_requests_are_handed_over_does_not_matter_for_bandwidth() {
        let (mut forwards, mut backwards) = (dram(2), dram(2));
        for line in 0..2000 {
            forwards.read(line, Cycles::new(line));
            backwards.read(1999 - line, Cycles::new(1999 - line));
        }
        let (a, b) = (forwards.counters(), backwards.counters());
        let (a, b) = (a.queue_cycles.get() as f64, b.queue_cycles.get() as f64);
        assert!(a > 0.0 && (a / b - 1.0).abs() < 0.1, "{a} {b}");
    }
}
