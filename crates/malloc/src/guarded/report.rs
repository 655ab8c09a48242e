//! The report before the process ends because of a slot: the mistake, the object, and where it was
//! allocated, freed and misused. All of it may happen in a handler of `SIGSEGV`: no memory is
//! allocated, and no lock of others is taken.

use core::ffi::c_void;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::module::Module;
use super::slot::{COUNT, SLOTS, Slot, State, Trace, index_of};
use crate::sys::{self, Line};
use crate::{files, tls};

/// Mistake of the program.
#[derive(Clone, Copy)]
pub enum Mistake {
    /// To do this with what is no object.
    Invalid(&'static str),
    /// To write around the object; found when it was freed.
    Damaged,
}

/// The thread that reports, by its thread pointer; 0: nobody yet.
static REPORTER: AtomicUsize = AtomicUsize::new(0);
/// There was a report.
const DONE: usize = 1;

/// Stack of the thread that reports.
static HERE: Trace = Trace::new();

/// Have `report` write, unless somebody wrote a report; returns when one is written.
fn once(report: impl FnOnce()) {
    let own = tls::thread_pointer();
    let other = REPORTER
        .compare_exchange(0, own, Ordering::Acquire, Ordering::Acquire)
        .err();
    if let Some(mut other) = other {
        // A fault of the reporter's own ends the report.
        while other != DONE && other != own {
            sys::yield_now();
            other = REPORTER.load(Ordering::Acquire);
        }
        return;
    }
    report();
    REPORTER.store(DONE, Ordering::Release);
}

/// End the process because of a mistake at `address`.
#[cold]
#[inline(never)]
pub fn end(mistake: Mistake, address: usize) -> ! {
    once(|| {
        let slot = nearest(address);
        let is_its = slot.is_some_and(|slot| slot.address() == address);
        let is_freed = slot.is_some_and(|slot| slot.state() == State::Freed);
        match mistake {
            Mistake::Invalid("free") if is_its && is_freed => {
                head(format_args!("double free: free of"), address, slot);
            }
            Mistake::Invalid(doing) if is_freed => {
                head(format_args!("use after free: {doing} of"), address, slot);
            }
            Mistake::Invalid(doing) => {
                head(format_args!("invalid {doing}: {doing} of"), address, slot);
            }
            Mistake::Damaged => {
                let kind = beyond(address, slot);
                let what = "a write, found when the object was freed, to";
                head(format_args!("{kind}: {what}"), address, slot);
            }
        }
        history(slot);
        here(0);
    });
    // SAFETY: `abort` takes no arguments and does not return.
    unsafe { libc::abort() }
}

/// Report a fault at `address`; `false` if there was never an object near it.
pub fn fault(address: usize, context: *mut c_void) -> bool {
    let slot = nearest(address);
    let Some(found) = slot else {
        return false;
    };
    once(|| {
        let (access, instruction) = access(context);
        let kind = if found.state() == State::Freed || found.distance(address) == 0 {
            "use after free"
        } else {
            beyond(address, slot)
        };
        head(format_args!("{kind}: {access}"), address, slot);
        history(slot);
        // Last, because it needs the most stack.
        here(instruction);
    });
    true
}

/// The slot whose object, or last one, lies nearest to `address`, if it is one of the neighbors.
fn nearest(address: usize) -> Option<&'static Slot> {
    let index = index_of(address);
    SLOTS[index.saturating_sub(1)..(index + 2).min(COUNT)]
        .iter()
        .filter(|slot| slot.address() != 0)
        .min_by_key(|slot| slot.distance(address))
}

fn beyond(address: usize, slot: Option<&Slot>) -> &'static str {
    if slot.is_some_and(|slot| address < slot.address()) {
        "underflow"
    } else {
        "overflow"
    }
}

/// Type of the access, as far as the processor tells, and the address of the instruction.
fn access(context: *mut c_void) -> (&'static str, usize) {
    // SAFETY: the kernel gives a handler the registers of what it interrupted.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        // `REG_RIP` and `REG_ERR`, whose bit 1 is a write (Intel's manual, "Page-Fault Exception").
        let (instruction, error) = (registers.gregs[16], registers.gregs[19]);
        let access = if error & 2 != 0 {
            "write to"
        } else {
            "read of"
        };
        (access, instruction as usize)
    }
    #[cfg(target_arch = "aarch64")]
    {
        ("access to", registers.pc as usize)
    }
}

/// The first line.
fn head(what: fmt::Arguments<'_>, address: usize, slot: Option<&Slot>) {
    let mut line = Line::<256>::new();
    let _ = write!(line, "contigua-malloc: {what} {address:#x}");
    if let Some(slot) = slot {
        let (begin, size) = (slot.address(), slot.size());
        let offset = address.wrapping_sub(begin).cast_signed();
        let _ = write!(
            line,
            ", at offset {offset} of an object of {size} bytes at {begin:#x}"
        );
    }
    let _ = writeln!(line);
    sys::write_all(2, line.as_bytes());
}

/// Writes where the object was allocated and freed.
fn history(slot: Option<&Slot>) {
    let Some(slot) = slot else {
        return;
    };
    for (what, trace) in [("allocated", &slot.allocated), ("freed", &slot.freed)] {
        stack(what, trace, 0);
    }
}

/// Writes the stack of the calling thread; from `instruction` on if that is not 0.
#[inline(never)]
fn here(instruction: usize) {
    HERE.take();
    if instruction != 0 && !HERE.frames().any(|frame| frame == instruction) {
        // The unwinder does not pass the handler.
        HERE.keep(&[instruction]);
    }
    stack("noticed", &HERE, instruction);
}

/// Write a stack without the frames of this library, or of what lies above `instruction`.
fn stack(what: &str, trace: &Trace, instruction: usize) {
    if trace.frames().next().is_none() {
        return;
    }
    let mut line = Line::<320>::new();
    let _ = writeln!(line, "{what} by thread {:#x}:", trace.thread());
    sys::write_all(2, line.as_bytes());
    let is_own = |&frame: &usize| Module::of(frame).is_some_and(|module| module.is_own());
    let first = trace
        .frames()
        .position(|frame| frame == instruction)
        .unwrap_or_else(|| trace.frames().take_while(is_own).count());
    let mut program = [0; 200];
    let program = files::program(&mut program);
    for (number, frame) in trace.frames().skip(first).enumerate() {
        line.clear();
        let _ = write!(line, "  #{number} {frame:#x}");
        if let Some(module) = Module::of(frame) {
            let name = match module.name() {
                b"" => program,
                name => name,
            };
            line.push(b' ');
            name.iter().take(200).for_each(|&byte| line.push(byte));
            let _ = write!(line, "+{:#x}", frame.wrapping_sub(module.base));
        }
        line.push(b'\n');
        sys::write_all(2, line.as_bytes());
    }
}
