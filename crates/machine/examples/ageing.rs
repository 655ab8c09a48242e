//! Ten simulated minutes of a small server: `cargo run --release -p contigua-machine --example
//! ageing`.

use contigua_machine::ageing::{AgeConfig, Server, parse_profile};
use contigua_machine::config::parse_design;
use contigua_units::{Bytes, Nanoseconds};

const PROFILE: &str = include_str!("../../../python/contigua/data/profiles/mixed.toml");
const DESIGNS: [(&str, &str); 2] = [
    (
        "linux-thp",
        include_str!("../../../python/contigua/data/designs/linux-thp.toml"),
    ),
    (
        "contiguitas-thp",
        include_str!("../../../python/contigua/data/designs/contiguitas-thp.toml"),
    ),
];

fn main() -> Result<(), contigua_machine::Error> {
    for (name, design) in DESIGNS {
        let mut server = Server::new(AgeConfig {
            design_name: name.to_owned(),
            design: parse_design(design, name)?,
            profile_name: "mixed".to_owned(),
            profile: parse_profile(PROFILE, "mixed")?,
            memory: Bytes::new(1 << 30),
            seed: 1,
            load: 1.0,
            kernel: 1.0,
            files: 1.0,
            daily: false,
            nodes: 1,
        })?;
        server.run_until(Nanoseconds::new(600_000_000_000));
        let contiguity = server.sample().contiguity;
        println!(
            "{name}: {:.1} % of the blocks of 2 MB are polluted by unmovable memory",
            100.0 * contiguity.unmovable_block_share()
        );
    }
    Ok(())
}
