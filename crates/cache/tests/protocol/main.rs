//! Is the migration protocol right? Every state of a small machine is visited.

mod model;
mod search;

use contigua_cache::migration::{Mode, Rules, SwitchOrder};
use model::{Configuration, Model};

const SMALL: Configuration = Configuration {
    cores: 1,
    lines: 1,
    device: false,
    order: SwitchOrder::CopyThenSwitch,
    mode: Mode::Cacheable,
    rules: Rules::CORRECT,
    requests_travel: true,
    invalidation_stops_walks: true,
    reuse: true,
    forbid_double_alias: true,
};

#[test]
fn scratch() {
    let get = |name: &str, default: u8| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    for order in [SwitchOrder::CopyThenSwitch, SwitchOrder::SwitchThenCopy] {
        for mode in [Mode::Cacheable, Mode::Noncacheable] {
            let configuration = Configuration {
                order,
                mode,
                cores: get("CORES", 1) as usize,
                lines: get("LINES", 1),
                device: get("DEVICE", 0) == 1,
                requests_travel: get("TRAVEL", 1) == 1,
                reuse: get("REUSE", 1) == 1,
                ..SMALL
            };
            let start = std::time::Instant::now();
            let mut model = Model::new(configuration);
            let outcome = search::search(&mut model, 250_000_000);
            println!(
                "{configuration}: {outcome:#?} controls {} in {:?}",
                model.controls(),
                start.elapsed()
            );
        }
    }
}
