//! `contigua-node watch`: the same statistics all the time, as Prometheus metrics.
//!
//! The kernel's own sums are read at each request. The scan of all frames, which costs
//! a second of CPU time for 24 GB, happens seldom, on a thread of its own that sleeps after each
//! 128 MB.

mod figures;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use contigua_live::proc::System;
use contigua_live::report::{Nobody, Options, Report, look};
use contigua_live::scan::Pace;
use contigua_units::Nanoseconds;
use std::io::{self, Write};

use crate::commands::{Root, some_time};
use crate::http::{self, Answer};
use crate::metrics::Metrics;
use crate::output::{Output, complain};
use figures::{Summaries, add_scan};

/// Whoever asks again within this time gets the same text: reading `/proc` is work.
const FRESH: Duration = Duration::from_secs(1);
/// Bytes that are scanned between two sleeps.
const CHUNK_BYTES: u64 = 128 << 20;

/// Serve the same statistics as Prometheus metrics, cheaply
#[derive(Args)]
pub struct Arguments {
    /// Address to serve /metrics at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9835")]
    listen: SocketAddr,

    /// Another name under which this machine may be asked, beside its addresses, its host name and
    /// `localhost`; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with_all = ["once", "textfile"])]
    host: Vec<String>,

    /// Write metrics to a file for the node exporter's textfile collector instead of serving them
    #[arg(long, value_name = "FILE.prom", conflicts_with = "listen")]
    textfile: Option<PathBuf>,

    /// Print metrics once, frames included, and end
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    once: bool,

    /// Time between two writings of the file; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = some_time)]
    interval: Nanoseconds,

    /// Time between two scans of all frames, 0 for never; without a unit in minutes
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = Nanoseconds::minutes)]
    scan_interval: Nanoseconds,

    /// Time over which a scan of all frames is spread; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = Nanoseconds::seconds)]
    scan_duration: Nanoseconds,

    #[command(flatten)]
    root: Root,
}

/// The last scan of all frames.
type Last = Arc<Mutex<Option<Report>>>;

/// Watches until it is killed.
///
/// # Errors
/// When the address or file is not available, or the machine says nothing.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let system = System::at(&arguments.root);
    let last = Last::default();
    if arguments.once {
        scan(&system, Pace::default(), &last)?;
        io::stdout().write_all(metrics(&system, &last)?.as_bytes())?;
        return Ok(());
    }
    // Fails here rather than in a thread, and says what is missing.
    let memory = system.zones()?.iter().map(|zone| zone.present).sum::<u64>() * 4096;
    if arguments.scan_interval.get() > 0 {
        if let Err(error) = system.page_files() {
            complain(format_args!("frames are not scanned: {error}"));
        } else {
            let chunks = (memory / CHUNK_BYTES).max(1);
            let pace = Pace {
                threads: 1,
                pause: Duration::from_nanos(arguments.scan_duration.get()) / chunks as u32,
            };
            let every = Duration::from_nanos(arguments.scan_interval.get());
            let (system, last) = (system.clone(), Arc::clone(&last));
            thread::Builder::new()
                .spawn(move || scan_again_and_again(&system, pace, every, &last))
                .context("no thread can be started to scan frames")?;
        }
    }
    match &arguments.textfile {
        Some(path) => {
            let every = Duration::from_nanos(arguments.interval.get());
            loop {
                write(path, &metrics(&system, &last)?)?;
                thread::sleep(every);
            }
        }
        None => serve(&system, arguments, &last),
    }
}

fn scan_again_and_again(system: &System, pace: Pace, every: Duration, last: &Last) {
    loop {
        let started = Instant::now();
        if let Err(error) = scan(system, pace, last) {
            complain(format_args!("{error:#}"));
        }
        thread::sleep(every.saturating_sub(started.elapsed()));
    }
}

fn scan(system: &System, pace: Pace, last: &Last) -> anyhow::Result<()> {
    let options = Options {
        pace,
        frames: true,
        sites: false,
    };
    let report = look(system, options, &mut Nobody)?;
    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    Ok(())
}

fn metrics(system: &System, last: &Last) -> anyhow::Result<String> {
    let summaries = Summaries::read(system)?;
    let mut metrics = Metrics::default();
    summaries.add_to(&mut metrics);
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    add_scan(last.as_ref(), &mut metrics);
    Ok(metrics.into_text())
}

/// The node exporter must never see half a file.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let output = Output::create(path)?;
    output
        .file()?
        .write_all(text.as_bytes())
        .with_context(|| output.name())?;
    output.keep()
}

fn serve(system: &System, arguments: &Arguments, last: &Last) -> anyhow::Result<()> {
    let address = arguments.listen;
    let listener =
        TcpListener::bind(address).with_context(|| format!("{address} cannot be listened on"))?;
    let mut hosts = arguments.host.clone();
    hosts.push(
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    );
    complain(format_args!(
        "serving http://{}/metrics",
        listener.local_addr()?
    ));
    let mut known: Option<(Instant, Answer)> = None;
    let limits = http::Limits::default();
    http::serve(&listener, &limits, &hosts, &mut |path: &str| match path {
        "/metrics" => {
            if let Some((when, answer)) = &known
                && when.elapsed() < FRESH
            {
                return answer.clone();
            }
            let answer = match metrics(system, last) {
                Ok(text) => Answer::new(200, &text),
                Err(error) => Answer::new(500, &format!("{error:#}\n")),
            };
            known = Some((Instant::now(), answer.clone()));
            answer
        }
        "/" => Answer::new(200, "contigua-node: see /metrics\n"),
        _ => Answer::new(404, "there is only /metrics\n"),
    })?;
    Ok(())
}
