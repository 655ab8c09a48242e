//! Initialization, on the first slow path: before it every cache is empty, so that the first
//! allocation ends up here whoever makes it, be it the dynamic linker or another library's
//! constructor.
//!
//! Nothing in the first part allocates. The second part may (the C library's registration of fork
//! handlers does), and by then the allocator works.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::rseq::HOT;
use crate::settings::Settings;
use crate::{
    background, clock, dump, fork, front, guarded, harden, pages, profile, sampler, sys, telemetry,
    tls,
};

const FRESH: u32 = 0;
const RUNNING: u32 = 1;
const READY: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(FRESH);

/// Returns true once initialization is over.
#[inline]
pub fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) == READY
}

/// Initialize, once.
#[inline]
pub fn ensure() {
    if !is_ready() {
        initialize();
    }
}

#[cold]
#[inline(never)]
fn initialize() {
    if STATE
        .compare_exchange(FRESH, RUNNING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        while !is_ready() {
            sys::yield_now();
        }
        return;
    }
    // A linker takes from a static library what somebody refers to.
    #[cfg(all(not(test), feature = "interpose"))]
    core::hint::black_box((&raw const crate::CONSTRUCTOR, &raw const crate::DESTRUCTOR));
    sys::preserving_errno(|| {
        // Who comes here again would wait for itself: as good as a lock.
        tls::count_lock(1);
        let key = sys::random(sys::Purpose::Canary, 0) as usize;
        // The last byte of a word that lies before an object is neither text, nor a small number, nor all ones.
        let key = key & !(1 << 56) | 1 << 63 | 1;
        HOT.key.store(key, Ordering::Relaxed);
        let settings = Settings::read();
        if settings.program_clock && !clock::use_program_clock() {
            sys::message(format_args!(
                "nobody answers CONTIGUA_MALLOC_CLOCK=program; using the system's clock"
            ));
        }
        pages::configure(settings.heap(), !settings.program_clock);
        background::configure(settings.background);
        telemetry::configure(settings.telemetry, settings.statistics_at_exit);
        if settings.harden != 1 {
            harden::start(settings.harden);
        }
        front::start(sys::possible_cpus(), settings.cache, settings.per_cpu);
        STATE.store(READY, Ordering::Release);
        tls::count_lock(-1);
        if let Some(rate) = settings.profile_rate() {
            profile::start(rate, settings.profile);
        }
        GUARDED.store(settings.guarded, Ordering::Relaxed);
        // The first allocations of a statically linked program come before the C library is ready for the unwinder.
        if !(HAS_CONSTRUCTOR && sys::is_static()) {
            begin_samples();
        }
        if let Some(dump) = &settings.dump {
            dump::start(dump);
        }
        // What follows may allocate, and finds the allocator ready.
        fork::register();
        background::watch_main_thread();
    });
}

/// True if the library has a constructor that runs.
const HAS_CONSTRUCTOR: bool = cfg!(all(not(test), feature = "interpose"));
/// Allocations between guarded ones, as the environment wants it.
static GUARDED: AtomicU64 = AtomicU64::new(0);
static SAMPLES_BEGUN: AtomicBool = AtomicBool::new(false);

/// Take samples from now on, if the environment wants some. After initialization.
pub fn begin_samples() {
    if SAMPLES_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let rate = profile::rate();
    let guarded = GUARDED.load(Ordering::Relaxed);
    let guarded = (guarded > 0 && guarded::start(guarded)).then_some(guarded);
    if rate > 0 || guarded.is_some() {
        sampler::start(rate, guarded);
    }
}
