//! `contigua-node`: what an operator installs on production hosts.
#![forbid(unsafe_code)]

mod commands;

use clap::Parser;

/// See a server's memory contiguity, and keep it on stock Linux.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> anyhow::Result<()> {
    Arguments::parse().command.run()
}
