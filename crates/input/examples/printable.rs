//! Text from outside on a terminal: `cargo run -p contigua-input --example printable`.

use contigua_input::printable;

fn main() {
    let name = "report\u{1b}[2J\u{7}.json";
    println!("the file {} cannot clear the screen", printable(name));
}
