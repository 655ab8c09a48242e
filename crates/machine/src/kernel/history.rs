//! History of memory before the program starts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use contigua_frames::FrameClass;
use contigua_paging::Memory;
use contigua_units::{Frame, Nanoseconds};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::Error;
use crate::ageing::{AgeConfig, Server, Snapshot, fresh_memory, parse_profile};
use crate::config::{Age, PROFILES, RunConfig};

/// Age of the servers of [`Age::Partial`] and [`Age::Full`]. Servers are heavily fragmented after
/// an hour, and no more so later (Contiguitas, section 2.4).
const LIFE: Nanoseconds = Nanoseconds::new(3_600_000_000_000);

/// Memory in the state that a run begins with, and the age of the server.
///
/// # Errors
/// Those of the history, and [`Error::Interrupted`] soon after `cancel` was set.
pub(crate) fn memory(
    config: &RunConfig,
    cancel: &AtomicBool,
) -> Result<(Memory, Nanoseconds), Error> {
    let machine = &config.machine;
    let design = &config.design;
    let fresh = || {
        let mut memory = fresh_memory(machine.memory, &design.memory, &design.placement)?;
        boot(config, &mut memory);
        Ok::<_, Error>(memory)
    };
    let new = Nanoseconds::new(0);
    match &config.age {
        Age::Fresh => Ok((fresh()?, new)),
        Age::Scattered(share) => {
            let mut memory = fresh()?;
            scatter(&mut memory, *share, config.seed);
            Ok((memory, new))
        }
        Age::Partial => Ok(lived(config, "mixed", LIFE, cancel)?.into_memory()),
        Age::Full => {
            let mut server = lived(config, "mixed", LIFE, cancel)?;
            server.fill_with_files();
            Ok(server.into_memory())
        }
        Age::Lived(profile, time, _) => Ok(lived(config, profile, *time, cancel)?.into_memory()),
        Age::Snapshot(path) => from_file(config, path),
    }
}

fn lived(
    config: &RunConfig,
    profile: &str,
    time: Nanoseconds,
    cancel: &AtomicBool,
) -> Result<Server, Error> {
    /// Simulated time between two looks at `cancel`: some hundredths of a second of real time.
    const LOOK: u64 = 10_000_000_000;
    let text = PROFILES.iter().find(|(name, _)| *name == profile);
    let text = text.map_or("", |(_, text)| text);
    let mut server = Server::new(AgeConfig {
        design_name: config.design_name.clone(),
        design: config.design.clone(),
        profile_name: profile.to_owned(),
        profile: parse_profile(text, profile)?,
        memory: config.machine.memory,
        seed: config.seed,
        load: 1.0,
        kernel: 1.0,
        files: 1.0,
        daily: false,
        nodes: 1,
    })?;
    boot(config, server.memory_mut());
    while server.now() < time {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let before = server.now();
        let next = time.get().min(before.get() + LOOK);
        server.run_until(Nanoseconds::new(next));
        // Less than a tick is left.
        if server.now() == before {
            break;
        }
    }
    server.dismiss_tenants();
    Ok(server)
}

/// Takes what the design takes at boot.
fn boot(config: &RunConfig, memory: &mut Memory) {
    if config.design.host.is_none() {
        let plans = config.design.translation.rest_segs(config.machine.memory);
        memory.take_rest_segs(&plans, true, &mut ());
    }
}

fn from_file(config: &RunConfig, path: &Path) -> Result<(Memory, Nanoseconds), Error> {
    let snapshot = Snapshot::load(path)?;
    if snapshot.memory() != config.machine.memory {
        return Err(Error::SnapshotSize {
            found: snapshot.memory(),
            wanted: config.machine.memory,
        });
    }
    Ok((snapshot.restore(&config.design, path)?, snapshot.now))
}

/// Puts unmovable frames everywhere that the placement lets them be. Which ones follows from the
/// seed by hashing the frame number, so that histories of the same seed nest: a larger share only
/// adds frames. Under Contiguitas as many go into the unmovable region, which grows for them.
fn scatter(memory: &mut Memory, share: f64, seed: u64) {
    // In parts of 2^32, the precision that a share of frames needs at most.
    let parts = (share * 2_f64.powi(32)).round();
    let chosen = |number: u32| {
        let hash = xxh3_64_with_seed(&number.to_le_bytes(), seed);
        f64::from((hash >> 32) as u32) < parts
    };
    let class = FrameClass::KernelOther;
    let total = memory.total() as u32;
    let Some(border) = memory.border() else {
        for frame in (0..total).filter(|&number| chosen(number)).map(Frame::new) {
            // What is taken at boot stays.
            if memory.is_free(frame) {
                memory.allocate_at(frame, class).expect("the frame is free");
            }
        }
        return;
    };
    let count = (0..total).filter(|&number| chosen(number)).count() as u32;
    let missing = count.saturating_sub(border.get());
    memory.expand(
        missing.div_ceil(contigua_frames::BLOCK_FRAMES) as usize,
        &mut (),
    );
    for number in 0..count {
        // Of memory that is nearly all unmovable, the rest cannot be confined.
        if memory.allocate_at(Frame::new(number), class).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_frames::{Config, Placement, policies};
    use contigua_units::Bytes;

    fn scattered(placement: &Placement, share: f64, seed: u64) -> Memory {
        let mut memory =
            fresh_memory(Bytes::new(256 << 20), &Config::default(), placement).unwrap();
        scatter(&mut memory, share, seed);
        memory
    }

    fn linux(share: f64, seed: u64) -> Memory {
        scattered(&Placement::default(), share, seed)
    }

    #[test]
    fn scattering_one_percent_leaves_no_free_huge_block() {
        let memory = linux(0.01, 1);
        let unmovable = memory.frames_of(FrameClass::KernelOther);
        assert!(
            (500..=810).contains(&unmovable),
            "{unmovable} of 65536 frames"
        );
        let contiguity = memory.contiguity();
        assert!(contiguity.blocks_2m.free < 4, "{contiguity:?}");
        assert_eq!(memory.validate(), Ok(()));
    }

    #[test]
    fn the_same_seed_gives_the_same_history_and_a_larger_share_only_adds() {
        let frames = |memory: &Memory| -> Vec<Frame> {
            let unmovable = |class| class == FrameClass::KernelOther;
            memory
                .blocks()
                .filter(|b| unmovable(b.0))
                .map(|b| b.1)
                .collect()
        };
        let (few, again, many, other) = (
            linux(0.001, 7),
            linux(0.001, 7),
            linux(0.01, 7),
            linux(0.001, 8),
        );
        assert_eq!(frames(&few), frames(&again));
        assert_ne!(frames(&few), frames(&other));
        assert!(
            frames(&few)
                .iter()
                .all(|frame| frames(&many).contains(frame))
        );
    }

    #[test]
    fn where_unmovable_memory_is_confined_nothing_scatters() {
        let config = policies::contiguitas::Config {
            unmovable_min: Bytes::new(2 << 20),
            ..policies::contiguitas::Config::default()
        };
        let memory = scattered(&Placement::Contiguitas(config), 0.03, 1);
        assert_eq!(
            memory.frames_of(FrameClass::KernelOther),
            linux(0.03, 1).frames_of(FrameClass::KernelOther)
        );
        assert_eq!(memory.contiguity().blocks_2m.unmovable, 4);
        assert_eq!(memory.validate(), Ok(()));
    }
}
