//! The state of each vCPU: the chunk that it is filling.

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use contigua_program::cues::Calls;
use contigua_program::exclusion::Stage;
use contigua_program::plan::Mode;
use contigua_program::ring::{CHUNK_WORDS, Held};
use contigua_program::wire::{
    ADDRESS_MASK, AccessWord, BlockId, Cue, Event, MAX_RECORD_WORDS, block_word,
};
use contigua_units::{PAGE_BYTES, VirtAddr};

use crate::{clock, plugin, touched};

/// Indices that vCPUs of one process can have. QEMU gives a new one the index above the highest that
/// is in use, so that threads which start each other need as many as they are, however few there are
/// at a time.
const MAX_VCPUS: usize = 1 << 20;
/// Number of lowest bits of a block's argument that hold its number of instructions, so that one
/// instruction reads it; the block's number is above them.
pub const COUNT_BITS: u32 = 16;
/// Instructions of the plan that a thread takes at a time: of eight threads together, no more than
/// the plan allows for.
const TAKE: u64 = 1 << 13;
/// Instructions after which it is told that a thread went forward.
const TELL: u64 = 1 << 22;

/// A vCPU's place to write. On a cache line of its own.
#[repr(C, align(64))]
struct Vcpu {
    /// Instructions that may be executed before more of the plan is taken; 0 when not going forward,
    /// so that one comparison finds both.
    budget: u64,
    /// Bits of the map of touched pages that make a load, and a store, redundant; 0 outside
    /// fast-forward.
    known: [u8; 2],
    goes_forward: bool,
    thread: u32,
    /// The map of touched pages; 0 where the plan has no need of it.
    map: usize,
    /// Address of the next word; null when no chunk is held.
    cursor: *mut u64,
    /// End of the chunk; null when no chunk is held, so that one comparison finds both.
    limit: *mut u64,
    /// Instructions of the plan that were taken and not executed, when not going forward.
    left: u64,
    /// Instructions executed going forward that were not told, and `budget`.
    forward: u64,
    held: Option<Held>,
    /// Calls of the function whose calls are the regions, from the first call of any. All of a
    /// state that is not used is zero, so that states take no room in the library's file.
    calls: Option<Box<Calls>>,
}

/// Threads of this process that are in a call of the function of interest.
static CALLING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The vCPU of this host thread: QEMU does not say for which it translates.
    static OWN: Cell<Option<u32>> = const { Cell::new(None) };
}

struct Vcpus(UnsafeCell<[Vcpu; MAX_VCPUS]>);

/// One more than the highest index that a vCPU has had.
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: element i is used by the host thread of vCPU i only. The exceptions are `start_after_fork`,
// which runs in a process of one thread, and `publish_all`, which QEMU calls when no thread executes
// guest code, for elements whose threads cannot use them any more (`STAGES`).
unsafe impl Sync for Vcpus {}

/// Stages of the threads of vCPUs, in the order of `VCPUS`.
static STAGES: [Stage; MAX_VCPUS] = [const { Stage::new() }; MAX_VCPUS];

/// Those that a thread has had, by index.
fn used_stages() -> impl Iterator<Item = (u32, &'static Stage)> {
    (0..).zip(&STAGES[..USED.load(Ordering::Acquire)])
}

fn stage(index: u32) -> &'static Stage {
    &STAGES[index as usize]
}

/// The thread leaves guest code for a system call; `false` when the process has ended meanwhile, and
/// the thread has no state any more.
#[must_use]
pub fn leave_guest(index: u32) -> bool {
    stage(index).leave()
}

/// Returns true if the thread is in a system call that it left guest code for.
#[must_use]
pub fn is_outside_guest(index: u32) -> bool {
    stage(index).is_outside()
}

/// The thread goes on in guest code.
pub fn enter_guest(index: u32) {
    stage(index).enter();
}

static VCPUS: Vcpus = Vcpus(UnsafeCell::new(
    [const {
        Vcpu {
            budget: 0,
            known: [0, 0],
            goes_forward: false,
            thread: 0,
            map: 0,
            cursor: ptr::null_mut(),
            limit: ptr::null_mut(),
            left: 0,
            forward: 0,
            held: None,
            calls: None,
        }
    }; MAX_VCPUS],
));

/// The state of a vCPU.
///
/// # Safety
/// Only for the vCPU's own host thread, with no other reference to it alive. `index` must have
/// passed [`start`].
#[inline]
unsafe fn state<'a>(index: u32) -> &'a mut Vcpu {
    // SAFETY: in bounds since `start` checked the index; exclusive by this function's contract.
    unsafe { &mut *VCPUS.0.get().cast::<Vcpu>().add(index as usize) }
}

/// Prepares the state of a new guest thread, which is outside of guest code until
/// [`enter_guest`].
pub fn start(index: u32) {
    if index as usize >= MAX_VCPUS {
        crate::fail(&format!(
            "the program has had more than {MAX_VCPUS} threads that started each other, which is not \
             supported"
        ));
    }
    USED.fetch_max(index as usize + 1, Ordering::AcqRel);
    stage(index).begin();
    // SAFETY: called on the new vCPU's own thread, before any other callback of it.
    let vcpu = unsafe { state(index) };
    vcpu.thread = plugin().producer.ring().new_thread();
    vcpu.map = touched::map();
    vcpu.plan(false, 0, 0);
    vcpu.calls = None;
    OWN.set(Some(index));
    // The mode is known before the first block is translated.
    take_planned(vcpu, 1);
}

/// A guest thread has ended.
pub fn end(index: u32) {
    follow(index, Calls::leave);
    publish(index);
    // SAFETY: as in `execute`.
    unsafe { state(index) }.plan(false, 0, 0);
    stage(index).end();
}

/// Forgets, in a forked child, the chunks that belong to the parent, and gives the only thread
/// that is left a new identity.
pub fn start_after_fork(index: u32) {
    // A forked child has one thread, which has all states.
    for index in 0..USED.load(Ordering::Acquire) as u32 {
        // SAFETY: no other thread exists.
        let vcpu = unsafe { state(index) };
        // The parent still fills this chunk: forgotten, not given back.
        vcpu.held = None;
        vcpu.cursor = ptr::null_mut();
        vcpu.limit = ptr::null_mut();
    }
    used_stages().for_each(|(_, stage)| stage.end());
    CALLING.store(0, Ordering::Relaxed);
    start(index);
}

impl Vcpu {
    /// Instructions of the plan that were taken and not executed.
    fn left(&self) -> u64 {
        self.left + self.budget
    }

    /// Instructions executed going forward that were not told.
    fn untold(&self) -> u64 {
        self.forward - self.budget
    }

    /// Sets the mode and length of the next segment.
    fn plan(&mut self, goes_forward: bool, left: u64, untold: u64) {
        self.goes_forward = goes_forward;
        if goes_forward {
            (self.budget, self.left) = (left, 0);
            self.known = [touched::LOADED, touched::STORED];
        } else {
            (self.budget, self.left) = (0, left);
            self.known = [0, 0];
        }
        self.forward = self.budget + untold;
    }
}

/// A marker begins or ends the region of all threads, before the block that has it.
#[cold]
pub fn mark(index: u32, cue: Cue) {
    let ring = plugin().producer.ring();
    // What follows a begin comes after it in the stream, and what another thread does after it has
    // seen the end comes after that.
    match cue {
        Cue::Begin if !ring.is_marked() => {
            tell_cue(index, cue);
            ring.cue(cue);
        }
        Cue::End if ring.cue(cue) => tell_cue(index, cue),
        _ => {}
    }
}

/// The thread enters the function of interest.
#[cold]
pub fn enter_function(index: u32) {
    // SAFETY: as in `execute`.
    let calls = unsafe { &mut state(index).calls };
    if calls.get_or_insert_with(|| Box::new(Calls::new())).enter() {
        CALLING.fetch_add(1, Ordering::Relaxed);
        tell_cue(index, Cue::Enter);
        plugin().producer.ring().cue(Cue::Enter);
    }
}

/// The thread calls or returns, which may end the call of the function of interest.
#[inline]
pub fn follow(index: u32, moves: impl FnOnce(&mut Calls) -> bool) {
    // SAFETY: as in `execute`.
    let calls = unsafe { &mut state(index).calls };
    // The call that leads to the function of interest comes before its first block.
    if moves(calls.get_or_insert_with(|| Box::new(Calls::new()))) {
        leave_function(index);
    }
}

#[cold]
fn leave_function(index: u32) {
    let one_less = |calling: u32| calling.checked_sub(1);
    let left = CALLING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    if left.is_ok() {
        plugin().producer.ring().cue(Cue::Leave);
        tell_cue(index, Cue::Leave);
    }
}

/// The process ends, or becomes another program: none of its calls returns.
pub fn leave_functions(index: u32) {
    while CALLING.load(Ordering::Relaxed) > 0 {
        leave_function(index);
    }
}

/// Tells that a region begins or ends; the mode may be another one from the next block on.
fn tell_cue(index: u32, cue: Cue) {
    append_event(index, &Event::Cue(cue));
    publish(index);
}

/// A block of `count` instructions is what its callback is given.
pub fn block_argument(number: BlockId, count: usize) -> u64 {
    u64::from(number.0) << COUNT_BITS | count as u64
}

/// A block begins to execute: `block` is its [`block_argument`].
#[inline]
pub fn execute(index: u32, block: u64) {
    // SAFETY: QEMU calls back on the vCPU's own thread, and callbacks do not nest.
    let vcpu = unsafe { state(index) };
    match vcpu.budget.checked_sub(count_of(block)) {
        Some(left) => vcpu.budget = left,
        None => execute_beyond(vcpu, block),
    }
}

fn count_of(block: u64) -> u64 {
    block & ((1 << COUNT_BITS) - 1)
}

/// A block that is told, or for which more of the plan must be taken.
#[inline(never)]
fn execute_beyond(vcpu: &mut Vcpu, block: u64) {
    let count = count_of(block);
    if vcpu.left < count {
        take_planned(vcpu, count);
    }
    if vcpu.goes_forward {
        vcpu.budget -= count;
    } else {
        vcpu.left -= count;
        append(vcpu, block_word(BlockId((block >> COUNT_BITS) as u32)));
    }
}

/// Returns true if an access is redundant: the vCPU fast-forwards, and the page was touched in this
/// way before. `store` is 0 or 1. Only where there is a map of touched pages.
#[inline]
pub fn passes_over(index: u32, address: u64, store: u64) -> bool {
    /// Bits of an address that are all set in the last bytes of a page, as many as the largest access
    /// has: what begins there may reach into the next page.
    const LAST: u64 = PAGE_BYTES - 16;
    // SAFETY: as in `execute`.
    let vcpu = unsafe { state(index) };
    let known = vcpu.known[store as usize & 1];
    touched::kinds(vcpu.map, address) & known != 0 && address & LAST != LAST
}

/// An access: `word` is its word.
#[inline]
pub fn append_access(index: u32, word: AccessWord) {
    // SAFETY: as in `execute`.
    let vcpu = unsafe { state(index) };
    if vcpu.goes_forward {
        pass_over(vcpu, word);
    } else {
        append(vcpu, word.0);
    }
}

/// Tells an access if it is the first to its page, or to the next one into which it reaches.
#[inline]
fn pass_over(vcpu: &mut Vcpu, word: AccessWord) {
    let (address, store) = (word.address(), word.is_store());
    let last = address + word.bytes() - 1;
    let mut is_first = touched::is_first(address, store);
    if address / PAGE_BYTES != last / PAGE_BYTES {
        is_first |= touched::is_first(last, store);
    }
    if is_first {
        tell_forward(vcpu);
        append(vcpu, word.0);
    }
}

/// QEMU translates code at this address, which is executed next.
pub fn tell_code(address: u64, bytes: u64) {
    let Some(index) = OWN.get() else {
        return;
    };
    // SAFETY: as in `execute`: QEMU translates on the vCPU's own thread.
    if !unsafe { state(index) }.goes_forward {
        return;
    }
    let last = address + bytes.max(1) - 1;
    for page in [address, last].map(|at| VirtAddr::new(at & ADDRESS_MASK).align_down(PAGE_BYTES)) {
        if touched::is_first_fetch(page.get()) {
            append_event(index, &Event::Fetch { page });
        }
    }
}

/// Takes instructions of the plan until there are at least `count`.
#[cold]
#[inline(never)]
fn take_planned(vcpu: &mut Vcpu, count: u64) {
    let plugin = plugin();
    let (mut left, mut goes_forward) = (vcpu.left(), vcpu.goes_forward);
    while left < count {
        let taken = plugin.producer.ring().take_planned(&plugin.plan, TAKE);
        left += taken.instructions;
        let forward = taken.mode == Mode::Forward;
        if goes_forward && (taken.begins || !forward || vcpu.untold() >= TELL) {
            tell_forward(vcpu);
            give_back(vcpu);
        }
        goes_forward = forward;
    }
    vcpu.plan(goes_forward, left, vcpu.untold());
}

/// Tells how many instructions were executed going forward.
fn tell_forward(vcpu: &mut Vcpu) {
    let instructions = vcpu.untold();
    if instructions > 0 {
        vcpu.forward = vcpu.budget;
        append_record(vcpu, &Event::Forward { instructions });
    }
}

/// Appends one word to the chunk of a vCPU.
#[inline]
fn append(vcpu: &mut Vcpu, word: u64) {
    if vcpu.cursor == vcpu.limit {
        refill(vcpu);
    }
    // SAFETY: `cursor` lies within the chunk that this vCPU holds, below `limit`.
    unsafe {
        vcpu.cursor.write(word);
        vcpu.cursor = vcpu.cursor.add(1);
    }
}

/// Appends an event; all its words go into one chunk.
pub fn append_event(index: u32, event: &Event) {
    // SAFETY: as in `execute`.
    let vcpu = unsafe { state(index) };
    tell_forward(vcpu);
    append_record(vcpu, event);
}

fn append_record(vcpu: &mut Vcpu, event: &Event) {
    let room = (vcpu.limit as usize - vcpu.cursor as usize) / size_of::<u64>();
    if room < MAX_RECORD_WORDS {
        refill(vcpu);
    }
    for &word in event.encode().words() {
        append(vcpu, word);
    }
}

/// Publishes what a vCPU has written. It then holds no chunk, and others may have what it took of the
/// plan: it may wait.
pub fn publish(index: u32) {
    // SAFETY: as in `execute`.
    let vcpu = unsafe { state(index) };
    tell_forward(vcpu);
    give_back(vcpu);
    plugin().producer.ring().return_planned(vcpu.left());
    vcpu.plan(vcpu.goes_forward, 0, 0);
}

/// Publishes what the vCPUs have written that were executing guest code. Only while none of them
/// does. One that is in a system call has published what came before; what it would say of the call
/// is lost with the process.
pub fn publish_all() {
    for (index, stage) in used_stages() {
        if stage.close() {
            // SAFETY: QEMU calls the exit callback after it took all vCPUs out of instrumented code,
            // and this one can no longer use its state in system calls.
            let vcpu = unsafe { state(index) };
            tell_forward(vcpu);
            give_back(vcpu);
        }
    }
}

#[cold]
#[inline(never)]
fn refill(vcpu: &mut Vcpu) {
    give_back(vcpu);
    let (held, words) = plugin().producer.acquire();
    vcpu.held = Some(held);
    vcpu.cursor = words;
    // SAFETY: one past the end of the chunk's words.
    vcpu.limit = unsafe { words.add(CHUNK_WORDS) };
}

fn give_back(vcpu: &mut Vcpu) {
    if let Some(held) = vcpu.held.take() {
        let free = (vcpu.limit as usize - vcpu.cursor as usize) / size_of::<u64>();
        let length = CHUNK_WORDS - free;
        if clock::is_on() {
            // SAFETY: the chunk's words up to the cursor were written by this vCPU, which still
            // holds it.
            clock::advance(unsafe { std::slice::from_raw_parts(vcpu.cursor.sub(length), length) });
        }
        plugin().producer.publish(held, vcpu.thread, length);
    }
    vcpu.cursor = ptr::null_mut();
    vcpu.limit = ptr::null_mut();
}
