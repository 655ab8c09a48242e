//! Dumps on a signal that the environment names: statistics as text, and the heap profile if one is
//! taken.
//!
//! The handler takes no lock that the interrupted thread may hold: it tries each, and if one is
//! taken it shows what the shared page last said and leaves the rest to the next slow
//! path. A profile is always left to one, because it needs memory.

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::files::{self, FileName, Writer};
use crate::lock::Guarded;
use crate::settings::Dump;
use crate::signals::Former;
use crate::sys::{self, Line};
use crate::{clock, profile, telemetry};

/// Pending dumps, as bits.
const TEXT: u8 = 1;
const PROFILE: u8 = 2;
static PENDING: AtomicU8 = AtomicU8::new(0);
static OUTPUT: Guarded<Output> = Guarded::new(Output {
    name: None,
    owner: 0,
    line: Line::new(),
    out: Writer::new(2),
});
static FORMER: Former = Former::new();

/// Listen to the signal from now on. The program's own handler, if it sets one later, wins.
pub fn start(dump: &Dump) {
    {
        let mut output = OUTPUT.lock();
        (output.name, output.owner) = (dump.file, sys::process());
    }
    if let Err(number) = FORMER.replace(dump.signal, handle, libc::SA_RESTART, true) {
        sys::message(format_args!(
            "CONTIGUA_MALLOC_DUMP: no handler for signal {}: error {number}",
            dump.signal
        ));
    }
}

/// The lock of the output, for the fork handlers.
pub fn lock() -> &'static crate::lock::Lock {
    &OUTPUT.lock
}

/// In the child of a fork: what the parent was asked is the parent's.
pub fn after_fork() {
    PENDING.store(0, Ordering::Relaxed);
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    sys::preserving_errno(|| {
        if !write(false) {
            PENDING.fetch_or(TEXT, Ordering::Relaxed);
        }
        if profile::is_on() {
            PENDING.fetch_or(PROFILE, Ordering::Relaxed);
        }
    });
    FORMER.call(signal, info, context);
}

/// Write what a handler left to others. Called in slow paths, under no lock.
#[inline]
pub fn write_pending_dump() {
    if PENDING.load(Ordering::Relaxed) != 0 {
        write_pending();
    }
}

#[cold]
fn write_pending() {
    let pending = PENDING.swap(0, Ordering::Relaxed);
    if pending & TEXT != 0 {
        write(true);
    }
    if pending & PROFILE != 0 {
        profile::write_to_environment();
    }
}

/// Write the figures; `false` if some have to follow. With `may_wait` this waits for locks.
fn write(may_wait: bool) -> bool {
    let output = if may_wait {
        Some(OUTPUT.lock())
    } else {
        OUTPUT.try_lock()
    };
    let Some(mut output) = output else {
        return false;
    };
    let Some(file) = output.open() else {
        return true;
    };
    output.out.begin(file);
    let whole = text(&mut output.out, may_wait);
    let _ = output.out.finish();
    if file != 2 {
        files::close(file);
    }
    whole
}

/// Destination of a dump, and a buffer too large for a handler's stack.
struct Output {
    name: Option<FileName>,
    /// The process that the environment spoke to.
    owner: i32,
    line: Line<{ FileName::EXPANDED }>,
    out: Writer,
}

impl Output {
    /// The file to write to; none, and a message, if it cannot be opened.
    fn open(&mut self) -> Option<i32> {
        let Some(name) = self.name else {
            return Some(2);
        };
        self.line.clear();
        let opened = name
            .expand(&mut self.line, self.owner == sys::process())
            .map_or(Err(libc::ENAMETOOLONG), files::append);
        opened
            .inspect_err(|number| {
                sys::message(format_args!(
                    "CONTIGUA_MALLOC_DUMP: the file cannot be opened: error {number}"
                ));
            })
            .ok()
    }
}

fn text(out: &mut Writer, may_wait: bool) -> bool {
    let process = sys::process();
    let _ = writeln!(out, "contigua-malloc: figures of process {process}");
    if may_wait {
        let _ = telemetry::write_text(out);
        return true;
    }
    if telemetry::try_write_text(out).is_some() {
        return true;
    }
    let _ = match telemetry::last() {
        Some(page) => {
            let age = clock::coarse_nanoseconds().saturating_sub(page.nanoseconds);
            let _ = writeln!(out, "as of {} ms ago; newer ones follow", age / 1_000_000);
            telemetry::write_page(out, &page)
        }
        None => writeln!(out, "they follow: the allocator is at work"),
    };
    false
}
