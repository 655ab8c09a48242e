//! Pairs of allocation and free, under each placement and at each size of memory.

use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request, policies};
use contigua_units::Order;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const GIB: usize = 1 << 18;

fn placements() -> [Placement; 3] {
    [
        Placement::default(),
        Placement::Illuminator(policies::illuminator::Config::default()),
        Placement::Contiguitas(policies::contiguitas::Config::default()),
    ]
}

/// A memory of which half is in use, in pieces, so that lists are long.
fn worn(frames: usize, placement: Placement, config: Config) -> Frames<Boxed> {
    let layout = Layout::new(frames, 0, 1);
    let mut memory = Frames::new(Boxed::new(layout), config, placement).expect("it fits");
    let request = Request::new(Order::BASE, FrameClass::Anonymous);
    let taken: Vec<_> = (0..frames / 2)
        .map_while(|_| memory.allocate(&request))
        .collect();
    for frame in taken.iter().step_by(2) {
        memory.free(*frame).expect("it was allocated");
    }
    memory
}

fn pairs(c: &mut Criterion) {
    for (what, batch) in [("per-cpu", 63), ("free-lists", 0)] {
        let mut group = c.benchmark_group(format!("pair/{what}"));
        group.throughput(Throughput::Elements(1));
        for placement in placements() {
            for gibibytes in [1, 16, 64, 256] {
                let config = Config {
                    per_cpu_batch: batch,
                    ..Config::default()
                };
                let mut memory = worn(gibibytes * GIB, placement.clone(), config);
                let request = Request::new(Order::BASE, FrameClass::Anonymous);
                let id = BenchmarkId::new(placement.name(), format!("{gibibytes}GiB"));
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let frame = memory.allocate(&request).expect("there is room");
                        memory.free(frame).expect("it was just allocated");
                    });
                });
            }
        }
        group.finish();
    }
}

/// Blocks are held for a while, so that they come from all over memory.
fn held(c: &mut Criterion) {
    let mut group = c.benchmark_group("held-1024");
    group.throughput(Throughput::Elements(1));
    for placement in placements() {
        for (class, name) in [
            (FrameClass::Anonymous, "movable"),
            (FrameClass::Slab, "unmovable"),
        ] {
            let mut memory = worn(16 * GIB, placement.clone(), Config::default());
            let request = Request::new(Order::BASE, class);
            // In the unmovable region of Contiguitas' smallest size there is room for this.
            let mut ring: Vec<_> = (0..1024)
                .map(|_| memory.allocate(&request).expect("there is room"))
                .collect();
            let mut at = 0;
            group.bench_function(BenchmarkId::new(placement.name(), name), |b| {
                b.iter(|| {
                    memory.free(ring[at]).expect("it was allocated");
                    ring[at] = memory.allocate(&request).expect("there is room");
                    at = (at + 389) % ring.len();
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pairs, held);
criterion_main!(benches);
