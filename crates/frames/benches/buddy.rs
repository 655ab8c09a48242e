//! Pairs of allocation and free.

use contigua_frames::{FrameClass, FrameRecord, Frames};
use contigua_units::Order;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("buddy");
    group.throughput(Throughput::Elements(1));
    for order in [Order::BASE, Order::HUGE_2M] {
        let records = vec![FrameRecord::default(); 1 << 20];
        let mut frames = Frames::new(records).expect("the buffer is not empty");
        // A neighbour in use, so that pairs do not split and merge up to the largest block.
        let _neighbour = frames.allocate(order, FrameClass::Slab);
        group.bench_function(format!("order-{}", order.get()), |b| {
            b.iter(|| {
                let frame = frames
                    .allocate(order, FrameClass::Anonymous)
                    .expect("there is room");
                frames.free(frame).expect("it was just allocated");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
