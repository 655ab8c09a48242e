//! Timing past the first level: DRAM's queues and rows, and prefetches under way.
//!
//! Contents of caches and directories do not depend on time. So a request changes them
//! first and leaves *steps* behind; [`Queues::time`] goes through the steps at the time of the
//! request and says how long it takes. That may happen later, and on another thread, as long as
//! requests are timed in the order in which they were made.
//!
//! A core with a perfect TLB would load memory more, so its *shadow* times the same steps at its
//! own times, with queues of its own that begin as a copy.

use contigua_state::{Plain as _, Reader, State, Writer, save_option};
use contigua_units::{Cycles, Megahertz};

use super::dram::{Dram, DramCounters};
use crate::HierarchyConfig;

/// Prefetches whose arrival is remembered. A line that was asked for so many prefetches ago is there:
/// no channel has so many lines in its queue.
const ARRIVALS: usize = 1 << 14;

const TAG_SHIFT: u32 = 60;
const PAYLOAD: u64 = (1 << TAG_SHIFT) - 1;
const BASE_SHIFT: u32 = 32;

/// Steps of a request, in order, as words.
///
/// `Read` and `Ready` say what the next `Answer` or `Arrive` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A line is read from memory.
    Read { line: u64 },
    /// A line is written to memory; nobody waits.
    Write { line: u64 },
    /// The data of a prefetch is needed.
    Ready { prefetch: u32 },
    /// The request is answered after so many cycles, or when what it waits for is there. So many of
    /// them are hidden in the core's pipeline.
    Answer { cycles: u32, hidden: u32 },
    /// The data of a prefetch is there after so many cycles, or when what it waits for is there.
    Arrive { prefetch: u32, cycles: u32 },
}

impl Step {
    #[inline]
    pub(super) fn encode(self) -> u64 {
        let (tag, payload) = match self {
            Self::Read { line } => (0, line),
            Self::Write { line } => (1, line),
            Self::Ready { prefetch } => (2, u64::from(prefetch)),
            Self::Answer { cycles, hidden } => {
                (3, u64::from(cycles) << BASE_SHIFT | u64::from(hidden))
            }
            Self::Arrive { prefetch, cycles } => {
                (4, u64::from(cycles) << BASE_SHIFT | u64::from(prefetch))
            }
        };
        debug_assert!(payload <= PAYLOAD, "{self:?} does not fit into a word");
        tag << TAG_SHIFT | payload
    }

    #[inline]
    fn decode(word: u64) -> Self {
        let payload = word & PAYLOAD;
        let (high, low) = ((payload >> BASE_SHIFT) as u32, payload as u32);
        match word >> TAG_SHIFT {
            0 => Self::Read { line: payload },
            1 => Self::Write { line: payload },
            2 => Self::Ready { prefetch: low },
            3 => Self::Answer {
                cycles: high,
                hidden: low,
            },
            _ => Self::Arrive {
                prefetch: low,
                cycles: high,
            },
        }
    }
}

/// DRAM and the prefetches under way, as one core's times make them.
#[derive(Clone, Debug, contigua_state::State)]
struct Timed {
    dram: Dram,
    /// By number of a prefetch modulo [`ARRIVALS`]: when its data is there.
    #[state(fixed)]
    arrivals: Box<[u64]>,
}

/// DRAM, and the prefetches under way.
#[derive(Clone, Debug)]
pub struct Queues {
    real: Timed,
    /// Those of the core's shadow, and which of its shadows that is.
    shadow: Option<Box<Timed>>,
    shadow_number: u64,
}

impl State for Queues {
    fn save(&self, out: &mut Writer<'_>) {
        self.real.save(out);
        save_option(self.shadow.as_deref(), out);
        self.shadow_number.save(out);
    }

    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), contigua_state::Error> {
        self.real.load(input)?;
        self.shadow = None;
        if bool::read(input)? {
            let mut shadow = Box::new(self.real.clone());
            shadow.load(input)?;
            self.shadow = Some(shadow);
        }
        self.shadow_number.load(input)
    }
}

impl Queues {
    pub(super) fn new(config: &HierarchyConfig, clock: Megahertz) -> Self {
        Self {
            real: Timed {
                dram: Dram::new(&config.dram, config.memory_latency, clock),
                arrivals: vec![0; ARRIVALS].into(),
            },
            shadow: None,
            shadow_number: 0,
        }
    }

    /// Time of a request at `time` with these steps; 0 if it waits for no answer.
    pub fn time(&mut self, steps: &[u64], time: Cycles) -> Cycles {
        self.real.time(steps, time)
    }

    /// [`time`](Self::time) for the shadow that has this number. It begins with the queues as they
    /// are at its first request.
    pub fn time_shadow(&mut self, number: u64, steps: &[u64], time: Cycles) -> Cycles {
        let shadow = match &mut self.shadow {
            Some(shadow) => {
                if self.shadow_number != number {
                    (**shadow).clone_from(&self.real);
                }
                shadow
            }
            empty => empty.insert(Box::new(self.real.clone())),
        };
        self.shadow_number = number;
        shadow.time(steps, time)
    }

    pub(super) fn counters(&self) -> DramCounters {
        self.real.dram.counters()
    }

    pub(super) fn reset_counters(&mut self) {
        self.real.dram.reset_counters();
    }
}

impl Timed {
    fn time(&mut self, steps: &[u64], time: Cycles) -> Cycles {
        let mut answer = Cycles::ZERO;
        let mut wait = 0;
        for &word in steps {
            match Step::decode(word) {
                Step::Read { line } => wait = self.dram.read(line, time).get(),
                Step::Write { line } => self.dram.write(line, time),
                Step::Ready { prefetch } => {
                    let arrival = self.arrivals[prefetch as usize % ARRIVALS];
                    wait = arrival.saturating_sub(time.get());
                }
                Step::Answer { cycles, hidden } => {
                    let cycles = u64::from(cycles).max(wait);
                    answer = Cycles::new(cycles.saturating_sub(u64::from(hidden)));
                    wait = 0;
                }
                Step::Arrive { prefetch, cycles } => {
                    self.arrivals[prefetch as usize % ARRIVALS] =
                        time.get() + u64::from(cycles).max(wait);
                    wait = 0;
                }
            }
        }
        answer
    }
}

/// The steps of a request that is being served, and how many prefetches there have been.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
pub(super) struct Steps {
    pub(super) words: Vec<u64>,
    /// Lines read from memory.
    pub(super) reads: u64,
    prefetches: u32,
}

impl Steps {
    #[inline]
    pub(super) fn push(&mut self, step: Step) {
        self.reads += u64::from(matches!(step, Step::Read { .. }));
        self.words.push(step.encode());
    }

    /// A prefetch is made; its number, which is never 0.
    pub(super) fn prefetch(&mut self, cycles: u32) -> u32 {
        self.prefetches = self.prefetches.wrapping_add(1).max(1);
        let prefetch = self.prefetches;
        self.push(Step::Arrive { prefetch, cycles });
        prefetch
    }

    /// Waits for a prefetch, unless that is long ago.
    #[inline]
    pub(super) fn wait_for(&mut self, prefetch: u32) {
        if prefetch != 0 && self.prefetches.wrapping_sub(prefetch) < ARRIVALS as u32 {
            self.push(Step::Ready { prefetch });
        }
    }
}
