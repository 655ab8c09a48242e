//! A file that appears when it is complete: `cargo run -p contigua-output --example whole`.

use std::io::Write;

use contigua_output::Output;

fn main() -> std::io::Result<()> {
    let path = std::env::temp_dir().join(format!("contigua-{}.txt", std::process::id()));
    let output = Output::create(&path)?;
    writeln!(output.file()?, "all of it, or nothing")?;
    println!("while it is written, the file exists: {}", path.exists());
    output.keep()?;
    println!("once it is kept: {}", path.exists());
    std::fs::remove_file(&path)
}
