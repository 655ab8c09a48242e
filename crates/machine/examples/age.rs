//! Calibration aid.
#![allow(warnings)]
use contigua_machine::ageing::*;
use contigua_machine::config::*;
use contigua_units::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let profile = parse_profile(&std::fs::read_to_string(&a[1]).unwrap(), &a[1]).unwrap();
    let placement = &a[2];
    let mem: Bytes = a[3].parse().unwrap();
    let hours: f64 = a[4].parse().unwrap();
    let seed: u64 = a[5].parse().unwrap();
    let load: f64 = a.get(6).map_or(1.0, |x| x.parse().unwrap());
    let kernel: f64 = a.get(7).map_or(1.0, |x| x.parse().unwrap());
    let design = parse_design(&format!("description=\"\"\n[translation.base]\n{placement}\n"), "d").unwrap();
    let start = std::time::Instant::now();
    let mut s = Server::new(AgeConfig { design_name: "x".into(), design, profile_name: "p".into(), profile, memory: mem, seed, load, kernel, files: 1.0, daily: false }).unwrap();
    let steps = 6;
    for i in 1..=steps {
        s.run_until(Nanoseconds::new((hours * 3600e9 * f64::from(i) / f64::from(steps)) as u64));
        let x = s.sample();
        let c = x.contiguity;
        let t = c.managed_frames() as f64;
        println!("{:6.0}s {:5.1}s free {:4.1}% unmov {:5.2}% spoiled {:4.1}% | free2M {} 4M {} 32M {} 1G {} | pot {} {} {} | U {:?} ps {:.2}/{:.2} ev alloc {} claimed {} borrowed {} mig {}/{} recl {}/{} fail {:?}", x.seconds, start.elapsed().as_secs_f64(),
          c.free_frames as f64/t*100., c.unmovable_frames as f64/t*100., c.unmovable_block_share()*100., c.blocks_2m.free, c.blocks_4m.free, c.blocks_32m.free, c.blocks_1g.free, c.blocks_2m.potential as f64/c.blocks_2m.total as f64, c.blocks_32m.potential as f64/ c.blocks_32m.total.max(1) as f64, c.blocks_1g.potential as f64 / c.blocks_1g.total.max(1) as f64,
          x.unmovable_region.map(|b| b.get()>>20), x.pressure.movable.avg10, x.pressure.unmovable.avg10, x.events.memory.allocations, x.events.memory.blocks_claimed, x.events.memory.blocks_borrowed, x.events.memory.frames_compacted_background, x.events.memory.frames_compacted_direct, x.events.memory.frames_reclaimed_background, x.events.memory.frames_reclaimed_direct, x.events.server);
        s.validate().unwrap();
    }
    println!("{:?}", s.sample().classes);
    println!("{:?}", s.sample().events.memory);
}
