//! `contigua-node guard`: keeps unmovable memory apart on stock Linux.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use contigua_units::{Bytes, Nanoseconds};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::commands::Root;
use crate::guard::config::OnlineNew;
use crate::guard::linux::{Linux, write_word};
use crate::guard::plan::mib;
use crate::guard::state::State;
use crate::guard::view::{Node, islands, nodes};
use crate::guard::{Config, Guard, Machine, Place, Report, Survey};

/// The version of the JSON of `guard status`; it grows when a key changes its meaning or goes.
const STATUS_SCHEMA: u32 = 1;

/// Keep unmovable memory apart: watch both regions and move the border between them.
///
/// The movable region is the kernel's `ZONE_MOVABLE`; boot with movablecore=SIZE or kernelcore=SIZE,
/// or plug memory in and online it as movable. Without a command it runs until it is stopped.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    place: Where,

    #[command(flatten)]
    run: RunArguments,
}

#[derive(Args)]
struct Where {
    /// File that remembers what was moved
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/contigua/guard.json"
    )]
    state: PathBuf,

    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
struct RunArguments {
    /// TOML file with settings; flags go before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Say what would be moved, and move nothing
    #[arg(long)]
    dry_run: bool,

    /// Look once instead of for ever
    #[arg(long)]
    once: bool,

    /// Time between two looks [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = Nanoseconds::seconds)]
    interval: Option<Nanoseconds>,

    /// Memory to keep available in each region beyond its watermark [default: half a block]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Bytes>,

    /// Least size of a node's kernel zones [default: a tenth of its memory]
    #[arg(long, value_name = "SIZE")]
    kernel_min: Option<Bytes>,

    /// Least size of a node's movable zone [default: a block]
    #[arg(long, value_name = "SIZE")]
    movable_min: Option<Bytes>,

    /// Time after which a block that does not go offline is given up [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = Nanoseconds::seconds)]
    limit: Option<Nanoseconds>,

    /// The most blocks to move in a minute [default: 20]
    #[arg(long, value_name = "N")]
    blocks_per_minute: Option<u32>,

    /// State for memory that was plugged in and is offline [default: leave]
    #[arg(long, value_enum)]
    online_new: Option<OnlineNew>,
}

#[derive(Subcommand)]
enum Action {
    /// Say where the border is and what was moved
    Status {
        #[command(flatten)]
        place: Where,

        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring every block that was moved back to where it was
    Release(Where),
    /// Settle a move that was under way when the guard died; a new guard does so, too
    Recover(Where),
    /// Take 1 GB `HugeTLB` pages out of the movable region
    ///
    /// Stock Linux makes none there: an aligned range of movable blocks becomes the kernel's first.
    Huge {
        #[command(flatten)]
        place: Where,

        /// Number of pages to add
        #[arg(long, value_name = "N", default_value_t = 1)]
        count: u64,
    },
    /// Write a word to a file of the kernel's; the guard's own helper
    #[command(hide = true)]
    Write {
        word: String,
        file: PathBuf,
        guard: u32,
    },
}

/// Does it.
///
/// # Errors
/// The missing prerequisite, and its remedy.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.action {
        None => guard(&arguments.place, &arguments.run)?,
        Some(Action::Status { place, json }) => status(&place, json)?,
        Some(Action::Release(place)) => return release(&place),
        Some(Action::Recover(place)) => return recover(&place),
        Some(Action::Huge { place, count }) => return huge(&place, count),
        Some(Action::Write { word, file, guard }) => {
            return Ok(write_word(&word, &file, guard));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl RunArguments {
    /// The settings: flags, then the file, then defaults.
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        config.interval = self.interval.unwrap_or(config.interval);
        config.reserve = self.reserve.or(config.reserve);
        config.kernel_min = self.kernel_min.or(config.kernel_min);
        config.movable_min = self.movable_min.or(config.movable_min);
        config.limit = self.limit.unwrap_or(config.limit);
        config.blocks_per_minute = self.blocks_per_minute.unwrap_or(config.blocks_per_minute);
        config.online_new = self.online_new.unwrap_or(config.online_new);
        config.check()?;
        Ok(config)
    }
}

fn machine(place: &Where) -> Linux {
    Linux::new(&place.root, &place.state)
}

fn say(report: &impl ToString) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", report.to_string())?;
    out.flush()
}

fn guard(place: &Where, arguments: &RunArguments) -> anyhow::Result<()> {
    let config = arguments.config()?;
    let mut machine = machine(place);
    let survey = look(&mut machine)?;
    introduce(&survey, &config, &place.root)?;
    if !arguments.dry_run {
        machine.lock()?;
    }
    // Nobody waits for the guard. It does hardly any input or output, and the kernel derives that
    // priority from this one.
    let _ = rustix::process::setpriority_process(None, 19);
    let mut stopped = stop_signals(Duration::from_nanos(config.interval.get()))
        .context("signals cannot be handled")?;
    let mut guard = Guard::new(machine, config, arguments.dry_run)?;
    let mut told = Told::default();
    loop {
        for report in told.news(guard.tick()?) {
            say(&report)?;
        }
        if arguments.once {
            return Ok(());
        }
        match stopped.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return Ok(say(&"stopped; guard release brings blocks back")?),
        }
    }
}

/// A stream that becomes readable when a signal asks us to stop; a read times out after `interval`.
fn stop_signals(interval: Duration) -> io::Result<UnixStream> {
    let (stop, stopped) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, stop.try_clone()?)?;
    }
    stopped.set_read_timeout(Some(interval))?;
    Ok(stopped)
}

fn look(machine: &mut Linux) -> anyhow::Result<Survey> {
    machine
        .survey()
        .context("the guard needs a kernel with memory hot-plugging and a readable /sys and /proc")
}

/// Says what the guard finds, and what is missing.
fn introduce(survey: &Survey, config: &Config, root: &Path) -> anyhow::Result<()> {
    let nodes = nodes(survey, config);
    anyhow::ensure!(
        nodes.iter().any(Node::has_border) || config.online_new == OnlineNew::Movable,
        "no node has both kernel zones and a movable one, so there is no border to move: boot with \
         movablecore=SIZE or kernelcore=SIZE, or plug memory in and use --online-new movable"
    );
    for node in &nodes {
        say(&describe(node, survey))?;
    }
    if survey.pressure.is_none() {
        say(
            &"pressure is not known: boot with psi=1; until then only free memory moves the border",
        )?;
    }
    if !root.join("proc/kpageflags").exists() {
        say(&"frames cannot be looked at (no /proc/kpageflags), so blocks are tried blindly")?;
    }
    Ok(())
}

fn describe(node: &Node, survey: &Survey) -> String {
    let count = |place| {
        let blocks = node.blocks.iter().filter(|block| block.place == place);
        blocks.count()
    };
    let wrong = islands(&node.blocks).len();
    let mut text = format!(
        "node {}: kernel zones {} ({} available, high watermark {}), Movable {} ({} available, high \
         watermark {}); blocks of {}: {} kernel, {} movable, {} fixed, {} offline",
        node.number,
        mib(node.kernel.size),
        mib(node.kernel.available),
        mib(node.kernel.high),
        mib(node.movable.size),
        mib(node.movable.available),
        mib(node.movable.high),
        mib(survey.block),
        count(Place::Kernel),
        count(Place::Movable),
        count(Place::Fixed),
        count(Place::Offline) + count(Place::Leaving),
    );
    if wrong > 0 {
        let _ = write!(text, "; {wrong} on the wrong side of the border");
    }
    text
}

/// Leaves out what was said before.
#[derive(Default)]
struct Told {
    last: BTreeSet<String>,
    at: Option<Instant>,
}

impl Told {
    /// The reports, unless they are of the same kinds as the last ones and a minute has not passed;
    /// moves are always news.
    fn news(&mut self, reports: Vec<Report>) -> Vec<Report> {
        let is_news = |report: &Report| {
            !matches!(
                report,
                Report::Wants(_)
                    | Report::Refused(_)
                    | Report::Limited { .. }
                    | Report::Would { .. }
                    | Report::Unsettled { .. }
            )
        };
        // Sentences without their figures.
        let kinds: BTreeSet<String> = reports
            .iter()
            .map(|report| report.to_string().replace(|c: char| c.is_ascii_digit(), ""))
            .collect();
        let is_old = self
            .at
            .is_some_and(|at| at.elapsed() < Duration::from_mins(1));
        if is_old && kinds.is_subset(&self.last) && !reports.iter().any(is_news) {
            return Vec::new();
        }
        if !kinds.is_empty() {
            self.last = kinds;
            self.at = Some(Instant::now());
        }
        reports
    }
}

fn read_state(machine: &mut Linux) -> anyhow::Result<State> {
    let boot = machine.boot();
    Ok(match machine.load()? {
        Some(text) => State::read(&text, &boot).context("state file")?,
        None => State::new(boot),
    })
}

/// The JSON of `guard status`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// The version of this JSON.
    schema: u32,
    /// Size of a memory block.
    block_bytes: u64,
    /// NUMA nodes.
    nodes: Vec<NodeStatus>,
    /// Actions of the guard since boot.
    state: State,
}

/// A NUMA node.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NodeStatus {
    /// Its number.
    node: u32,
    /// Memory of the kernel's zones.
    kernel_bytes: u64,
    /// Bytes of it that are free or reclaimable at once.
    kernel_available_bytes: u64,
    /// Their high watermarks.
    kernel_high_bytes: u64,
    /// Memory of the movable zone.
    movable_bytes: u64,
    /// Bytes of it that are free or reclaimable at once.
    movable_available_bytes: u64,
    /// Its high watermark.
    movable_high_bytes: u64,
    /// Numbers of the kernel's blocks.
    kernel_blocks: Vec<u64>,
    /// Numbers of movable blocks.
    movable_blocks: Vec<u64>,
    /// Numbers of blocks that are offline.
    offline_blocks: Vec<u64>,
    /// Numbers of blocks on the wrong side of the border.
    islands: Vec<u64>,
}

fn status(place: &Where, json: bool) -> anyhow::Result<()> {
    let mut machine = machine(place);
    let survey = look(&mut machine)?;
    let state = read_state(&mut machine)?;
    let config = Config::default();
    let mut out = io::stdout().lock();
    if json {
        let nodes: Vec<NodeStatus> = nodes(&survey, &config)
            .iter()
            .map(|node| {
                let blocks = |place| -> Vec<u64> {
                    let blocks = node.blocks.iter().filter(|block| block.place == place);
                    blocks.map(|block| block.number).collect()
                };
                NodeStatus {
                    node: node.number,
                    kernel_bytes: node.kernel.size.get(),
                    kernel_available_bytes: node.kernel.available.get(),
                    kernel_high_bytes: node.kernel.high.get(),
                    movable_bytes: node.movable.size.get(),
                    movable_available_bytes: node.movable.available.get(),
                    movable_high_bytes: node.movable.high.get(),
                    kernel_blocks: blocks(Place::Kernel),
                    movable_blocks: blocks(Place::Movable),
                    offline_blocks: blocks(Place::Offline),
                    islands: islands(&node.blocks),
                }
            })
            .collect();
        let whole = serde_json::to_value(Status {
            schema: STATUS_SCHEMA,
            block_bytes: survey.block.get(),
            nodes,
            state,
        })?;
        writeln!(out, "{whole:#}")?;
        return Ok(());
    }
    for node in nodes(&survey, &config) {
        writeln!(out, "{}", describe(&node, &survey))?;
    }
    writeln!(
        out,
        "{} moves since boot, {} undone; {} blocks are not where they were{}",
        state.moves,
        state.undone,
        state.originals.len(),
        if state.originals.is_empty() {
            ""
        } else {
            ", and guard release would bring them back"
        }
    )?;
    if let Some(intent) = state.intent {
        writeln!(
            out,
            "a move of block {} from {} to {} is under way, or was when the guard died (guard \
             recover)",
            intent.block, intent.from, intent.to
        )?;
    }
    Ok(())
}

fn huge(place: &Where, count: u64) -> anyhow::Result<ExitCode> {
    let mut machine = machine(place);
    introduce(&look(&mut machine)?, &Config::default(), &place.root)?;
    machine.lock()?;
    let mut guard = Guard::new(machine, Config::default(), false)?;
    let reports = guard.take_gigantic(count)?;
    for report in &reports {
        say(report)?;
    }
    let made = reports
        .iter()
        .filter(|report| matches!(report, Report::Gigantic { .. }))
        .count();
    Ok(if made as u64 == count {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn recover(place: &Where) -> anyhow::Result<ExitCode> {
    let mut machine = machine(place);
    machine.lock()?;
    let mut guard = Guard::new(machine, Config::default(), false)?;
    let mut reports = Vec::new();
    guard.recover(&mut reports)?;
    for report in &reports {
        say(report)?;
    }
    Ok(if guard.state().intent.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn release(place: &Where) -> anyhow::Result<ExitCode> {
    let mut machine = machine(place);
    machine.lock()?;
    let mut guard = Guard::new(machine, Config::default(), false)?;
    for report in guard.release()? {
        say(&report)?;
    }
    let left: Vec<String> = guard
        .state()
        .originals
        .iter()
        .map(|(block, original)| format!("{block} ({original})"))
        .collect();
    if left.is_empty() {
        say(&"every block is where it was")?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!(
        "not back yet: blocks {}; try again later, or reboot",
        left.join(", ")
    ))?;
    Ok(ExitCode::FAILURE)
}
