//! The operating system below a heap, simulated.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use contigua_pageheap::replay::VirtualOs;
use contigua_pageheap::{HUGE_BYTES, Metadata, Os};
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::sources::Program;
use contigua_program::syscall::Architecture;
use contigua_program::wire::Syscall;
use contigua_translation::TranslatorCounters;
use contigua_units::{Frame, Nanoseconds, PageSize, VirtAddr};

use crate::config::{Detail, RunConfig};
use crate::{Engine, Error, Report};

// Numbers of `arch/x86/entry/syscalls/syscall_64.tbl`, and of `include/uapi/asm-generic`.
const MMAP: u16 = 9;
const MPROTECT: u16 = 10;
const MADVISE: u16 = 28;
const NO_ACCESS: u64 = 0;
const READ_WRITE: u64 = 3;
const PRIVATE_ANONYMOUS: u64 = 0x22;
const MADV_DONTNEED: u64 = 4;
const MADV_HUGEPAGE: u64 = 14;
const MADV_COLLAPSE: u64 = 25;

/// Where the heap's addresses begin.
const FIRST_ADDRESS: usize = 1 << 40;
/// Behind them, 64 TB of a process's 128.
const LAST_ADDRESS: usize = 1 << 46;

/// How a page of the heap is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The 4 KB frame at the address.
    pub frame: Frame,
    /// Size of the page that it is part of.
    pub size: PageSize,
    /// True if it may be written without a fault.
    pub writable: bool,
}

/// A simulated server with one program, whose memory a heap manages. Clones are the same server.
#[derive(Clone)]
pub struct SimulatedServer {
    engine: Rc<RefCell<Engine>>,
    /// Nanoseconds since the start.
    clock: Rc<Cell<u64>>,
    next_address: Rc<Cell<usize>>,
    /// Why the server could not do what the heap asked of it.
    failure: Rc<RefCell<Option<Error>>>,
}

impl SimulatedServer {
    /// A server as configured, whose memory has gone through what the configuration says. There is
    /// one core, and no instruction window: nobody executes instructions ([`Detail::Full`] is
    /// [`Detail::Additive`] here).
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn new(mut config: RunConfig, cancel: &AtomicBool) -> Result<Self, Error> {
        if config.detail == Detail::Full {
            config.detail = Detail::Additive;
        }
        config.cores = 1;
        let program = Program {
            command: vec!["page heap".to_owned()],
            architecture: Architecture::X86_64,
            reports_mappings: true,
            plan: Plan::default(),
            layout: Layout::default(),
        };
        Ok(Self {
            engine: Rc::new(RefCell::new(Engine::prepare(config, program, cancel)?)),
            clock: Rc::new(Cell::new(0)),
            next_address: Rc::new(Cell::new(FIRST_ADDRESS)),
            failure: Rc::default(),
        })
    }

    /// The system that a heap on this server talks to.
    #[must_use]
    pub fn os(&self) -> ServerOs {
        ServerOs {
            server: self.clone(),
            metadata: VirtualOs::new(self.clock.clone()),
        }
    }

    /// Lets time pass until `now`, in nanoseconds: for the heap's clock, and for the kernel's threads
    /// and its background pass.
    pub fn pass_until(&self, now: u64) {
        self.clock.set(now.max(self.clock.get()));
        let mut engine = self.engine.borrow_mut();
        let now = Nanoseconds::new(self.clock.get()).at(engine.config.machine.clock);
        engine.background_at(now);
    }

    /// The program reads or writes the word at an address.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the server has no page for it, and what the heap ran into before.
    pub fn touch(&self, address: usize, store: bool) -> Result<(), Error> {
        self.check()?;
        let address = VirtAddr::new(address as u64);
        let mut engine = self.engine.borrow_mut();
        engine.touch_word(address, store)
    }

    /// How the page at an address is mapped; nothing if it is not.
    #[must_use]
    pub fn mapping(&self, address: usize) -> Option<Mapping> {
        let address = VirtAddr::new(address as u64);
        let leaf = self.engine.borrow().leaf(address)?;
        let inside = address.get() % leaf.size.bytes() / PageSize::Size4K.bytes();
        Some(Mapping {
            frame: leaf.frame.offset(inside as u32),
            size: leaf.size,
            writable: leaf.writable,
        })
    }

    /// Returns the server's counts so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.engine.borrow().report()
    }

    /// Resident bytes of the program now, and of these the ones in pages larger than 4 KB.
    #[must_use]
    pub fn resident(&self) -> [u64; 2] {
        self.engine.borrow().kernel.resident_now()
    }

    /// Counters of page walks.
    pub(super) fn walks(&self) -> TranslatorCounters {
        self.engine.borrow_mut().walks()
    }

    /// Checks every structure of the server.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        self.engine.borrow().validate()
    }

    /// The first thing that the server could not do for the heap, if there was one.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), Error> {
        match self.failure.borrow_mut().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Makes a system call. False if the server has no memory for it.
    fn call(&self, number: u16, arguments: [u64; 6], result: usize) -> bool {
        let syscall = Syscall {
            number,
            arguments,
            result: result.cast_signed() as i64,
        };
        match self.engine.borrow_mut().call(syscall) {
            Ok(()) => true,
            Err(error) => {
                self.failure.borrow_mut().get_or_insert(error);
                false
            }
        }
    }

    fn advise(&self, address: usize, bytes: usize, advice: u64) -> bool {
        let arguments = [address as u64, bytes as u64, advice, 0, 0, 0];
        self.call(MADVISE, arguments, 0)
    }
}

/// A simulated server as the page heap sees it. What it does is what
/// [`linux`](contigua_pageheap::linux) does, call by call.
pub struct ServerOs {
    server: SimulatedServer,
    /// Memory for the heap's own records, which is not simulated.
    metadata: VirtualOs,
}

impl Os for ServerOs {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        self.metadata.metadata(bytes)
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let next = &self.server.next_address;
        let address = next.get().checked_next_multiple_of(align)?;
        let end = address.checked_add(bytes)?;
        if end > LAST_ADDRESS {
            return None;
        }
        let arguments = [0, bytes as u64, NO_ACCESS, PRIVATE_ANONYMOUS, 0, 0];
        if !self.server.call(MMAP, arguments, address) {
            return None;
        }
        self.server.next_address.set(end);
        Some(address)
    }

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        let arguments = [address as u64, bytes as u64, READ_WRITE, 0, 0, 0];
        self.server.call(MPROTECT, arguments, 0)
            && self.server.advise(address, bytes, MADV_HUGEPAGE)
    }

    fn release(&mut self, address: usize, bytes: usize) -> bool {
        self.server.advise(address, bytes, MADV_DONTNEED)
    }

    /// Returns Linux's answer: true if there is one huge page afterwards.
    fn collapse(&mut self, address: usize) -> bool {
        self.server.advise(address, HUGE_BYTES, MADV_COLLAPSE)
            && self
                .server
                .mapping(address)
                .is_some_and(|mapping| mapping.size >= PageSize::Size2M)
    }

    fn now(&self) -> u64 {
        self.server.clock.get()
    }
}
