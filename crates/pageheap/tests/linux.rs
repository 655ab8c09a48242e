//! The heap on the running machine.

use contigua_pageheap::linux::Linux;
use contigua_pageheap::{Config, PageHeap};

static HEAP: std::sync::Mutex<PageHeap<Linux>> =
    std::sync::Mutex::new(PageHeap::new(Linux::new(), Config::DEFAULT));

#[test]
fn a_static_heap_hands_out_memory_that_works() {
    let mut heap = HEAP.lock().unwrap();
    let one = heap.allocate(3, 1).unwrap();
    assert!(one.zeroed);
    let slice =
        unsafe { std::slice::from_raw_parts_mut(one.span.address as *mut u8, one.span.bytes()) };
    assert!(slice.iter().all(|&byte| byte == 0));
    slice.fill(7);
    assert!(heap.free(one.span));
    assert!(!heap.free(one.span));
}
