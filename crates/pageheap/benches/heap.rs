//! Cost of the heap's operations: hot, mixed, and as the heap and its window grow.

use contigua_pageheap::linux::Linux;
use contigua_pageheap::replay::VirtualOs;
use contigua_pageheap::{Config, PageHeap, Span};
use criterion::{Criterion, criterion_group, criterion_main};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;

fn heap() -> PageHeap<Linux> {
    PageHeap::new(Linux::new(), Config::DEFAULT)
}

/// xorshift64: which operation comes next must cost nothing.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

fn hot(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate and free");
    for pages in [1, 4, 64] {
        let mut heap = heap();
        let _kept = heap.allocate(1, 1);
        group.bench_function(format!("{pages} pages, hot"), |b| {
            b.iter(|| {
                let one = heap.allocate(black_box(pages), 1).unwrap();
                heap.free(one.span)
            });
        });
    }
    group.finish();
}

/// Replaces a random one of `live` spans of 1 to 16 pages: two operations on cold records.
fn mixed(c: &mut Criterion) {
    let mut group = c.benchmark_group("replace one of many");
    for live in [1_000, 100_000] {
        let mut heap = heap();
        let mut random = 88_172_645_463_325_252;
        let size = |random: &mut u64| 1 + (next(random) % 16) as u32;
        let mut spans: Vec<Span> = (0..live)
            .map(|_| heap.allocate(size(&mut random), 1).unwrap().span)
            .collect();
        group.bench_function(format!("{live} live"), |b| {
            b.iter(|| {
                let index = next(&mut random) as usize % spans.len();
                heap.free(spans[index]);
                spans[index] = heap.allocate(size(&mut random), 1).unwrap().span;
            });
        });
    }
    group.finish();
}

fn large(c: &mut Criterion) {
    let mut heap = heap();
    let _kept = heap.allocate(1, 1);
    c.bench_function("allocate and free 8 MB and a page", |b| {
        b.iter(|| {
            let one = heap.allocate(black_box(1025), 1).unwrap();
            heap.free(one.span)
        });
    });
}

/// Finding out that nothing is to be given back, in a heap of 1 GB, and its figures.
fn periodic(c: &mut Criterion) {
    let clock = Rc::new(Cell::new(0));
    let mut heap = PageHeap::new(VirtualOs::new(clock.clone()), Config::DEFAULT);
    let spans: Vec<Span> = (0..131_072)
        .map(|_| heap.allocate(1, 1).unwrap().span)
        .collect();
    for span in spans.iter().step_by(2) {
        heap.free(*span);
    }
    c.bench_function("statistics of 1 GB", |b| {
        b.iter(|| black_box(heap.statistics()));
    });
    heap.set_policy(1 << 40, 60_000_000_000, 0);
    c.bench_function("periodic release that withholds, 1 GB", |b| {
        b.iter(|| {
            clock.set(clock.get() + 1_000_000);
            black_box(heap.periodic())
        });
    });
}

criterion_group!(benches, hot, mixed, large, periodic);
criterion_main!(benches);
