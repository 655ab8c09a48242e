//! Which pages are worth a line: walks of pages, and how often the L2 TLB and the L2 cache miss.

use contigua_paging::SpaceId;
use contigua_state::{Plain, State};
use contigua_translation::{Request, TranslationLines};
use contigua_units::{PageSize, VirtAddr};

use super::Config;

/// Pages with counters, of which pages of the same number modulo this share theirs.
const COUNTED: u64 = 1 << 20;
const MOST_WALKS: u8 = 7;
const MOST_COST: u8 = 15;

/// Misses since a window of instructions began, and what followed from the last window's.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Window {
    began: u64,
    tlb_misses: u64,
    /// Misses of the L2 cache when it began.
    cache_misses: u64,
    /// The L2 cache missed often.
    is_poor: bool,
}

/// The predictor of costs.
#[derive(State)]
pub(super) struct Predictor {
    /// Walks of pages, and in the lower four bits those that read memory.
    costs: Vec<u8>,
    window: Window,
    #[state(skip)]
    config: Config,
}

impl Predictor {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            costs: vec![0; COUNTED as usize],
            window: Window::default(),
            config: config.clone(),
        }
    }

    fn costs_of(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) -> &mut u8 {
        let number = (address.get() >> size.shift()) ^ u64::from(space.0) << 8;
        &mut self.costs[(number % COUNTED) as usize]
    }

    /// Counts a miss of the L2 TLB, and begins a window.
    pub(super) fn count_miss(&mut self, request: &Request, lines: &mut dyn TranslationLines) {
        if request.position == 0 {
            return;
        }
        let window = &mut self.window;
        window.tlb_misses += 1;
        let passed = request.position.saturating_sub(window.began);
        if passed < self.config.window {
            return;
        }
        let often = |misses: u64, mpki: u32| misses * 1000 > u64::from(mpki) * passed;
        let cache_misses = lines.misses();
        // Counters may have been reset in between.
        let missed = cache_misses.saturating_sub(window.cache_misses);
        let is_pressed = often(window.tlb_misses, self.config.tlb_mpki);
        lines.spare(if is_pressed { self.config.turns } else { 0 });
        *window = Window {
            began: request.position,
            tlb_misses: 0,
            cache_misses,
            is_poor: often(missed, self.config.cache_mpki),
        };
    }

    /// Counts a walk.
    pub(super) fn count_walk(&mut self, request: &Request, size: PageSize, read_memory: bool) {
        let costs = self.costs_of(request.address, request.space, size);
        let walks = (*costs >> 4).saturating_add(1).min(MOST_WALKS);
        let cost = (*costs & MOST_COST) + u8::from(read_memory);
        *costs = walks << 4 | cost.min(MOST_COST);
    }

    /// Returns true if a page shall be in a block.
    pub(super) fn is_costly(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) -> bool {
        let costs = *self.costs_of(address, space, size);
        let (walks, cost) = (costs >> 4, costs & MOST_COST);
        let config = &self.config;
        let predicted =
            walks >= config.least_walks && (config.least_cost..=config.most_cost).contains(&cost);
        self.window.is_poor || predicted
    }
}
