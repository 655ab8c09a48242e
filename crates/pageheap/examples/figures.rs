//! Figures 5 and 11 of the adaptive subrelease paper in virtual time: `cargo run --release -p
//! contigua-pageheap --features replay --example figures`.

use contigua_pageheap::Config;
use contigua_pageheap::replay::{Removal, Settings, Summary, replay, spikes, square_wave};

const SECOND: u64 = 1_000_000_000;
const MB: u64 = 1 << 20;

fn main() {
    println!("Figure 4: square wave, 500 to 1000 MB used, nothing given back, window 1 min");
    println!("{:>10} {:>10} {:>10}", "period s", "average", "realized");
    for period in [10, 30, 60, 120, 300, 600, 3600, 36_000] {
        let config = Config {
            release_rate: 0,
            schedule: 60 * SECOND,
            ..Config::DEFAULT
        };
        let settings = Settings {
            config,
            sizes: vec![128],
            step: SECOND,
            ..Settings::default()
        };
        let end = 4 * period.max(60) * SECOND;
        let samples = replay(
            &square_wave(500 * MB, 1000 * MB, period * SECOND, end),
            end,
            &settings,
        );
        let full: Vec<_> = samples.into_iter().filter(|s| s.time > end / 4).collect();
        let summary = Summary::of(&full);
        let mb = |bytes: f64| bytes / MB as f64;
        println!(
            "{period:>10} {:>10.1} {:>10.1}",
            mb(summary.average_fragmentation),
            mb(summary.realized_fragmentation)
        );
    }

    println!(
        "\nFigure 11: spikes of up to 150 MB for up to 60 s over 200 MB, an hour, sizes 8 to 64 KB"
    );
    println!("rate MB/s  delta s  coverage  average MB  realized MB  skipped MB  correct  broken");
    let end = 3600 * SECOND;
    let trace = spikes(200 * MB, 150 * MB, 15 * SECOND, 60 * SECOND, end, 11);
    for rate in [0, 1, 5, 10, 20, 50] {
        for interval in [0, 15, 30, 60, 120, 300, 600] {
            let config = Config {
                release_rate: rate * MB,
                interval: interval * SECOND,
                cache_interval: 0,
                collapses: 0,
                ..Config::DEFAULT
            };
            let settings = Settings {
                config,
                sizes: vec![1, 2, 1, 4, 1, 8, 3],
                removal: Removal::Random(7),
                step: SECOND,
            };
            let summary = Summary::of(&replay(&trace, end, &settings));
            let mb = |bytes: f64| bytes / MB as f64;
            println!(
                "{rate:>9} {interval:>8} {:>8.1}% {:>11.1} {:>12.1} {:>11.0} {:>7.1}% {:>7}",
                100.0 * summary.coverage,
                mb(summary.average_fragmentation),
                mb(summary.realized_fragmentation),
                summary.skipped as f64 / MB as f64,
                100.0 * summary.skipped_correct,
                summary.broken_total,
            );
        }
    }
}
