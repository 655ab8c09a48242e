//! Is the code in the guide to adding a scheme the code that is compiled and tested?

use std::fs;
use std::path::Path;

#[test]
fn every_piece_of_code_in_the_guide_is_cut_from_the_file_that_it_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_to_string(root.join("docs/adding-a-scheme.md")).unwrap();
    let mut example = String::new();
    for part in guide.split("From `").skip(1) {
        let (file, rest) = part.split_once('`').unwrap();
        let code = rest.split_once("```rust\n").unwrap().1;
        let code = code.split_once("\n```").unwrap().0;
        let whole = fs::read_to_string(root.join(file)).unwrap();
        assert!(whole.contains(code), "not in {file}:\n{code}");
        example += code;
    }
    // The guide has all of its example.
    let whole = fs::read_to_string(root.join("crates/translation/examples/victim.rs")).unwrap();
    let lines = |text: &str| text.split_whitespace().collect::<String>();
    assert_eq!(lines(&example), lines(&whole));
}
