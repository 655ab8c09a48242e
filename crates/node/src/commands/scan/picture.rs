//! The picture of physical memory, as a file and in a terminal.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use contigua_live::picture::{Look, Picture};

use crate::output::Output;
use crate::text::whole;

/// Pixels of the longer side, at least, where memory is small.
const LEAST_PIXELS: usize = 512;
/// Cells of the longer side, at most: a cell of 2 MB up to 8 TB.
const WIDEST: usize = 4096;
/// Cells in a row of a terminal.
const COLUMNS: usize = 128;
/// Bytes in a block.
const BLOCK_BYTES: u64 = 2 << 20;

/// Writes a picture.
///
/// # Errors
/// When the file cannot be written.
pub fn write_png(path: &Path, looks: &[Look]) -> anyhow::Result<()> {
    let picture = Picture::draw(looks, WIDEST);
    let scale = LEAST_PIXELS.div_ceil(picture.width).max(1);
    let (width, height) = (picture.width * scale, picture.height * scale);
    let mut pixels = Vec::with_capacity(width * height);
    for row in picture.cells.chunks(picture.width) {
        let from = pixels.len();
        for &look in row {
            pixels.extend(std::iter::repeat_n(look as u8, scale));
        }
        for _ in 1..scale {
            pixels.extend_from_within(from..from + width);
        }
    }
    let output = Output::create(path)?;
    let write = || -> Result<(), png::EncodingError> {
        let file = io::BufWriter::new(output.file().map_err(io::Error::other)?);
        let mut encoder = png::Encoder::new(file, width as u32, height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        let palette = Look::ALL.iter().flat_map(|look| look.color());
        encoder.set_palette(palette.collect::<Vec<u8>>());
        let legend = Look::ALL.map(|look| {
            let [red, green, blue] = look.color();
            format!("#{red:02x}{green:02x}{blue:02x} {}", look.name())
        });
        encoder.add_text_chunk("Description".to_owned(), legend.join(", "))?;
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()
    };
    write().with_context(|| output.name())?;
    output.keep()
}

/// Shows a picture: with colors on a terminal, two rows to a line, else with letters.
///
/// # Errors
/// Those of `out`.
pub fn print(out: &mut impl Write, looks: &[Look]) -> io::Result<()> {
    let picture = Picture::draw(looks, COLUMNS);
    let is_colored = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if is_colored {
        print_colored(out, &picture)?;
    } else {
        for row in picture.cells.chunks(picture.width) {
            let row: String = row.iter().map(|look| look.letter()).collect();
            writeln!(out, "{}", row.trim_end())?;
        }
    }
    let legend = Look::ALL.map(|look| {
        if is_colored {
            let [red, green, blue] = look.color();
            format!(
                "\x1b[38;2;{red};{green};{blue}m\u{2588}\u{2588}\x1b[0m {}",
                look.name()
            )
        } else {
            format!("'{}' {}", look.letter(), look.name())
        }
    });
    writeln!(out, "{}", legend.join("  "))?;
    let bytes = picture.blocks_per_cell as u64 * BLOCK_BYTES;
    writeln!(out, "each cell is {}, along a Hilbert curve", whole(bytes))
}

fn print_colored(out: &mut impl Write, picture: &Picture) -> io::Result<()> {
    let rows: Vec<&[Look]> = picture.cells.chunks(picture.width).collect();
    for pair in rows.chunks(2) {
        for column in 0..picture.width {
            let [red, green, blue] = pair[0][column].color();
            write!(out, "\x1b[38;2;{red};{green};{blue}m")?;
            if let Some(lower) = pair.get(1) {
                let [red, green, blue] = lower[column].color();
                write!(out, "\x1b[48;2;{red};{green};{blue}m")?;
            }
            write!(out, "\u{2580}")?;
        }
        writeln!(out, "\x1b[0m")?;
    }
    Ok(())
}
