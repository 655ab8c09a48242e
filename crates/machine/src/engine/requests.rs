//! Requests to a server: from the call that receives on a connection that the server accepted to the
//! end of the call that first sends on it afterwards.
//!
//! Calls are the only events at which anything is noted, so the inner loop knows nothing of requests.
//! Data that comes in several calls before the server sends is one request; so are pipelined requests that
//! are answered together.

use std::collections::HashMap;

use contigua_program::syscall::{Call, DescriptorKind};
use contigua_program::wire::{ProcessId, ThreadId};
use contigua_units::Cycles;

use super::{Engine, Phase};
use crate::config::Detail;
use crate::report::{LatencyReport, RequestsReport};

/// Requests of the region of interest.
#[derive(Default, contigua_state::Plain)]
pub(crate) struct Requests {
    /// When those were received that are not answered yet, by process and descriptor.
    open: HashMap<(u32, u32), Cycles>,
    answered: u64,
    latencies: Histogram,
}

/// Latencies by size: each octave has [`Histogram::PARTS`] classes, so that a value is known to 0.4 %.
#[derive(Default, contigua_state::Plain)]
struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    most: u64,
}

impl Histogram {
    const PARTS: u64 = 1 << Self::PART_BITS;
    const PART_BITS: u32 = 7;

    fn add(&mut self, value: u64) {
        let class = Self::class(value);
        if class >= self.counts.len() {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.most = self.most.max(value);
    }

    fn class(value: u64) -> usize {
        let shift = (value | Self::PARTS).ilog2() - Self::PART_BITS;
        (u64::from(shift) * Self::PARTS + (value >> shift)) as usize
    }

    /// The middle of a class.
    fn middle(class: usize) -> u64 {
        let class = class as u64;
        let shift = (class / Self::PARTS).saturating_sub(1);
        let first = (class - shift * Self::PARTS) << shift;
        first + ((1 << shift) - 1) / 2
    }

    /// The value that this share of all values, in thousandths, does not exceed.
    fn at_most(&self, thousandths: u64) -> u64 {
        let rank = (self.count * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        let class = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        class.map_or(0, Self::middle).min(self.most)
    }
}

impl Requests {
    /// Effect of a call on a connection's request.
    fn note(&mut self, process: ProcessId, call: &Call, begun: Cycles, ended: Cycles) {
        match *call {
            Call::Receive {
                bytes, descriptor, ..
            } if bytes > 0 => {
                self.open.entry((process.0, descriptor)).or_insert(begun);
            }
            Call::Send { descriptor, .. } => {
                if let Some(begun) = self.open.remove(&(process.0, descriptor)) {
                    self.answered += 1;
                    self.latencies.add(ended.get().saturating_sub(begun.get()));
                }
            }
            _ => {}
        }
    }

    fn latency(&self) -> LatencyReport {
        let at_most = |thousandths| Cycles::new(self.latencies.at_most(thousandths));
        LatencyReport {
            mean: self.latencies.sum as f64 / self.latencies.count.max(1) as f64,
            p50: at_most(500),
            p95: at_most(950),
            p99: at_most(990),
            p99_9: at_most(999),
            most: Cycles::new(self.latencies.most),
        }
    }
}

impl Engine {
    /// Notes a call that began at a time and has ended now.
    pub(super) fn note_request(&mut self, thread: ThreadId, call: &Call, begun: Cycles) {
        let (Call::Receive { descriptor, .. }
        | Call::Send { descriptor, .. }
        | Call::Close { descriptor }) = *call
        else {
            return;
        };
        let Some(process) = self.kernel.process_of(thread) else {
            return;
        };
        if matches!(call, Call::Close { .. }) {
            self.requests.open.remove(&(process.0, descriptor));
        } else if self.phase == Phase::Measure
            && self.kernel.descriptor(thread, descriptor) == Some(DescriptorKind::Accepted)
        {
            let ended = self.now();
            self.requests.note(process, call, begun, ended);
        }
    }

    /// Requests, where the program answered any and all of its time was simulated.
    pub(crate) fn requests(&self) -> Option<RequestsReport> {
        let requests = &self.requests;
        let timed = self.config.detail != Detail::Translation && !self.config.estimates();
        (requests.answered > 0).then(|| RequestsReport {
            answered: requests.answered,
            unanswered: requests.open.len() as u64,
            latency_cycles: timed.then(|| requests.latency()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn receive(bytes: u64) -> Call {
        Call::Receive {
            bytes,
            buffer: None,
            descriptor: 7,
            positioned: false,
        }
    }

    fn send() -> Call {
        Call::Send {
            bytes: 1,
            buffer: None,
            descriptor: 7,
            positioned: false,
        }
    }

    #[test]
    fn a_request_lasts_from_its_first_receive_to_the_first_send() {
        let mut requests = Requests::default();
        let mut note = |call: &Call, begun, ended| {
            requests.note(ProcessId(3), call, Cycles::new(begun), Cycles::new(ended));
        };
        // The end of a connection, and what answers nothing, are no requests.
        note(&receive(0), 10, 20);
        note(&send(), 30, 40);
        note(&receive(5), 100, 110);
        note(&receive(5), 120, 130);
        note(&send(), 150, 200);
        note(&send(), 250, 300);
        note(&receive(5), 400, 410);
        assert_eq!((requests.answered, requests.open.len()), (1, 1));
        assert_eq!(requests.latencies.sum, 100);
    }

    #[test]
    fn requests_of_other_processes_and_descriptors_are_others() {
        let mut requests = Requests::default();
        let at = Cycles::new;
        requests.note(ProcessId(1), &receive(1), at(0), at(0));
        requests.note(ProcessId(2), &send(), at(50), at(60));
        assert_eq!((requests.answered, requests.open.len()), (0, 1));
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.add(value));
        let found = [500, 950, 990, 999].map(|share| histogram.at_most(share));
        assert_eq!(found, [50, 95, 99, 100]);
        assert_eq!(Histogram::default().at_most(500), 0);
    }

    proptest! {
        #[test]
        fn a_value_is_known_to_less_than_half_a_percent(value: u64) {
            let middle = Histogram::middle(Histogram::class(value));
            prop_assert!(middle.abs_diff(value) <= value / 250, "{middle} {value}");
        }
    }
}
