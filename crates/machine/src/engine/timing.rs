//! Clocks: sums, where stalls add up, or windows of cores that execute out of order, which are here or
//! with the thread that times outcomes. And the one rule by which a window times a request.

use contigua_cache::AccessKind;
use contigua_core::{Blocks, CoreModel, IssueWidth, ShadowMiss, ShadowedWindow};
use contigua_translation::Access;
use contigua_units::{Cycles, PhysAddr};

use super::sampling::RATE_SHIFT;

/// A request of a core to translation and memory, for its program.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    /// A line of code.
    Line,
    /// An access by this instruction of its block.
    Data { instruction: usize, store: bool },
}

impl Asked {
    #[inline]
    pub(super) fn access(self) -> Access {
        match self {
            Self::Line => Access::Execute,
            Self::Data { store: false, .. } => Access::Read,
            Self::Data { store: true, .. } => Access::Write,
        }
    }

    #[inline]
    pub(super) fn kind(self) -> AccessKind {
        match self {
            Self::Line => AccessKind::Fetch,
            Self::Data { store: false, .. } => AccessKind::Read,
            Self::Data { store: true, .. } => AccessKind::Write,
        }
    }
}

/// A translated address, and what that took beyond a first-level hit.
#[derive(Clone, Copy)]
pub(super) struct Translated {
    pub(super) physical: PhysAddr,
    pub(super) latency: Cycles,
    pub(super) walked: bool,
}

impl Translated {
    pub(super) const fn at_once(physical: PhysAddr) -> Self {
        Self {
            physical,
            latency: Cycles::ZERO,
            walked: false,
        }
    }
}

/// Time of data beyond a first-level hit, and that of the core's shadow where it is known apart.
#[derive(Clone, Copy, Default)]
pub(super) struct Data {
    pub(super) latency: Cycles,
    pub(super) shadow: Option<Cycles>,
}

/// A core that executes out of order. It asks for something: the request begins, leaves the first
/// level of the caches where that misses, and ends.
pub(super) struct Core<'a> {
    pub(super) window: &'a mut ShadowedWindow,
    pub(super) blocks: &'a Blocks,
}

impl Core<'_> {
    /// Begins a request; its time.
    #[inline]
    pub(super) fn begin(&mut self, asked: Asked) -> Cycles {
        match asked {
            Asked::Line => self.window.now(),
            Asked::Data { instruction, store } => {
                self.window.access(self.blocks, instruction, store)
            }
        }
    }

    /// Time at which a miss leaves whose translation is there at `time`, and that of the core's shadow.
    #[inline]
    pub(super) fn leave(&self, asked: Asked, time: Cycles) -> (Cycles, Option<ShadowMiss>) {
        match asked {
            Asked::Line => (time, self.window.shadow_fetch_miss()),
            Asked::Data { .. } => (self.window.miss_leaves(time), self.window.shadow_miss()),
        }
    }

    #[inline]
    pub(super) fn end(&mut self, asked: Asked, found: &Translated, data: Data) {
        let Translated {
            physical,
            latency,
            walked,
        } = *found;
        match asked {
            Asked::Data { .. } => {
                self.window
                    .answer(physical, latency, walked, data.latency, data.shadow);
            }
            Asked::Line => {
                let is_hit = latency == Cycles::ZERO && data.latency == Cycles::ZERO;
                if !is_hit || data.shadow.is_some() {
                    self.window
                        .fetch(latency, walked, data.latency, data.shadow);
                }
            }
        }
    }
}

/// The cores that execute out of order.
#[derive(contigua_state::State)]
pub(super) struct Windows {
    #[state(fixed)]
    pub(super) list: Vec<ShadowedWindow>,
    /// Blocks that they execute.
    pub(super) blocks: Blocks,
}

impl Windows {
    #[inline]
    pub(super) fn core(&mut self, core: usize) -> Core<'_> {
        Core {
            window: &mut self.list[core],
            blocks: &self.blocks,
        }
    }
}

/// Nobody but the inner loop runs ahead of the clocks.
const AWAY: &str = "`Engine::catch_up` comes before a look at clocks";

/// The clocks of all cores.
#[derive(contigua_state::State)]
pub(crate) struct Timing {
    /// Sums, where stalls add up.
    pub(crate) sum: IssueWidth,
    /// Time in which instructions were passed over.
    passed: Cycles,
    /// The time when counters began anew.
    before: Cycles,
    /// The part of a passed cycle that has not passed, in units of 2^-[`RATE_SHIFT`].
    owed: u128,
    /// `None` while they are away.
    #[state(fixed)]
    windows: Option<Windows>,
}

impl Timing {
    /// Without windows, stalls add up.
    pub(super) fn new(sum: IssueWidth, list: Vec<ShadowedWindow>, blocks: Blocks) -> Self {
        Self {
            sum,
            passed: Cycles::ZERO,
            before: Cycles::ZERO,
            owed: 0,
            windows: Some(Windows { list, blocks }),
        }
    }

    /// Lends the cores, if they are here.
    pub(super) fn lend(&mut self) -> Option<Windows> {
        self.windows.take()
    }

    /// The cores are back.
    pub(super) fn give_back(&mut self, windows: Windows) {
        self.windows = Some(windows);
    }

    pub(super) fn are_away(&self) -> bool {
        self.windows.is_none()
    }

    #[inline]
    pub(super) fn here(&mut self) -> &mut Windows {
        self.windows.as_mut().expect(AWAY)
    }

    /// The cores that execute out of order; none where stalls add up.
    #[inline]
    pub(crate) fn windows(&self) -> &[ShadowedWindow] {
        &self.windows.as_ref().expect(AWAY).list
    }

    #[inline]
    pub(crate) fn windows_mut(&mut self) -> &mut [ShadowedWindow] {
        &mut self.here().list
    }

    /// A core that executes out of order.
    #[inline]
    pub(super) fn core(&mut self, core: usize) -> Core<'_> {
        self.here().core(core)
    }

    /// A core's clock.
    #[inline]
    pub(super) fn now(&self, core: usize) -> Cycles {
        match self.windows().get(core) {
            Some(window) => window.now(),
            None => self.before + self.sum.cycles() + self.passed,
        }
    }

    /// Time since counters began anew, of the core that is farthest.
    pub(super) fn clock(&self) -> Cycles {
        let farthest = self.windows().iter().map(ShadowedWindow::cycles).max();
        farthest.unwrap_or_else(|| self.sum.cycles() + self.passed)
    }

    /// The clock of the core that is farthest, of those that execute out of order.
    pub(super) fn latest(&self) -> Cycles {
        let clocks = self.windows().iter().map(ShadowedWindow::now);
        clocks.max().unwrap_or_default()
    }

    /// The kernel works on a core.
    pub(super) fn charge(&mut self, core: usize, work: Cycles) {
        if work == Cycles::ZERO {
            return;
        }
        match self.windows_mut().get_mut(core) {
            Some(window) => window.kernel(work),
            None => self.sum.kernel(work),
        }
    }

    /// A core has nothing to do until then.
    pub(super) fn wait(&mut self, core: usize, until: Cycles) {
        let now = self.now(core).get();
        match self.windows_mut().get_mut(core) {
            Some(window) => window.wait_until(until),
            None => self.passed += Cycles::new(until.get().saturating_sub(now)),
        }
    }

    /// The time of instructions passes on a core, at so many cycles for each in units of
    /// 2^-[`RATE_SHIFT`].
    pub(super) fn pass(&mut self, core: usize, instructions: u64, rate: u64) {
        self.owed += u128::from(instructions) * u128::from(rate);
        let time = Cycles::new((self.owed >> RATE_SHIFT) as u64);
        self.owed &= (1 << RATE_SHIFT) - 1;
        match self.windows_mut().get_mut(core) {
            Some(window) => window.wait_until(window.now() + time),
            None => self.passed += time,
        }
    }

    /// A core has nothing under way any more.
    pub(super) fn drain(&mut self, core: usize) {
        let windows = self.here();
        if let Some(window) = windows.list.get_mut(core) {
            window.drain(&windows.blocks);
        }
    }

    /// Counters begin anew.
    pub(super) fn reset(&mut self) {
        if self.windows().is_empty() {
            // Memory and time slices go on.
            self.before = self.now(0);
        }
        self.sum.reset();
        self.passed = Cycles::ZERO;
        self.windows_mut()
            .iter_mut()
            .for_each(ShadowedWindow::reset);
    }
}
