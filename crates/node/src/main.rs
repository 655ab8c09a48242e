//! `contigua-node`: what an operator installs on production hosts.
#![forbid(unsafe_code)]
// Both panic where nothing can be written; see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod guard;
mod http;
mod metrics;
mod output;
#[cfg(test)]
mod schemas;
mod text;

use std::io;
use std::process::ExitCode;

use clap::Parser;

/// See a server's memory contiguity, and keep it on stock Linux.
#[derive(Parser)]
#[command(name = "contigua-node", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let ended = output::survive_size_limits()
        .map_err(anyhow::Error::from)
        .and_then(|()| Arguments::parse().command.run());
    match ended {
        Ok(code) => code,
        // Whoever read our output has seen enough, as `| head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
