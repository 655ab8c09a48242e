//! Bytes as a sequence of calls of the whole C and POSIX surface, against a model of what C, POSIX
//! and glibc promise. The fuzz target `malloc_surface` and the test `promises` share it.
//!
//! Checked after each call: what is live does not overlap, is aligned and long enough, keeps its
//! contents; `calloc` gives zeros; `errno` changes on failure and on nothing else; requests that
//! no machine can serve fail, and all others succeed. Objects wander between threads, which run
//! one after another or at the same time.

use contigua_malloc::c_api as c;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Bytes that are live at most, so that a small machine has room for the fuzzer, too.
const MOST_LIVE_BYTES: usize = 96 << 20;
/// Objects up to this size are written whole, larger ones at their ends and at every 509th byte.
const WHOLE_BYTES: usize = 2048;
/// Value of `errno` before each call; no error has this number.
const UNTOUCHED: c_int = 4321;

/// Ranges of all live objects, by their beginning.
static RANGES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
/// True if a hard limit is set, so that any allocation may fail.
static LIMITED: AtomicBool = AtomicBool::new(false);
static NEXT_SEED: AtomicU64 = AtomicU64::new(1);

/// Whom the allocator serves while a sequence runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// The sequence alone: limits may be set, and nothing may be left when it is over.
    SequenceOnly,
    /// The whole process, this harness among it.
    Whole,
}

/// Run the sequence that `bytes` mean.
///
/// # Panics
/// If the allocator breaks a promise.
pub fn run(bytes: &[u8], process: Process) {
    let mut model = Model {
        live: Vec::new(),
        process,
    };
    model.all(&mut Input(bytes), Nesting::Outer);
    if process == Process::SequenceOnly {
        c::contigua_malloc_set_limit(0, 0);
        LIMITED.store(false, Ordering::Relaxed);
    }
    while let Some(object) = model.live.pop() {
        Model::free(object, 0);
    }
    if process == Process::SequenceOnly {
        c::contigua_malloc_flush();
        for name in [c"small_in_use", c"large_objects", c"heap_used"] {
            assert_eq!(figure(name), 0, "{name:?} when all is freed\n{}", figures());
        }
    }
}

/// Rest of the input; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn half(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    fn part(&mut self, length: usize) -> Input<'a> {
        let length = length.min(self.0.len());
        Input(self.0.split_off(..length).unwrap_or(&[]))
    }

    /// A size that a machine has.
    fn size(&mut self) -> usize {
        match self.byte() % 16 {
            0..6 => usize::from(self.byte()),
            6..10 => self.half() % 5000,
            10 => self.half() * 5,
            // Around borders of classes, pages and huge pages.
            11 | 12 => {
                let log = u32::from(self.byte() % 23);
                let eighths = 8 + usize::from(self.byte() % 8);
                ((eighths << log) / 8 + 2).saturating_sub(usize::from(self.byte() % 5))
            }
            13 => (192 << 10) + self.half() * 4,
            14 => self.half() << 6,
            _ => self.half() << 8,
        }
    }

    fn align(&mut self) -> usize {
        let byte = self.byte();
        1 << if byte < 200 { byte % 13 } else { byte % 28 }
    }

    /// A size that no machine has.
    fn impossible(&mut self) -> usize {
        let less = self.half();
        if self.byte().is_multiple_of(2) {
            usize::MAX - less
        } else {
            isize::MAX as usize + 1 + less
        }
    }
}

#[derive(Clone, Copy)]
struct Object {
    address: usize,
    /// Bytes that the program may use.
    size: usize,
    /// Bytes that the allocator says it may use.
    usable: usize,
    align: usize,
    seed: u64,
}

impl Object {
    fn pointer(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    fn offsets(size: usize) -> impl Iterator<Item = usize> {
        let step = if size <= WHOLE_BYTES { 1 } else { 509 };
        (0..size).step_by(step).chain(size.saturating_sub(64)..size)
    }

    fn stamp_at(&self, offset: usize) -> u8 {
        (self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
            ^ (offset as u8).wrapping_mul(167)
            ^ (offset >> 8) as u8
    }

    /// Write the object's pattern into its first `size` bytes.
    fn stamp(&self) {
        for offset in Self::offsets(self.size) {
            // SAFETY: the allocator promised this many bytes.
            unsafe { ((self.address + offset) as *mut u8).write(self.stamp_at(offset)) };
        }
    }

    /// Checks that the pattern is still in the first `size` bytes.
    fn check(&self, size: usize) {
        for offset in Self::offsets(self.size).filter(|&offset| offset < size) {
            // SAFETY: as in `stamp`; or what `realloc` kept of it.
            let found = unsafe { ((self.address + offset) as *const u8).read() };
            assert_eq!(
                found,
                self.stamp_at(offset),
                "byte {offset} of {} at {:#x}",
                self.size,
                self.address
            );
        }
    }
}

fn errno() -> *mut c_int {
    // SAFETY: the C library keeps an `errno` for each thread.
    unsafe { libc::__errno_location() }
}

/// The result of a call and what it left in `errno`.
///
/// A compiler knows these functions by their names: it would answer from what they should do, say
/// that memory from `calloc` is zero, instead of looking. So results pass through `black_box`.
fn calling<T>(call: impl FnOnce() -> T) -> (T, c_int) {
    // SAFETY: see `errno`.
    unsafe { black_box(errno()).write(UNTOUCHED) };
    let result = black_box(call());
    // SAFETY: see `errno`.
    (result, unsafe { black_box(errno()).read() })
}

fn figure(name: &CStr) -> i64 {
    // SAFETY: the name is NUL-terminated.
    unsafe { c::contigua_malloc_figure(name.as_ptr()) }
}

/// All figures, as the allocator writes them.
fn figures() -> String {
    let mut text = vec![0_u8; 16 << 10];
    // SAFETY: within the vector.
    unsafe { c::contigua_malloc_stats(text.as_mut_ptr().cast(), text.len()) };
    let text = CStr::from_bytes_until_nul(&text).expect("a zero at the end");
    text.to_string_lossy().into_owned()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Outer,
    Inner,
}

/// A call that allocates.
#[derive(Clone, Copy)]
enum Way {
    Malloc,
    Calloc(usize),
    Realloc,
    ReallocArray(usize),
    AlignedAlloc(usize),
    Memalign(usize),
    PosixMemalign(usize),
    Valloc,
    Pvalloc,
}

impl Way {
    fn decode(input: &mut Input<'_>) -> Self {
        match input.byte() % 16 {
            0..5 => Self::Malloc,
            5..8 => Self::Calloc(1 + usize::from(input.byte() % 7)),
            8 => Self::Realloc,
            9 => Self::ReallocArray(1 + usize::from(input.byte() % 7)),
            10 | 11 => Self::AlignedAlloc(input.align()),
            12 => Self::Memalign(input.align()),
            13 => Self::PosixMemalign(input.align().max(8)),
            14 => Self::Valloc,
            _ => Self::Pvalloc,
        }
    }

    /// The memory, and the error: `errno`, or what `posix_memalign` returns instead.
    fn call(self, size: usize) -> (*mut c_void, c_int) {
        calling(|| match self {
            Self::Malloc => c::malloc(size),
            Self::Calloc(count) => c::calloc(count, size.div_ceil(count)),
            // SAFETY: null is allowed.
            Self::Realloc => unsafe { c::realloc(null_mut(), size) },
            // SAFETY: null is allowed.
            Self::ReallocArray(count) => unsafe {
                c::reallocarray(null_mut(), count, size.div_ceil(count))
            },
            Self::AlignedAlloc(align) => c::aligned_alloc(align, size),
            Self::Memalign(align) => c::memalign(align, size),
            Self::PosixMemalign(align) => {
                let untouched = NonNull::dangling().as_ptr();
                let mut memory = untouched;
                // SAFETY: the pointer is to a live variable.
                let error = unsafe { c::posix_memalign(&raw mut memory, align, size) };
                // SAFETY: see `errno`.
                let now = unsafe { black_box(errno()).read() };
                assert_eq!(now, UNTOUCHED, "posix_memalign does not set errno");
                if error != 0 {
                    assert_eq!(memory, untouched, "a failure leaves the pointer alone");
                    // SAFETY: see `errno`. What others set, so that one check serves all.
                    unsafe { errno().write(error) };
                    return null_mut();
                }
                memory
            }
            Self::Valloc => c::valloc(size),
            Self::Pvalloc => c::pvalloc(size),
        })
    }

    /// The alignment that `size` bytes have got to have.
    fn align(self, size: usize) -> usize {
        match self {
            Self::AlignedAlloc(align) | Self::Memalign(align) | Self::PosixMemalign(align) => align,
            Self::Valloc | Self::Pvalloc => 4096,
            _ => natural(size),
        }
    }
}

/// Every type of C that fits is aligned.
fn natural(size: usize) -> usize {
    if size > 8 { 16 } else { 8 }
}

struct Model {
    live: Vec<Object>,
    process: Process,
}

impl Model {
    fn all(&mut self, input: &mut Input<'_>, nesting: Nesting) {
        while !input.0.is_empty() {
            self.step(input, nesting);
        }
    }

    fn step(&mut self, input: &mut Input<'_>, nesting: Nesting) {
        match input.byte() {
            0..90 => {
                let (way, size) = (Way::decode(input), input.size());
                self.allocate(way, size);
            }
            90..160 => {
                if let Some(object) = self.choose(input) {
                    Self::free(object, input.byte());
                }
            }
            160..195 => {
                if let Some(object) = self.choose(input) {
                    let size = input.size();
                    self.reallocate(object, size, input.byte());
                }
            }
            195..203 => self.use_all(input),
            203..211 => self.ask_for_the_impossible(input),
            211..217 => Self::ask_for_much(input),
            217..231 => self.control(input),
            231..234 => self.many(input),
            234..240 => self.ask(input),
            240..248 if nesting == Nesting::Outer => self.elsewhere(input),
            248.. if nesting == Nesting::Outer => self.together(input),
            _ => {}
        }
    }

    /// Take an object out of the live ones.
    fn choose(&mut self, input: &mut Input<'_>) -> Option<Object> {
        let index = input.half().checked_rem(self.live.len())?;
        Some(self.live.swap_remove(index))
    }

    fn room_for(&self, size: usize) -> bool {
        self.live.iter().map(|object| object.usable).sum::<usize>() + size <= MOST_LIVE_BYTES
    }

    /// Makes an allocation live, if it may be.
    fn adopt(&mut self, pointer: *mut c_void, size: usize, align: usize) -> Object {
        let address = pointer as usize;
        assert!(
            address.is_multiple_of(align),
            "{size} bytes at {address:#x}"
        );
        // SAFETY: the memory is allocated.
        let (usable, error) = calling(|| unsafe { c::malloc_usable_size(pointer) });
        assert_eq!(error, UNTOUCHED, "malloc_usable_size leaves errno alone");
        assert!(usable >= size, "{usable} of {size} bytes");
        assert_eq!(c::contigua_malloc_owns(pointer), 1);
        let mut ranges = RANGES.lock().unwrap();
        let before = ranges.range(..address + usable).next_back();
        assert!(
            before.is_none_or(|(&begin, &length)| begin + length <= address),
            "{usable} bytes at {address:#x} overlap {before:x?}"
        );
        ranges.insert(address, usable);
        drop(ranges);
        let object = Object {
            address,
            size,
            usable,
            align,
            seed: NEXT_SEED.fetch_add(1, Ordering::Relaxed),
        };
        object.stamp();
        self.live.push(object);
        object
    }

    fn forget(object: &Object) {
        let known = RANGES.lock().unwrap().remove(&object.address);
        assert_eq!(known, Some(object.usable));
    }

    fn allocate(&mut self, way: Way, size: usize) {
        if !self.room_for(size) {
            return;
        }
        let (pointer, error) = way.call(size);
        if pointer.is_null() {
            assert!(LIMITED.load(Ordering::Relaxed), "{size} bytes were refused");
            assert_eq!(error, libc::ENOMEM);
            return;
        }
        assert_eq!(error, UNTOUCHED, "an allocation leaves errno alone");
        if let Way::Calloc(_) = way {
            // SAFETY: just allocated with at least this size.
            let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0), "calloc of {size}");
        }
        let object = self.adopt(pointer, size, way.align(size));
        if let Way::Pvalloc = way {
            assert!(object.usable >= size.max(1).next_multiple_of(4096));
        }
    }

    fn free(object: Object, how: u8) {
        object.check(object.size);
        Self::forget(&object);
        let pointer = object.pointer();
        // SAFETY: the object is live and not used any more.
        let ((), error) = calling(|| unsafe {
            match how % 8 {
                0 => c::free_sized(pointer, object.size),
                1 => c::free_aligned_sized(pointer, object.align, object.size),
                2 => assert!(c::realloc(pointer, 0).is_null()),
                3 => assert!(c::reallocarray(pointer, 0, usize::from(how)).is_null()),
                _ => c::free(pointer),
            }
        });
        assert_eq!(error, UNTOUCHED, "free leaves errno alone (POSIX.1-2024)");
    }

    fn reallocate(&mut self, object: Object, size: usize, how: u8) {
        let size = size.max(1);
        object.check(object.size);
        if !self.room_for(object.usable + size) {
            self.live.push(object);
            return;
        }
        // Another thread may get the old range before the call is over.
        Self::forget(&object);
        let pointer = object.pointer();
        // SAFETY: the object is live.
        let (new, error) = calling(|| unsafe {
            if how.is_multiple_of(3) {
                c::reallocarray(pointer, 1, size)
            } else {
                c::realloc(pointer, size)
            }
        });
        if new.is_null() {
            assert!(LIMITED.load(Ordering::Relaxed), "{size} bytes were refused");
            assert_eq!(error, libc::ENOMEM);
            object.check(object.size);
            RANGES.lock().unwrap().insert(object.address, object.usable);
            self.live.push(object);
            return;
        }
        assert_eq!(error, UNTOUCHED, "realloc leaves errno alone");
        let moved = Object {
            address: new as usize,
            ..object
        };
        moved.check(size.min(object.size));
        self.adopt(new, size, natural(size));
    }

    /// All that `malloc_usable_size` says may be used.
    fn use_all(&mut self, input: &mut Input<'_>) {
        if let Some(mut object) = self.choose(input) {
            object.check(object.size);
            object.size = object.usable;
            object.stamp();
            self.live.push(object);
        }
    }

    fn ask_for_the_impossible(&mut self, input: &mut Input<'_>) {
        let way = Way::decode(input);
        let size = input.impossible();
        let (pointer, error) = match way {
            // Half of them by a product that overflows.
            Way::Calloc(count) => calling(|| c::calloc(count * 2, size)),
            Way::ReallocArray(count) => {
                let object = self.choose(input);
                let old = object.map_or(null_mut(), |object| object.pointer());
                // SAFETY: null or live.
                let result = calling(|| unsafe { c::reallocarray(old, count * 2, size) });
                self.live.extend(object);
                result
            }
            Way::Realloc => {
                let object = self.choose(input);
                let old = object.map_or(null_mut(), |object| object.pointer());
                // SAFETY: null or live.
                let result = calling(|| unsafe { c::realloc(old, size) });
                self.live
                    .extend(object.inspect(|object| object.check(object.size)));
                result
            }
            _ => way.call(size),
        };
        assert!(pointer.is_null(), "{size} bytes");
        assert_eq!(error, libc::ENOMEM);
        // Alignments that are none.
        let align = input.half();
        if !align.is_power_of_two() {
            for call in [c::memalign, c::aligned_alloc] {
                let (pointer, error) = calling(|| call(align, 100));
                assert!(pointer.is_null() && error == libc::EINVAL);
            }
        }
        if !align.is_power_of_two() || align < size_of::<usize>() {
            let mut memory = null_mut();
            // SAFETY: the pointer is to a live variable.
            let error = unsafe { c::posix_memalign(&raw mut memory, align, 100) };
            assert!(memory.is_null() && error == libc::EINVAL);
        }
    }

    /// More than the machine may have: it fails cleanly, or works.
    fn ask_for_much(input: &mut Input<'_>) {
        let way = Way::decode(input);
        let size = (1 + input.half()) << (20 + input.byte() % 27);
        let (pointer, error) = match way {
            Way::Calloc(_) => calling(|| c::malloc(size)),
            _ => way.call(size),
        };
        if pointer.is_null() {
            assert_eq!(error, libc::ENOMEM);
            return;
        }
        assert_eq!(error, UNTOUCHED);
        assert!((pointer as usize).is_multiple_of(way.align(size)));
        // SAFETY: allocated, this long, and not used afterwards.
        unsafe {
            pointer.cast::<u8>().write(1);
            pointer.cast::<u8>().add(size - 1).write(2);
            assert!(c::malloc_usable_size(pointer) >= size);
            c::free(pointer);
        }
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let ((), error) = calling(|| match input.byte() % 8 {
            0 => assert!(matches!(c::malloc_trim(input.half() << 8), 0 | 1)),
            1 => assert_eq!(c::mallopt(-1, c_int::from(input.byte())), 1),
            2 => {
                c::contigua_malloc_release(input.half() << 8);
            }
            3 => c::contigua_malloc_flush(),
            4 => assert!(matches!(c::contigua_malloc_periodic(), 0 | 1)),
            5 => c::contigua_malloc_set_policy(input.half() << 12, input.half() as u64),
            6 => {
                let (soft, hard) = (input.half() << 12, input.half() << 12);
                if self.process == Process::SequenceOnly {
                    c::contigua_malloc_set_limit(soft, hard);
                    LIMITED.store(hard != 0, Ordering::Relaxed);
                }
            }
            _ => {
                if self.process == Process::SequenceOnly {
                    c::contigua_malloc_set_limit(0, 0);
                    LIMITED.store(false, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(error, UNTOUCHED, "control leaves errno alone");
    }

    /// Many of a kind, which overflow the caches, and some of them freed again.
    fn many(&mut self, input: &mut Input<'_>) {
        let (count, size) = (input.half() % 700, input.half() % 3000);
        let first = self.live.len();
        for _ in 0..count {
            self.allocate(Way::Malloc, size);
        }
        let stride = 1 + usize::from(input.byte() % 4);
        let mut kept = 0;
        for index in (first..self.live.len()).rev() {
            if index % stride == 0 {
                kept += 1;
            } else {
                let object = self.live.swap_remove(index);
                Self::free(object, 7);
            }
        }
        assert!(kept <= count);
    }

    /// Questions, which change nothing.
    fn ask(&mut self, input: &mut Input<'_>) {
        let large = self.live.iter().filter(|object| object.usable > 512 << 10);
        let (count, bytes) = large.fold((0, 0), |(count, bytes), object| {
            (count + 1, bytes + object.usable)
        });
        let info = c::mallinfo2();
        assert!(info.hblks >= count && info.hblkhd >= bytes);
        let _ = c::mallinfo();
        assert_eq!(figure(c"no such figure"), -1);
        assert!(figure(c"heap_mapped") as usize >= bytes);
        let mut text = [0xff_u8; 4096];
        let size = input.half() % text.len();
        // SAFETY: within the array.
        let length = unsafe { c::contigua_malloc_stats(text.as_mut_ptr().cast(), size) };
        assert!(length > 100);
        if size > 0 {
            let end = length.min(size - 1);
            assert_eq!(text.iter().position(|&byte| byte == 0), Some(end));
        }
        assert!(text[size..].iter().all(|&byte| byte == 0xff));
        for address in [0, 1, 4096, usize::MAX, (&raw const text) as usize] {
            assert_eq!(c::contigua_malloc_owns(address as *const c_void), 0);
        }
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(c::malloc_usable_size(null_mut()), 0);
            c::free(null_mut());
        }
    }

    /// Some steps on another thread, which ends.
    fn elsewhere(&mut self, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let mut part = input.part(length);
        thread::scope(|scope| {
            // The end of a scope waits for the closure only, `join` for the thread's destructors.
            let thread = scope.spawn(|| self.all(&mut part, Nesting::Inner));
            thread.join().unwrap();
        });
    }

    /// Several threads at the same time, with what is live dealt out to them.
    fn together(&mut self, input: &mut Input<'_>) {
        let mut parts: Vec<_> = (0..2 + input.byte() % 3)
            .map(|_| {
                let length = usize::from(input.byte());
                let model = Self {
                    live: Vec::new(),
                    process: Process::Whole,
                };
                (model, input.part(length))
            })
            .collect();
        let threads = parts.len();
        for (index, object) in self.live.drain(..).enumerate() {
            parts[index % threads].0.live.push(object);
        }
        thread::scope(|scope| {
            let threads: Vec<_> = parts
                .iter_mut()
                .map(|(model, part)| scope.spawn(|| model.all(part, Nesting::Inner)))
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
        });
        for (model, _) in parts {
            self.live.extend(model.live);
        }
    }
}
