//! The table of blocks of 2 MB, as a Parquet file; the report is in the file's metadata.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use contigua_live::blocks::Block;
use contigua_live::census::CLASSES;
use contigua_live::classify::Class;
use contigua_live::proc::Zone;
use contigua_live::report::Report;
use contigua_units::PAGE_BYTES;
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use crate::output::Output;

/// Rows that are kept until they are written: 128 GB of memory.
const ROWS: usize = 65_536;

/// Writes the table while a scan goes on.
pub struct BlockTable {
    output: Output,
    writer: SerializedFileWriter<File>,
    zones: Vec<(i32, ByteArray)>,
    rows: Rows,
}

#[derive(Default)]
struct Rows {
    addresses: Vec<i64>,
    nodes: Vec<i32>,
    zones: Vec<ByteArray>,
    classes: [Vec<i32>; CLASSES],
}

impl BlockTable {
    /// Begins a table for a machine with these zones.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create(path: &Path, zones: &[Zone]) -> anyhow::Result<Self> {
        let output = Output::create(path)?;
        let begin = || -> Result<_, ParquetError> {
            let file = output
                .file()
                .map_err(|error| ParquetError::External(error.into()))?;
            SerializedFileWriter::new(
                file,
                Arc::new(schema()?),
                Arc::new(WriterProperties::default()),
            )
        };
        let writer = begin().with_context(|| output.name())?;
        let zones = zones.iter();
        let zones =
            zones.map(|zone| (zone.node.cast_signed(), ByteArray::from(zone.name.as_str())));
        Ok(Self {
            output,
            writer,
            zones: zones.collect(),
            rows: Rows::default(),
        })
    }

    /// Returns the name of the finished file.
    pub fn name(&self) -> String {
        self.output.name()
    }

    /// Adds a block.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&mut self, block: &Block) -> io::Result<()> {
        let zone = block
            .zone
            .and_then(|zone| self.zones.get(usize::from(zone)));
        let (node, zone) = zone.cloned().unwrap_or((-1, ByteArray::from("")));
        let rows = &mut self.rows;
        rows.addresses
            .push((block.start * PAGE_BYTES).cast_signed());
        rows.nodes.push(node);
        rows.zones.push(zone);
        for (column, (_, frames)) in rows.classes.iter_mut().zip(block.frames.iter()) {
            column.push((frames as u32).cast_signed());
        }
        if rows.addresses.len() < ROWS {
            return Ok(());
        }
        self.flush().map_err(io::Error::other)
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.addresses.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        let mut classes = rows.classes.iter();
        let mut number = 0;
        while let Some(mut column) = group.next_column()? {
            match number {
                0 => column
                    .typed::<Int64Type>()
                    .write_batch(&rows.addresses, None, None)?,
                1 => column
                    .typed::<Int32Type>()
                    .write_batch(&rows.nodes, None, None)?,
                2 => column
                    .typed::<ByteArrayType>()
                    .write_batch(&rows.zones, None, None)?,
                _ => {
                    let values = classes.next().map_or(&[][..], Vec::as_slice);
                    column
                        .typed::<Int32Type>()
                        .write_batch(values, None, None)?
                }
            };
            column.close()?;
            number += 1;
        }
        group.close()?;
        Ok(())
    }

    /// Ends the table.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, report: &Report) -> anyhow::Result<()> {
        let name = self.output.name();
        let json = serde_json::to_string(report)?;
        self.flush().with_context(|| name.clone())?;
        self.writer
            .append_key_value_metadata(KeyValue::new("contigua.report".to_owned(), json));
        self.writer.close().context(name)?;
        self.output.keep()
    }
}

fn column(name: &str, physical: Physical) -> parquet::schema::types::PrimitiveTypeBuilder<'_> {
    Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED)
}

/// `address` in bytes, `node`, `zone`, and for each class its frames of 4 KB.
fn schema() -> Result<Type, ParquetError> {
    let mut columns = vec![
        Arc::new(column("address", Physical::INT64).build()?),
        Arc::new(column("node", Physical::INT32).build()?),
        Arc::new(
            column("zone", Physical::BYTE_ARRAY)
                .with_converted_type(ConvertedType::UTF8)
                .build()?,
        ),
    ];
    for class in Class::ALL {
        columns.push(Arc::new(column(class.key(), Physical::INT32).build()?));
    }
    Type::group_type_builder("block")
        .with_fields(columns)
        .build()
}
