//! What the process tells before it ends because of a slot: the mistake, the object, and where it was allocated, freed
//! and misused. All of it may happen in a handler of `SIGSEGV`: no memory is allocated, and no lock of others is taken.

use core::ffi::c_void;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::slot::{COUNT, SLOTS, Slot, State, Trace, index_of};
use crate::lock::Guarded;
use crate::maps::MapsLine;
use crate::sys::{self, Line};
use crate::{files, tls};

/// What is no fault.
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

static MODULES: Guarded<Modules> = Guarded::new(Modules {
    known: [const { Module::NONE }; Modules::MOST],
    count: 0,
    chunk: [0; Modules::CHUNK],
});
/// Where the report is made.
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

/// The slot whose object, or last one, lies nearest to `address`, if it is one of the neighbours.
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

/// How the program accessed memory, as far as the processor tells, and the address of the instruction.
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

/// Where the object was allocated and freed.
fn history(slot: Option<&Slot>) {
    let Some(slot) = slot else {
        return;
    };
    let mut modules = MODULES.lock();
    for (what, trace) in [("allocated", &slot.allocated), ("freed", &slot.freed)] {
        modules.write(what, trace, 0);
    }
}

/// Where the calling thread is; from `instruction` on if that is not 0.
#[inline(never)]
fn here(instruction: usize) {
    HERE.take();
    if instruction != 0 && !HERE.frames().any(|frame| frame == instruction) {
        // The unwinder does not pass the handler.
        HERE.keep(&[instruction]);
    }
    MODULES.lock().write("noticed", &HERE, instruction);
}

/// What an executable mapping is called.
#[derive(Clone, Copy)]
struct Module {
    begin: usize,
    end: usize,
    /// What addresses in its file are relative to.
    base: usize,
    name: [u8; Module::NAME],
    length: usize,
}

impl Module {
    const NAME: usize = 200;
    const NONE: Self = Self {
        begin: 0,
        end: 0,
        base: 0,
        name: [0; Self::NAME],
        length: 0,
    };

    fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }

    fn is_own(&self) -> bool {
        let file = self.name().rsplit(|&byte| byte == b'/').next();
        file.is_some_and(|file| file.starts_with(b"libcontigua_malloc."))
    }
}

struct Modules {
    known: [Module; Modules::MOST],
    count: usize,
    /// A piece of `/proc/self/maps`.
    chunk: [u8; Modules::CHUNK],
}

impl Modules {
    const MOST: usize = 32;
    const CHUNK: usize = 8192;

    fn find(&self, address: usize) -> Option<&Module> {
        self.known[..self.count]
            .iter()
            .find(|module| (module.begin..module.end).contains(&address))
    }

    /// Write a stack without the frames of this library, or of what lies above `instruction`.
    fn write(&mut self, what: &str, trace: &Trace, instruction: usize) {
        if trace.frames().next().is_none() {
            return;
        }
        self.learn(trace);
        let mut line = Line::<320>::new();
        let _ = writeln!(line, "{what} by thread {:#x}:", trace.thread());
        sys::write_all(2, line.as_bytes());
        let is_own = |&frame: &usize| self.find(frame).is_some_and(Module::is_own);
        let first = trace
            .frames()
            .position(|frame| frame == instruction)
            .unwrap_or_else(|| trace.frames().take_while(is_own).count());
        for (number, frame) in trace.frames().skip(first).enumerate() {
            line.clear();
            let _ = write!(line, "  #{number} {frame:#x}");
            if let Some(module) = self.find(frame) {
                line.push(b' ');
                module.name().iter().for_each(|&byte| line.push(byte));
                let _ = write!(line, "+{:#x}", frame.wrapping_sub(module.base));
            }
            line.push(b'\n');
            sys::write_all(2, line.as_bytes());
        }
    }

    /// Find the modules of a stack's frames.
    fn learn(&mut self, trace: &Trace) {
        let Ok(file) = files::open_to_read(c"/proc/self/maps") else {
            return;
        };
        let mut first = Module::NONE;
        let (mut held, mut offset) = (0, 0);
        loop {
            let read = files::read_at(file, offset, &mut self.chunk[held..]);
            offset += read as u64;
            let filled = held + read;
            let mut begin = 0;
            while let Some(length) = self.chunk[begin..filled]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let line = begin..begin + length;
                begin = line.end + 1;
                if let Some(module) = Self::line(&self.chunk[line], &mut first, trace) {
                    self.keep(module);
                }
            }
            // A line that is too long for a name is none.
            held = if begin == 0 && filled == Self::CHUNK {
                0
            } else {
                filled - begin
            };
            self.chunk.copy_within(begin..begin + held, 0);
            if read == 0 {
                break;
            }
        }
        files::close(file);
    }

    /// The module that a line describes, if it has a frame. `first` is where the last file begins.
    fn line(line: &[u8], first: &mut Module, trace: &Trace) -> Option<Module> {
        let line = MapsLine::parse(line)?;
        let mut module = Module {
            begin: line.begin,
            end: line.end,
            ..Module::NONE
        };
        module.length = line.name.len().min(Module::NAME);
        module.name[..module.length].copy_from_slice(&line.name[..module.length]);
        if line.offset == 0 {
            module.base = if line.readable { line.begin } else { 0 };
            *first = module;
        } else if first.name() == module.name() {
            module.base = first.base;
        }
        let range = line.begin..line.end;
        if !line.executable || !trace.frames().any(|frame| range.contains(&frame)) {
            return None;
        }
        if module.base != 0 && is_fixed(module.base) {
            module.base = 0;
        }
        Some(module)
    }

    fn keep(&mut self, module: Module) {
        if self.count < Self::MOST && self.find(module.begin).is_none() {
            self.known[self.count] = module;
            self.count += 1;
        }
    }
}

/// Whether the file that is mapped at `base` is a program that lies where its file says: addresses are relative to 0.
fn is_fixed(base: usize) -> bool {
    const EXECUTABLE: u16 = 2; // ET_EXEC
    // SAFETY: a readable mapping of a page at least begins here.
    unsafe {
        (base as *const [u8; 4]).read() == *b"\x7fELF"
            && ((base + 16) as *const u16).read() == EXECUTABLE
    }
}
