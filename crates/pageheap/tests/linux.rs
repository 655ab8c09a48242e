//! The heap on the running machine.

use contigua_pageheap::linux::{Linux, PrimaryPages, reserve_primary};
use contigua_pageheap::{Config, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, PageHeap, Span};
use std::sync::Mutex;

static HEAP: Mutex<PageHeap<Linux>> = Mutex::new(PageHeap::new(Linux::new(), Config::DEFAULT));

fn bytes(span: Span) -> &'static mut [u8] {
    // SAFETY: the tests pass spans that they just allocated and did not free.
    unsafe { std::slice::from_raw_parts_mut(span.address as *mut u8, span.bytes()) }
}

/// Resident bytes of the mappings that hold an address, and those in huge pages.
fn resident(address: usize) -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut resident, mut huge) = (false, 0, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let parse = |text| usize::from_str_radix(text, 16);
            inside =
                parse(from).is_ok_and(|f| f <= address) && parse(to).is_ok_and(|t| address < t);
        } else if inside {
            let kb: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            match first {
                "Rss:" => resident += kb * 1024,
                "AnonHugePages:" => huge += kb * 1024,
                _ => {}
            }
        }
    }
    (resident, huge)
}

#[test]
fn a_static_heap_hands_out_memory_that_works() {
    let mut heap = HEAP.lock().unwrap();
    let one = heap.allocate(3, 1).unwrap();
    assert!(one.is_zeroed());
    assert!(bytes(one.span).iter().all(|&byte| byte == 0));
    bytes(one.span).fill(7);
    assert!(heap.free(one.span));
    assert!(!heap.free(one.span));
}

#[test]
fn contents_survive_release_and_repair_on_real_memory() {
    let mut heap = PageHeap::new(Linux::new(), Config::DEFAULT);
    let spans: Vec<Span> = (0..4 * HUGE_PAGES)
        .map(|_| heap.allocate(1, 1).unwrap().span)
        .collect();
    for (index, &span) in spans.iter().enumerate() {
        bytes(span).fill(index as u8 | 1);
    }
    for span in spans.iter().step_by(2) {
        assert!(heap.free(*span));
    }
    let before = resident(spans[1].address).0;
    let released = heap.release(usize::MAX);
    assert_eq!(released, 2 * HUGE_BYTES);
    assert!(resident(spans[1].address).0 <= before - released);
    assert_eq!(heap.statistics().huge_broken, 4);
    // The memory comes back; what the kernel can make whole is whole.
    for _ in 0..2 * HUGE_PAGES {
        let again = heap.allocate(1, 1).unwrap();
        assert!(again.is_zeroed() && bytes(again.span).iter().all(|&byte| byte == 0));
        bytes(again.span).fill(0xff);
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let repaired = heap.periodic().collapsed;
    println!("{repaired} of 4 huge pages collapsed");
    for (index, &span) in spans.iter().enumerate().skip(1).step_by(2) {
        assert!(bytes(span).iter().all(|&byte| byte == index as u8 | 1));
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_request_for_more_than_the_machine_has_fails_at_once() {
    let mut heap = PageHeap::new(Linux::new(), Config::DEFAULT);
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if strict.trim() == "1" {
        return;
    }
    for _ in 0..100 {
        assert!(heap.allocate(u32::MAX, 1).is_none());
    }
    assert!(heap.statistics().metadata < 5 << 20);
    assert!(heap.allocate(1, 1).is_some());
}

#[test]
fn a_primary_region_falls_back_with_one_message() {
    for wanted in [
        PrimaryPages::HugeTlb1G,
        PrimaryPages::HugeTlb2M,
        PrimaryPages::Transparent,
    ] {
        let outcome = reserve_primary(5 * HUGE_BYTES - 1, wanted);
        let (got, primary) = outcome.got.unwrap();
        println!("{outcome}");
        assert_eq!(outcome.to_string().contains("instead"), got != wanted);
        assert_eq!(outcome.error == 0, got == wanted);
        let config = Config {
            primary: Some(primary),
            ..Config::DEFAULT
        };
        let mut heap = PageHeap::new(Linux::new(), config);
        let one = heap.allocate(1, 1).unwrap().span;
        assert_eq!(one.address - primary.address, 0);
        bytes(one).fill(1);
        assert_eq!(one.bytes(), PAGE_BYTES);
        assert_eq!(heap.validate(), Ok(()));
    }
}
