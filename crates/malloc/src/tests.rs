//! The layers below the C surface with several threads: natively, where schedules are the machine's,
//! and under Miri (`make miri`), which sees every data race and every stale read that the language
//! allows, on many schedules.
//!
//! Objects that threads hand over carry a plain word with the owner. No lock of the tests orders
//! these words: only the allocator's own hand-over does.

use core::ptr::NonNull;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::vec::Vec;

use contigua_pageheap::HUGE_BYTES;

use crate::classes::{CLASSES, MAX_BATCH, MAX_OBJECTS, class_of};
use crate::lock::Guarded;
use crate::sizes::PAGE_BYTES;
use crate::span::Span;
use crate::{central, front, heap, pagemap, pages, setup, sys, system, transfer};

/// Steps of a thread: Miri is some thousand times slower.
const STEPS: usize = if cfg!(miri) { 10 } else { 3000 };
const THREADS: usize = 3;

fn next(random: &mut usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Say who owns an object.
fn own(object: usize, owner: usize) {
    // SAFETY: the object was just given to this thread.
    unsafe { (object as *mut usize).write(owner) };
}

/// Check that it is still so, and write the canary that every free object has: the test's harness
/// allocates from the same heap.
fn disown(object: usize, owner: usize) {
    let word = object as *mut usize;
    // SAFETY: this thread owns the object.
    unsafe {
        assert_eq!(word.read(), owner, "somebody else has {object:#x}");
        word.write(heap::canary_of(object));
    }
}

/// Sizes of which only one test each allocates objects. The harness allocates from the same heap, when it
/// begins or ends; so tests compare with what there was before.
const CENTRAL_BYTES: usize = 11_000;
const TRANSFER_BYTES: usize = 13_000;
const DRAIN_BYTES: usize = 14_000;
const COUNT_BYTES: usize = 15_000;
const DEEP_BYTES: usize = 900;
const THREAD_BYTES: usize = 30_000;
#[cfg(not(miri))]
const MISS_BYTES: usize = 1_200;
const REST_BYTES: usize = 2_000;

/// Bytes of the class that are nowhere in the allocator, and its spans.
fn outside(class: usize) -> (usize, usize) {
    (
        front::cached(class).in_use(),
        central::occupancy(class).spans,
    )
}

/// Of tests that drain, which have what others give back in hand for a while.
static DRAINS: Mutex<()> = Mutex::new(());

#[test]
fn lock_admits_one_thread_and_publishes_its_writes() {
    static COUNTER: Guarded<usize> = Guarded::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..STEPS {
                    *COUNTER.lock() += 1;
                }
            });
        }
    });
    assert_eq!(*COUNTER.lock(), THREADS * STEPS);
}

/// Take and give batches of one class of objects, which no other test uses.
fn exchange(
    class: usize,
    take: impl Fn(&mut [usize]) -> usize + Sync,
    give: impl Fn(&[usize]) + Sync,
) {
    setup::ensure();
    let size = CLASSES[class].size as usize;
    thread::scope(|scope| {
        for owner in 1..=THREADS {
            let (take, give) = (&take, &give);
            scope.spawn(move || {
                let mut random = owner * 0x9e37_79b9;
                let mut mine = Vec::new();
                for _ in 0..STEPS {
                    let count = 1 + next(&mut random) % 4;
                    if mine.len() > 12 || next(&mut random).is_multiple_of(2) && mine.len() >= count
                    {
                        let batch: Vec<usize> = mine.drain(..count).collect();
                        for &object in &batch {
                            disown(object, owner);
                        }
                        give(&batch);
                    } else {
                        let mut batch = [0; 4];
                        let count = take(&mut batch[..count]);
                        assert!(count > 0);
                        for &object in &batch[..count] {
                            assert!(object.is_multiple_of(8));
                            assert_eq!(usize::from(pagemap::tag(object) & 0xff), class);
                            let span = pagemap::span(object).unwrap();
                            // SAFETY: an object that is out keeps its span.
                            let begin = unsafe { (*span.as_ptr()).address };
                            assert!((object - begin).is_multiple_of(size));
                            own(object, owner);
                        }
                        mine.extend(&batch[..count]);
                    }
                }
                for &object in &mine {
                    disown(object, owner);
                }
                mine.chunks(MAX_BATCH).for_each(give);
            });
        }
    });
}

#[test]
fn do_spans_give_each_object_to_one_thread_and_go_back() {
    setup::ensure();
    let class = class_of(CENTRAL_BYTES);
    let before = outside(class);
    exchange(
        class,
        |out| central::take(class, out),
        |objects| central::give(class, objects),
    );
    assert_eq!(outside(class), before);
}

#[test]
fn do_transfer_caches_hand_objects_over_whole() {
    let _alone = DRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    setup::ensure();
    let class = class_of(TRANSFER_BYTES);
    let before = outside(class).0;
    exchange(
        class,
        |out| transfer::take(class, out),
        |objects| transfer::give(class, objects),
    );
    assert_eq!(outside(class).0, before, "an object got lost");
}

#[test]
fn does_a_drain_lose_nothing_while_others_transfer() {
    let _alone = DRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    setup::ensure();
    let class = class_of(DRAIN_BYTES);
    front::drain();
    let before = outside(class);
    thread::scope(|scope| {
        let drains = scope.spawn(|| {
            for _ in 0..STEPS / 10 {
                transfer::drain();
                thread::yield_now();
            }
        });
        exchange(
            class,
            |out| transfer::take(class, out),
            |objects| transfer::give(class, objects),
        );
        drains.join().unwrap();
    });
    transfer::drain();
    assert_eq!(outside(class), before);
}

#[test]
fn does_a_drain_empty_a_transfer_cache_of_more_than_a_batch() {
    let _alone = DRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    setup::ensure();
    let class = class_of(DEEP_BYTES);
    let slots = usize::from(CLASSES[class].transfer_slots);
    assert!(slots > MAX_BATCH, "{slots} slots");
    front::drain();
    let before = outside(class);
    let mut objects = Vec::with_capacity(slots);
    while objects.len() < slots {
        let mut taken = [0; MAX_BATCH];
        let wanted = (slots - objects.len()).min(MAX_BATCH);
        let count = central::take(class, &mut taken[..wanted]);
        objects.extend_from_slice(&taken[..count]);
    }
    transfer::give(class, &objects);
    transfer::drain();
    assert_eq!(outside(class), before, "an object got lost");
}

#[test]
fn caches_in_backoff_lose_no_object() {
    let _alone = DRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    setup::ensure();
    let class = class_of(REST_BYTES);
    front::drain();
    let before = outside(class).0;
    let all: Vec<_> = (0..100).map(|_| heap::allocate(REST_BYTES)).collect();
    for memory in all {
        // SAFETY: allocated above, and used by nobody.
        unsafe { heap::free(memory) };
    }
    let mut most = transfer::length(class) + 100;
    while most > 0 {
        front::back_off();
        assert_eq!(outside(class).0, before, "an object got lost");
        most /= 2;
    }
    assert_eq!(transfer::length(class), 0);
    front::end_backoff();
}

/// One object in ten of a class is left, and then objects come and go.
#[test]
#[cfg(not(miri))]
fn do_objects_move_together_when_few_are_left() {
    const SIZE: usize = 176;
    setup::ensure();
    let mut random = 7;
    let mut all: Vec<usize> = (0..30_000).map(|_| heap::allocate(SIZE) as usize).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, next(&mut random) % (at + 1));
    }
    // SAFETY: allocated above; freed once.
    let free = |object: usize| unsafe { heap::free(object as *mut u8) };
    all.drain(3000..).for_each(free);
    front::drain();
    let spans = || central::occupancy(class_of(SIZE)).spans;
    let before = spans();
    for step in 0..300_000 {
        if step % 1000 == 0 {
            front::begin_round();
            // More than a cache holds of this size: misses, at which caches look.
            let misses: Vec<usize> = (0..10).map(|_| heap::allocate(200_000) as usize).collect();
            misses.into_iter().for_each(free);
        }
        let at = next(&mut random) % all.len();
        free(all[at]);
        all[at] = heap::allocate(SIZE) as usize;
        // Objects are not always as many.
        if step % 3 == 0 {
            all.extend((0..8).map(|_| heap::allocate(SIZE) as usize));
            all.drain(..8).for_each(free);
        }
    }
    assert!(spans() * 2 < before, "{} of {before} spans", spans());
    all.into_iter().for_each(free);
}

#[test]
fn are_figures_counted_without_the_locks_of_classes() {
    setup::ensure();
    let class = class_of(COUNT_BYTES);
    transfer::lock(class).hold();
    central::lock(class).hold();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(front::cached(class).in_use()));
    let counted = receive.recv_timeout(core::time::Duration::from_secs(20));
    central::lock(class).unhold();
    transfer::lock(class).unhold();
    assert_eq!(counted, Ok(outside(class).0));
}

#[test]
fn does_nobody_wait_for_memory_that_goes_back() {
    setup::ensure();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        // One in whole huge pages, one in parts of them.
        let large = heap::allocate(16 << 20);
        let small: Vec<_> = (0..40).map(|_| heap::allocate(300_000)).collect();
        for &memory in small.iter().step_by(2).chain([&large]) {
            // SAFETY: allocated above, and used by nobody.
            unsafe { heap::free(memory) };
        }
        let mut lengths = Vec::new();
        let given = RefCell::new(&mut lengths);
        pages::release_through(
            |address, bytes| {
                // Takes the page heap's lock.
                assert!(pages::statistics().mapped > 0);
                given.borrow_mut().push(bytes);
                system::release(address, bytes)
            },
            // All: other tests leave huge pages free, too, which go first.
            usize::MAX / 2,
        );
        for memory in small.into_iter().skip(1).step_by(2) {
            // SAFETY: as above.
            unsafe { heap::free(memory) };
        }
        send.send(lengths)
    });
    let lengths = receive
        .recv_timeout(core::time::Duration::from_secs(20))
        .expect("no lock is held");
    assert!(lengths.contains(&HUGE_BYTES), "{lengths:?}");
    assert!(
        lengths.iter().any(|&bytes| bytes < HUGE_BYTES),
        "{lengths:?}"
    );
}

#[test]
#[cfg(not(miri))]
fn does_a_cpu_count_its_own_misses() {
    setup::ensure();
    if !front::is_per_cpu() {
        return;
    }
    thread::spawn(|| {
        // SAFETY: sets of CPUs are bits; the calls write one and read it.
        let cpu = unsafe {
            let cpu = libc::sched_getcpu() as usize;
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            assert_eq!(
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
                0
            );
            cpu
        };
        let before = front::misses_on(cpu as u32);
        let all: Vec<_> = (0..2000).map(|_| heap::allocate(MISS_BYTES)).collect();
        assert!(front::misses_on(cpu as u32) >= before + 10);
        assert!(front::misses() >= front::misses_on(cpu as u32));
        for memory in all {
            // SAFETY: allocated above, and used by nobody.
            unsafe { heap::free(memory) };
        }
    })
    .join()
    .unwrap();
}

#[test]
fn do_neighboring_locks_share_no_cache_line() {
    assert!(size_of::<Guarded<usize>>().is_multiple_of(64));
    assert!(align_of::<Guarded<usize>>().is_multiple_of(64));
}

#[test]
fn does_memory_wander_between_threads_with_its_contents() {
    setup::ensure();
    let sizes = [1, 40, 700, 5000, 300_000];
    let (send, receive) = mpsc::channel::<(usize, usize)>();
    thread::scope(|scope| {
        for owner in 1..THREADS {
            let send = send.clone();
            scope.spawn(move || {
                let mut random = owner * 0x1234_5677;
                for _ in 0..STEPS {
                    let size = sizes[next(&mut random) % sizes.len()];
                    let memory = if next(&mut random).is_multiple_of(3) {
                        heap::allocate_zeroed(size)
                    } else {
                        heap::allocate(size)
                    };
                    assert!(!memory.is_null());
                    // SAFETY: at least `size` bytes of this thread's.
                    unsafe {
                        memory.write(size as u8);
                        memory.add(size - 1).write(size as u8);
                    }
                    if next(&mut random).is_multiple_of(4) {
                        // SAFETY: nobody uses it any more.
                        unsafe { heap::free(memory) };
                    } else {
                        send.send((memory.expose_provenance(), size)).unwrap();
                    }
                }
            });
        }
        drop(send);
        for (address, size) in receive {
            let memory = address as *mut u8;
            // SAFETY: the other thread gave the memory up to this one.
            unsafe {
                assert_eq!(
                    (memory.read(), memory.add(size - 1).read()),
                    (size as u8, size as u8)
                );
                let longer = heap::reallocate(memory, size + 10);
                assert!(!longer.is_null());
                assert_eq!(longer.add(size - 1).read(), size as u8);
                heap::free(longer);
            }
        }
    });
}

#[test]
fn do_caches_go_back_with_their_threads() {
    let _alone = DRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    setup::ensure();
    let size = THREAD_BYTES;
    front::drain();
    let before = outside(class_of(size));
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        thread::spawn(move || {
            let mut all = HashSet::new();
            for _ in 0..6 {
                let memory = heap::allocate(size);
                assert!(!memory.is_null() && all.insert(memory.expose_provenance()));
            }
            for address in all {
                // SAFETY: allocated above, and used by nobody.
                unsafe { heap::free(address as *mut u8) };
            }
        })
        .join()
        .unwrap();
    }
    front::drain();
    assert_eq!(outside(class_of(size)), before);
}

#[test]
fn is_a_page_known_to_the_thread_that_gets_its_address() {
    setup::ensure();
    // Addresses of leaves that nobody else needs; nothing is accessed there.
    let base = 0x7000_0000_0000;
    for round in 0..if cfg!(miri) { 2 } else { 20 } {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let address = base + (round << 31) + thread * crate::sizes::PAGE_BYTES;
                    let span = crate::span::Span::create(address, 1, 0).unwrap();
                    assert!(pagemap::enter_large(address, span));
                    let found = pagemap::span(address).unwrap();
                    // SAFETY: created above.
                    assert_eq!(unsafe { (*found.as_ptr()).address }, address);
                    assert_eq!(pagemap::tag(address), pagemap::LARGE);
                    assert!(pagemap::leave_large(address) && !pagemap::leave_large(address));
                });
            }
        });
    }
}

#[test]
fn a_span_takes_each_object_back_once() {
    let class = class_of(64);
    let size = CLASSES[class].size as usize;
    let address = 0x4000_0000;
    let metadata = Span::create(address, u32::from(CLASSES[class].pages), class);
    let metadata = metadata.expect("there is memory");
    // SAFETY: nobody else knows the metadata.
    let span = unsafe { &mut *metadata.as_ptr() };
    let carved = span.carve(3);
    let (count, all) = (carved.count(), carved.objects().collect::<Vec<_>>());
    assert!(count > 64, "in more than one word of the bitmap");
    let second = address + size;
    assert_eq!(span.put(&[second]), Ok(1), "it was handed out");
    assert_eq!(span.put(&[second]), Err(second), "it is there already");
    assert_eq!(
        span.put(&[second + 8]),
        Err(second + 8),
        "none begins there"
    );
    for outside in [
        address - size,
        address + usize::from(CLASSES[class].pages) * PAGE_BYTES,
    ] {
        assert_eq!(span.put(&[address, outside]), Ok(1));
        assert_eq!(span.put(&[address]), Err(address));
        assert_eq!(span.put(&[outside]), Ok(0));
        let mut taken = [0; 1];
        assert_eq!((span.take(&mut taken), taken[0]), (1, address));
    }
    let mut taken = [0; 2];
    assert_eq!((span.take(&mut taken), taken[0]), (1, second));
    let (mut from_last, first) = (all.clone(), [second, address]);
    from_last.retain(|object| !first.contains(object));
    from_last.reverse();
    assert_eq!(span.put(&from_last), Ok(count - 2));
    assert_eq!(span.put(&first), Ok(2), "in any order");
    assert_eq!(span.free, CLASSES[class].objects);
    let mut taken = [0; MAX_OBJECTS];
    assert_eq!(span.take(&mut taken), count);
    assert_eq!(taken[..count], all);
    span.put_rest(&carved, 3);
    assert_eq!(span.put(&all[..3]), Ok(3));
    assert_eq!(span.free, CLASSES[class].objects);
    // SAFETY: the metadata is given up.
    unsafe { Span::recycle(metadata) };
}

#[test]
fn a_span_takes_back_what_was_carved_only() {
    let class = class_of(1152);
    let (address, pages) = (0x4000_0000, u32::from(CLASSES[class].pages));
    let metadata = Span::create(address, pages, class).expect("there is memory");
    // SAFETY: nobody else knows the metadata.
    let span = unsafe { &mut *metadata.as_ptr() };
    let next = address + span.carve(3).count() * CLASSES[class].size as usize;
    assert!(next < address + usize::from(CLASSES[class].pages) * PAGE_BYTES);
    assert_eq!(span.put(&[address, next]), Err(next));
    // SAFETY: the metadata is given up.
    unsafe { Span::recycle(metadata) };
}

#[cfg(not(miri))]
#[test]
fn does_the_metadata_of_many_spans_go_back() {
    setup::ensure();
    let mut all: Vec<usize> = (0..200_000)
        .map(|_| Span::create(0x4000_0000, 1, 0).expect("memory").as_ptr() as usize)
        .collect();
    for &span in &all {
        // SAFETY: created above, known to nobody.
        unsafe { Span::recycle(NonNull::new(span as *mut Span).expect("a span")) };
    }
    for span in &mut all {
        *span &= !(sys::page_bytes() - 1);
    }
    all.sort_unstable();
    all.dedup();
    let is_resident = |page: &&usize| {
        let mut found = 0;
        // SAFETY: asks about one page, for which one byte is written.
        let failed = unsafe { libc::mincore(**page as *mut libc::c_void, 1, &raw mut found) };
        failed == 0 && found & 1 != 0
    };
    // Other tests have metadata in some of the chunks.
    let resident = all.iter().filter(is_resident).count();
    assert!(
        resident < all.len() / 2,
        "{resident} of {} pages",
        all.len()
    );
}

/// A message that needs memory of sizes that no cache holds.
#[cfg(not(miri))]
#[test]
fn does_a_panic_under_the_lock_of_the_heap_end_the_process_with_its_message() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    const CHILD: &str = "CONTIGUA_TEST_PANIC";
    const NAME: &str = "does_a_panic_under_the_lock_of_the_heap_end_the_process_with_its_message";
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: these calls end this process after a while, and keep its memory off the disk.
        unsafe {
            libc::alarm(20);
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
        }
        crate::control::trim(0);
        // What a caller could catch would go on with a damaged heap.
        let _ = std::panic::catch_unwind(|| {
            pages::supplied_through(
                |_, _| -> Result<(), _> { panic!("{:>9000}", "the end") },
                |_, _| true,
                |_, _| true,
            );
        });
        return;
    }
    let output = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", &std::format!("tests::{NAME}"), "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("a test starts");
    let message = std::string::String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.signal() == Some(libc::SIGABRT)
            && message.contains("panicked at")
            && message.contains("the end"),
        "{}\n{message}",
        output.status
    );
}
