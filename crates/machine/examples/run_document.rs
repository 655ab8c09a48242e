//! Prints the JSON schema of the document that describes a run: `scripts/run-spec` makes Python's
//! types of it.

fn main() -> serde_json::Result<()> {
    let schema = contigua_machine::schema::run_document();
    println!("{}", serde_json::to_string_pretty(&schema)?);
    Ok(())
}
