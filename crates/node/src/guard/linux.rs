//! The running Linux.
//!
//! A block changes when a word is written to its `state` file; taking one offline migrates all that
//! is in it and may take long, and the write blocks for that time. So a process of its own writes,
//! which can be interrupted: the kernel looks for signals while it empties a block and puts
//! everything back. That process dies with the guard.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use contigua_live::classify::{Class, classify};
use contigua_live::frames::{PageFile, PageSource};
use contigua_live::proc::{BlockState, MemoryBlock, System};
use contigua_output::Output;
use contigua_units::Bytes;
use rustix::fs::OFlags;

use super::machine::{
    Block, ChangeError, Machine, MachineError, Occupancy, Place, Step, Survey, Target,
};

/// Time that an interrupted process has to end.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a state file: a few hundred for each block that moved.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// The running machine, or one that is laid out in a directory.
pub struct Linux {
    system: System,
    root: PathBuf,
    store: PathBuf,
    started: Instant,
    lock: Option<File>,
    stuck: Option<Child>,
    #[cfg(feature = "fault-injection")]
    death: Option<super::death::Death>,
}

impl Linux {
    /// The machine whose `/proc` and `/sys` are in `root`, with its state file.
    #[must_use]
    pub fn new(root: &Path, store: &Path) -> Self {
        Self {
            system: System::at(root),
            root: root.to_owned(),
            store: store.to_owned(),
            started: Instant::now(),
            lock: None,
            stuck: None,
            #[cfg(feature = "fault-injection")]
            death: super::death::Death::from_environment(),
        }
    }

    /// Makes sure that no other guard is at work, for as long as this value lives.
    ///
    /// # Errors
    /// Another is, or the folder of the state file cannot be written to.
    pub fn lock(&mut self) -> Result<(), MachineError> {
        if let Some(folder) = self.store.parent() {
            fs::create_dir_all(folder).map_err(|error| self.problem(&error))?;
        }
        // A link there is not ours, and what it leads to is nothing that a lock may empty.
        let lock = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.store.with_extension("lock"));
        let lock = lock.map_err(|error| self.problem(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(self.problem(&"another guard is at work with it; stop that first"));
            }
            Err(TryLockError::Error(error)) => return Err(self.problem(&error)),
        }
        self.lock = Some(lock);
        Ok(())
    }

    fn problem(&self, problem: &impl ToString) -> MachineError {
        MachineError::Store {
            path: self.store.display().to_string(),
            problem: problem.to_string(),
        }
    }

    fn place(&self, block: u64) -> Option<Place> {
        let block = self.system.memory_block(block).ok()??;
        Some(place(&block))
    }

    /// Returns true if a block has reached its target.
    fn has_arrived(&self, block: u64, to: Target) -> bool {
        self.place(block)
            == Some(match to {
                Target::Offline => Place::Offline,
                Target::Kernel => Place::Kernel,
                Target::Movable => Place::Movable,
            })
    }

    /// Writes a word to a file of the kernel's, which may take its time.
    fn write(&mut self, file: &str, word: &str, limit: Duration) -> Result<(), ChangeError> {
        let refused = |error: &dyn std::fmt::Display| ChangeError::Refused(error.to_string());
        if let Some(child) = &mut self.stuck {
            match child.try_wait() {
                Ok(None) => return Err(ChangeError::Stuck(child.id())),
                _ => self.stuck = None,
            }
        }
        let mut child = Command::new("/proc/self/exe")
            .args(["guard", "write", word])
            .arg(self.root.join(file))
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| refused(&error))?;
        if self.step(Step::DuringChange).is_err() {
            return Err(ChangeError::Killed);
        }
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        let mut is_interrupted = false;
        loop {
            match child.try_wait() {
                Ok(Some(_)) if is_interrupted => return Err(ChangeError::TimedOut(limit)),
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => {
                    let mut said = String::new();
                    if let Some(stderr) = child.stderr.as_mut() {
                        let _ = stderr.read_to_string(&mut said);
                    }
                    return Err(refused(&said.trim()));
                }
                Ok(None) => {}
                Err(error) => return Err(refused(&error)),
            }
            if Instant::now() >= deadline + GRACE {
                let process = child.id();
                self.stuck = Some(child);
                return Err(ChangeError::Stuck(process));
            }
            if Instant::now() >= deadline && !is_interrupted {
                let _ = child.kill();
                is_interrupted = true;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(50));
        }
    }
}

/// The process that writes a word to a file of the kernel's; see the module.
pub fn write_word(word: &str, file: &Path, guard: u32) -> ExitCode {
    let death =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    if death.is_err() || parent != i32::try_from(guard).ok() {
        let _ = writeln!(io::stderr(), "the guard is gone");
        return ExitCode::FAILURE;
    }
    let written = fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| file.write_all(word.as_bytes()));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "writing {word}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The file with a node's number of pages of 1 GB.
fn gigantic(node: u32) -> String {
    format!("sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB/nr_hugepages")
}

fn place(block: &MemoryBlock) -> Place {
    match block.state {
        BlockState::Offline => Place::Offline,
        BlockState::GoingOffline => Place::Leaving,
        BlockState::Online => match block.zones.as_slice() {
            [zone] if zone == "Movable" => Place::Movable,
            [zone] if zone == "Normal" || zone == "DMA32" => Place::Kernel,
            _ => Place::Fixed,
        },
    }
}

impl Machine for Linux {
    fn survey(&mut self) -> Result<Survey, MachineError> {
        let blocks = self.system.memory_blocks()?;
        let counters = self.system.vmstat()?;
        let stalls = |zone: &str| counters.or_zero(&format!("allocstall_{zone}"));
        let swap = self.system.meminfo().ok();
        let swap = swap.and_then(|meminfo| meminfo.bytes("SwapFree"));
        Ok(Survey {
            at: self.started.elapsed(),
            block: Bytes::new(blocks.frames * contigua_units::PAGE_BYTES),
            blocks: blocks
                .blocks
                .iter()
                .map(|block| Block {
                    number: block.number,
                    node: block.node.unwrap_or(0),
                    place: place(block),
                })
                .collect(),
            zones: self.system.zones()?,
            pressure: self
                .system
                .memory_pressure()
                .ok()
                .map(|pressure| pressure.some.avg10),
            kernel_stalls: stalls("dma") + stalls("dma32") + stalls("normal"),
            movable_stalls: stalls("movable"),
            swap: swap.unwrap_or_default(),
        })
    }

    fn census(&mut self, blocks: &[u64]) -> BTreeMap<u64, Occupancy> {
        let (Ok(files), Ok(layout)) = (self.system.page_files(), self.system.memory_blocks())
        else {
            return BTreeMap::new();
        };
        let mut words = vec![0; 1 << 13];
        let mut census = BTreeMap::new();
        for &number in blocks {
            let range = layout.range(number);
            let mut occupancy = Occupancy::default();
            let mut frame = range.start;
            while frame < range.end {
                let wanted = words.len().min((range.end - frame) as usize);
                match files.read(PageFile::Flags, frame, &mut words[..wanted]) {
                    Ok(filled) if filled > 0 => {
                        words[..filled].iter().for_each(|&word| occupancy.add(word));
                        frame += filled as u64;
                    }
                    _ => break,
                }
            }
            if frame == range.end {
                census.insert(number, occupancy);
            }
        }
        census
    }

    fn change(&mut self, block: u64, to: Target, limit: Duration) -> Result<(), ChangeError> {
        let word = match to {
            Target::Offline => "offline",
            Target::Kernel => "online_kernel",
            Target::Movable => "online_movable",
        };
        let file = format!("sys/devices/system/memory/memory{block}/state");
        match self.write(&file, word, limit) {
            // It may have happened just before the interruption.
            Err(ChangeError::TimedOut(_)) if self.has_arrived(block, to) => Ok(()),
            Ok(()) if !self.has_arrived(block, to) => Err(ChangeError::Refused(format!(
                "the kernel accepted it, but the block is in {}",
                self.place(block).unwrap_or(Place::Fixed)
            ))),
            answer => answer,
        }
    }

    fn gigantic_pages(&mut self, node: u32) -> Option<u64> {
        self.system.word(&gigantic(node)).ok()?.parse().ok()
    }

    fn set_gigantic_pages(
        &mut self,
        node: u32,
        pages: u64,
        limit: Duration,
    ) -> Result<u64, ChangeError> {
        self.write(&gigantic(node), &pages.to_string(), limit)?;
        Ok(self.gigantic_pages(node).unwrap_or(0))
    }

    fn load(&mut self) -> Result<Option<String>, MachineError> {
        match contigua_input::read_text(&self.store, MAX_STATE_BYTES) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.problem(&error)),
        }
    }

    fn store(&mut self, text: &str) -> Result<(), MachineError> {
        let written = Output::create(&self.store).and_then(|mut output| {
            output.write_all(text.as_bytes())?;
            Ok(output)
        });
        let output = written.map_err(|error| self.problem(&error))?;
        self.step(Step::DuringStore)?;
        let renamed = output.keep().and_then(|()| match self.store.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        });
        renamed.map_err(|error| self.problem(&error))
    }

    fn boot(&mut self) -> String {
        let boot = self.system.word("proc/sys/kernel/random/boot_id");
        boot.unwrap_or_default()
    }

    #[cfg(feature = "fault-injection")]
    fn step(&mut self, step: Step) -> Result<(), MachineError> {
        if let Some(death) = &mut self.death {
            death.reach(step);
        }
        Ok(())
    }
}

impl Occupancy {
    /// Counts a frame by its word in `/proc/kpageflags`.
    pub fn add(&mut self, word: u64) {
        match classify(word) {
            Class::Anonymous | Class::PageCache | Class::Thp | Class::HugeTlb => self.movable += 1,
            Class::Slab | Class::PageTable | Class::Kernel | Class::Poisoned => self.unmovable += 1,
            Class::Unexplained => self.unexplained += 1,
            // Blocks with holes cannot go offline either.
            Class::Reserved | Class::Hole => self.reserved += 1,
            Class::Free | Class::Offline | Class::Unread => {}
        }
    }
}
