//! Cost of translation: a core beside the same core with a perfect TLB.
//!
//! Misses overlap each other and the program's own work, so neither the cycles in which a walker
//! works nor those in which the oldest instruction waits for a walk are what translation costs. A
//! *shadow* tells: the same [`Window`], which executes the same instructions with the same latencies
//! of caches, and whose translations take no time. Memory answers it at its own times where the
//! caller times them apart ([`ShadowMiss`]), else as it answers the core. What walks do to caches it
//! does not see.
//!
//! A shadow takes as long to simulate as the core itself, so it runs for some instructions at a time,
//! and begins as a copy of the core. In sampled runs it runs in each unit. In others, [`Stretches`]
//! decide.

use contigua_state::{Plain, Reader, State, Writer, save_option};
use contigua_units::{Cycles, PhysAddr};

use crate::{
    Blocks, CoreCounters, CycleBreakdown, Error, Exit, WalkActivity, Window, WindowConfig,
};

/// Instructions at the beginning of a stretch that do not count: the copy waits for what the core
/// waited for, until its window has been filled anew.
const LEAD: u64 = 1000;
/// Instructions of a stretch that count.
const COUNTED: u64 = 7192;
/// Instructions of the pause behind the second stretch. Behind the third it is twice as long, and
/// so on, ...
const PAUSE: u64 = LEAD + COUNTED;
/// ... up to so many times as long: then one instruction in 64 is simulated twice.
const MOST_PAUSES: u64 = 63;

/// A core, and at times its shadow.
#[derive(Clone, Debug)]
pub struct ShadowedWindow {
    window: Window,
    /// The core with a perfect TLB, while it runs.
    shadow: Option<Box<Window>>,
    /// Shadows so far.
    count: u64,
    /// When the shadow's access under way began.
    accessed: Cycles,
    /// The shadow's clock when it began, and the cycles of those before it.
    begun: Cycles,
    before: Cycles,
    /// When it runs, unless that is decided elsewhere.
    stretches: Option<Stretches>,
}

/// A request to memory of a shadow.
#[derive(Clone, Copy, Debug)]
pub struct ShadowMiss {
    /// Number of the core's shadow; each begins as the core was.
    pub number: u64,
    /// When the request leaves.
    pub time: Cycles,
}

impl State for ShadowedWindow {
    fn save(&self, out: &mut Writer<'_>) {
        let Self {
            window,
            shadow,
            count,
            accessed,
            begun,
            before,
            stretches,
        } = self;
        window.save(out);
        save_option(shadow.as_deref(), out);
        count.save(out);
        accessed.save(out);
        begun.save(out);
        before.save(out);
        stretches.save(out);
    }

    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), contigua_state::Error> {
        let Self {
            window,
            shadow,
            count,
            accessed,
            begun,
            before,
            stretches,
        } = self;
        window.load(input)?;
        *shadow = None;
        if bool::read(input)? {
            let mut running = Box::new(window.clone());
            running.load(input)?;
            *shadow = Some(running);
        }
        count.load(input)?;
        accessed.load(input)?;
        begun.load(input)?;
        before.load(input)?;
        stretches.load(input)
    }
}

impl ShadowedWindow {
    /// A core at time 0, whose shadow runs in stretches.
    ///
    /// # Errors
    /// Those of [`Window::new`].
    pub fn new(config: &WindowConfig) -> Result<Self, Error> {
        Ok(Self {
            stretches: Some(Stretches::default()),
            ..Self::on_demand(config)?
        })
    }

    /// A core at time 0, whose shadow runs from [`start_shadow`](Self::start_shadow) to
    /// [`stop_shadow`](Self::stop_shadow).
    ///
    /// # Errors
    /// Those of [`Window::new`].
    pub fn on_demand(config: &WindowConfig) -> Result<Self, Error> {
        Ok(Self {
            window: Window::new(config)?,
            shadow: None,
            count: 0,
            accessed: Cycles::ZERO,
            begun: Cycles::ZERO,
            before: Cycles::ZERO,
            stretches: None,
        })
    }

    /// As [`Window::with_second_level_tlb`].
    #[must_use]
    pub fn with_second_level_tlb(mut self, cycles: Cycles) -> Self {
        self.window = self.window.with_second_level_tlb(cycles);
        self
    }

    /// A shadow begins.
    pub fn start_shadow(&mut self) {
        self.stop_shadow();
        self.begun = self.window.now();
        self.count += 1;
        self.shadow = Some(Box::new(self.window.clone()));
    }

    /// It ends.
    pub fn stop_shadow(&mut self) {
        self.before = self.perfect();
        self.shadow = None;
    }

    /// Cycles of all shadows.
    #[must_use]
    pub fn perfect(&self) -> Cycles {
        let shadow = self.shadow.as_ref();
        let running = shadow.map_or(0, |shadow| shadow.now().get() - self.begun.get());
        self.before + Cycles::new(running)
    }

    /// Cycles since the last [`reset`](Self::reset) that a perfect TLB would have saved, as stretches
    /// say; `None` before the first instruction that counts, or on demand.
    #[must_use]
    pub fn saved(&self) -> Option<f64> {
        self.stretches.as_ref()?.saved(&self.clocks())
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            core: self.window.now().get(),
            perfect: self.perfect().get(),
            program: self.window.breakdown().program().get(),
        }
    }

    #[cold]
    fn next_step(&mut self) {
        let clocks = self.clocks();
        let Some(stretches) = &mut self.stretches else {
            return;
        };
        let (was_on, is_on) = stretches.next_step(&clocks);
        match (was_on, is_on) {
            (false, true) => self.start_shadow(),
            (true, false) => self.stop_shadow(),
            _ => {}
        }
    }

    /// [`Window::enter`], of a block with so many instructions.
    ///
    /// # Panics
    /// When the block was not learned.
    #[inline]
    pub fn enter(&mut self, blocks: &Blocks, block: usize, instructions: u64) {
        if let Some(stretches) = &mut self.stretches {
            match stretches.left.checked_sub(instructions) {
                Some(left) => stretches.left = left,
                None => self.next_step(),
            }
        }
        self.window.enter(blocks, block);
        if let Some(shadow) = &mut self.shadow {
            out_of_line(shadow, |shadow| shadow.enter(blocks, block));
        }
    }

    /// [`Window::pass`]. No shadow runs.
    #[inline]
    pub fn pass(&mut self, start: u64, end: u64, exit: Exit) {
        debug_assert!(self.shadow.is_none(), "a shadow has no time to pass over");
        self.window.pass(start, end, exit);
    }

    /// [`Window::fetch`], with the shadow's data latency where it is known apart.
    pub fn fetch(
        &mut self,
        translation: Cycles,
        walked: bool,
        data: Cycles,
        shadow_data: Option<Cycles>,
    ) {
        self.window.fetch(translation, walked, data);
        let data = shadow_data.unwrap_or(data);
        if let Some(shadow) = &mut self.shadow
            && data > Cycles::ZERO
        {
            out_of_line(shadow, |shadow| shadow.fetch(Cycles::ZERO, false, data));
        }
    }

    /// [`Window::access`].
    #[inline]
    pub fn access(&mut self, blocks: &Blocks, index: usize, store: bool) -> Cycles {
        if let Some(shadow) = &mut self.shadow {
            let accessed = &mut self.accessed;
            out_of_line(shadow, |shadow| {
                *accessed = shadow.access(blocks, index, store);
            });
        }
        self.window.access(blocks, index, store)
    }

    /// The miss of the shadow's access under way.
    #[must_use]
    #[inline]
    pub fn shadow_miss(&self) -> Option<ShadowMiss> {
        let shadow = self.shadow.as_ref()?;
        Some(ShadowMiss {
            number: self.count,
            time: shadow.miss_leaves(self.accessed),
        })
    }

    /// The miss of the shadow's fetch under way.
    #[must_use]
    #[inline]
    pub fn shadow_fetch_miss(&self) -> Option<ShadowMiss> {
        let shadow = self.shadow.as_ref()?;
        Some(ShadowMiss {
            number: self.count,
            time: shadow.now(),
        })
    }

    /// [`Window::miss_leaves`].
    #[must_use]
    pub fn miss_leaves(&self, time: Cycles) -> Cycles {
        self.window.miss_leaves(time)
    }

    /// [`Window::answer`], with the shadow's data latency where it is known apart.
    #[inline]
    pub fn answer(
        &mut self,
        address: PhysAddr,
        translation: Cycles,
        walked: bool,
        data: Cycles,
        shadow_data: Option<Cycles>,
    ) {
        if let Some(shadow) = &mut self.shadow {
            let data = shadow_data.unwrap_or(data);
            out_of_line(shadow, |shadow| {
                shadow.answer(address, Cycles::ZERO, false, data);
            });
        }
        self.window.answer(address, translation, walked, data);
    }

    /// [`Window::drain`].
    pub fn drain(&mut self, blocks: &Blocks) {
        self.window.drain(blocks);
        if let Some(shadow) = &mut self.shadow {
            shadow.drain(blocks);
        }
    }

    /// [`Window::kernel`].
    pub fn kernel(&mut self, work: Cycles) {
        self.window.kernel(work);
        if let Some(shadow) = &mut self.shadow {
            shadow.kernel(work);
        }
    }

    /// [`Window::wait_until`]. The shadow waits as long.
    #[inline]
    pub fn wait_until(&mut self, time: Cycles) {
        let before = self.window.now();
        self.window.wait_until(time);
        if let Some(shadow) = &mut self.shadow {
            let idle = self.window.now().get() - before.get();
            shadow.wait_until(shadow.now() + Cycles::new(idle));
        }
    }

    /// [`Window::now`].
    #[must_use]
    #[inline]
    pub fn now(&self) -> Cycles {
        self.window.now()
    }

    /// [`Window::cycles`].
    #[must_use]
    pub fn cycles(&self) -> Cycles {
        self.window.cycles()
    }

    /// [`Window::breakdown`].
    #[must_use]
    pub fn breakdown(&self) -> CycleBreakdown {
        self.window.breakdown()
    }

    /// [`Window::counters`].
    #[must_use]
    pub fn counters(&self) -> CoreCounters {
        self.window.counters()
    }

    /// [`Window::walks`].
    #[must_use]
    pub fn walks(&self) -> WalkActivity {
        self.window.walks()
    }

    /// [`Window::reset`]. Stretches begin anew.
    pub fn reset(&mut self) {
        self.window.reset();
        if let Some(stretches) = &mut self.stretches {
            *stretches = Stretches::default();
            self.stop_shadow();
        }
    }
}

/// Does something with a shadow, out of the way of the code for the core itself.
#[cold]
#[inline(never)]
fn out_of_line(shadow: &mut Window, what: impl FnOnce(&mut Window)) {
    what(shadow);
}

/// Clocks of a core and of its shadows.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Clocks {
    core: u64,
    perfect: u64,
    /// Cycles of the program, since the last reset: those of neither the kernel nor idleness.
    program: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
enum Step {
    #[default]
    Pause,
    Lead,
    Count,
}

/// Runs of instructions in which a shadow runs. The first ones follow each other, so that short
/// programs are seen whole; later ones are further apart. Each stands for the time since the one
/// before it.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
struct Stretches {
    step: Step,
    /// Instructions until the next step.
    left: u64,
    /// Number of finished stretches.
    count: u64,
    /// When what counts of the present one began.
    from: Clocks,
    /// Extrapolation of the finished stretches.
    extrapolated: Extrapolated,
}

/// Extrapolation of stretches to the program.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Extrapolated {
    /// Cycles that a perfect TLB saves.
    saved: f64,
    /// Value in the latest stretch, as a share of the program's.
    share: f64,
    /// The program's cycles of which that is said.
    program: u64,
}

impl Stretches {
    /// Goes on to the next step; says whether a shadow ran, and whether it runs now.
    fn next_step(&mut self, now: &Clocks) -> (bool, bool) {
        let was_on = self.step != Step::Pause;
        (self.step, self.left) = match self.step {
            Step::Pause => (Step::Lead, LEAD),
            Step::Lead => {
                self.from = *now;
                (Step::Count, COUNTED)
            }
            Step::Count => {
                self.extrapolated = self.with_present(now);
                self.count += 1;
                let pauses = (self.count - 1).min(MOST_PAUSES);
                (Step::Pause, pauses * PAUSE)
            }
        };
        (was_on, self.step != Step::Pause)
    }

    /// Extrapolation that includes the present stretch, which is counting.
    fn with_present(&self, now: &Clocks) -> Extrapolated {
        let core = (now.core - self.from.core) as f64;
        let perfect = (now.perfect - self.from.perfect) as f64;
        let program = now.program - self.from.program;
        let share = (core - perfect) / program.max(1) as f64;
        Extrapolated {
            saved: self.extrapolated.saved
                + share * (now.program - self.extrapolated.program) as f64,
            share,
            program: now.program,
        }
    }

    /// Cycles that a perfect TLB saves.
    fn saved(&self, now: &Clocks) -> Option<f64> {
        let counts = self.step == Step::Count && now.program > self.from.program;
        if self.count == 0 && !counts {
            return None;
        }
        // Few instructions say little.
        let extrapolated = if self.count == 0 || (counts && self.left < COUNTED / 2) {
            self.with_present(now)
        } else {
            self.extrapolated
        };
        let rest = now.program - extrapolated.program;
        Some((extrapolated.saved + extrapolated.share * rest as f64).max(0.0))
    }
}
